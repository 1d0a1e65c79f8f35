"""A virtual machine with a stock distribution kernel: the node of the machine lane."""
