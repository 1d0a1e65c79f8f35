"""A node as its operator set it up: settings from flags, the policy, a capture, and the devices that follow.

The driver, the node's commands and the desk share it, so that all of them see the same devices. Runs on any
system: it imports no kernel, kubelet or runtime.
"""
