"""A node as its operator set it up: the driver, the node's commands and the desk, on any system, see the same
devices with it."""
