"""The store's intent against what runtime, kernel and API server have: what differs is made good."""
