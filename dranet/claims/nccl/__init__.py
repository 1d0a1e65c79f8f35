"""Files for NCCL, and for RCCL, which reads the same: the topology and the settings of a pod's devices."""
