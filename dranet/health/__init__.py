"""How healthy a device is: faults of one observation, their course over time, taints. Pure."""
