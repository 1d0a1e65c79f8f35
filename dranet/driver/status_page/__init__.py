"""The status page (statusz) of the node: collected by ``source``, rendered by ``document``."""
