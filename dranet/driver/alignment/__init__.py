"""Which GPUs each pod really received, from any source, and how close its network devices are to them."""
