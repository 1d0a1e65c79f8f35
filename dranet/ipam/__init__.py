"""CNI IPAM plugins, by exec: the counterpart of this room."""
