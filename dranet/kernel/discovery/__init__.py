"""Read the node: links, PCI functions, RDMA devices, GPUs and NUMA nodes, and watch for changes.

``scan`` reads everything into ``model.facts.NodeFacts``, or again only what ``watch`` named. Changes nothing.
"""
