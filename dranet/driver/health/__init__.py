"""The health of the node's devices: read, judged over time, told to the kubelet and the scheduler."""
