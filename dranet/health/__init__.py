"""The health of a device: the faults that one observation shows, their course over time, and taints. Pure."""
