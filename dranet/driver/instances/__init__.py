"""Instances of the driver that share a node during an update: members, leader and locks."""
