"""The fleet at a glance: devices, claims and problems of each node, from API objects (pure)."""
