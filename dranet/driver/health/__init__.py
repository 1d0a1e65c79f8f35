"""The health of the node's devices: read, followed over time, reported to the kubelet and the scheduler."""
