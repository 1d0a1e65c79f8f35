"""The node: the only room with netlink, sysfs, ioctl and ``setns``.

It reads facts (``scan``, ``linkstate``), tells that something changed (``watch``) and applies or undoes
plans (``attach``, ``detach``). It decides nothing about claims, knows no Kubernetes and no container
runtime, and imports no third-party library unless a function needs it.
"""
