"""The node: the only room with netlink, sysfs, ioctl and ``setns``. It decides nothing about claims, knows no
Kubernetes and no container runtime, and imports no third-party library unless a function needs it."""
