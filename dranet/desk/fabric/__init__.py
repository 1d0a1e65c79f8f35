"""The fabric of a cluster: switches, rails and nodes as published devices show them, and what does not fit
(pure)."""
