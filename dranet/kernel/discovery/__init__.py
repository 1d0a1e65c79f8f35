"""The room that reads a node's devices and watches for changes, without judging what may be offered."""
