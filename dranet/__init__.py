"""dranet: a Kubernetes DRA network driver that gives a pod the NICs next to its GPUs."""

__version__ = "0.1.0"
