"""What ``dranet doctor`` reads of the node besides its devices: facts, unjudged, for ``model.host_facts``.

The daemon loads none of it. Everything is read through ``kernel.sysfs``: bounded and without blocking.
"""
