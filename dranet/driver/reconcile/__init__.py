"""Compare the store's intent with runtime, kernel and API server, and repair what differs."""
