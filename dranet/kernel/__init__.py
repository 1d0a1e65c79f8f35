"""The node: the only room with netlink, sysfs, ioctl and ``setns``.

It reads facts (``discovery``), watches for changes, and applies and undoes plans (``attachment``) in the
terms of ``netlink/``, ``ethtool/``, ``sysfs/`` and ``namespaces/``. It decides nothing about claims, knows no
Kubernetes and no container runtime, and imports no third-party library unless a function needs it.
"""
