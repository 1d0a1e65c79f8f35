"""What the node has: reads links, PCI functions, RDMA devices, GPUs and NUMA nodes, tells when they change.

``scan`` reads everything into ``model.facts.NodeFacts``, or again only what ``watch`` named. Changes nothing.
"""
