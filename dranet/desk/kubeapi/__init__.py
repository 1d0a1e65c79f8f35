"""Objects of the Kubernetes API: their kinds, their fields, and what an API server refuses in them."""
