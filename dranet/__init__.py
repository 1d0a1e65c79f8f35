"""dranet: a Kubernetes DRA network driver that puts a pod's NICs beside its GPUs."""

__version__ = "0.1.0"
