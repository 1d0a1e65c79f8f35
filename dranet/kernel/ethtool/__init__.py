"""Ethtool by netlink and ioctl: what a link reports, and the settings that its driver keeps in the card.

``KernelError`` also means that the link is gone (ENODEV), that netlink failed or an answer is malformed.
"""
