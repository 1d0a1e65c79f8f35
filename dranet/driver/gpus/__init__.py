"""The node's GPUs: whose they are to offer, and how one gets into containers."""
