"""What NCCL and RCCL, which reads the same, are told of a pod's devices: topology and settings."""
