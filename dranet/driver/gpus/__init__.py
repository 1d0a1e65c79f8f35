"""The node's GPUs: whether this driver offers them, and how one gets into containers."""
