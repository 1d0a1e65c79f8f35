"""Ethtool by netlink and ioctl: what a link reports, and the settings that its driver keeps in the card."""
