"""Facts of the node that only ``dranet doctor`` reads, without judgement, for ``model.host_facts``.

The daemon loads none of it. Everything is read through ``sysfs.files``: bounded and never blocking.
"""
