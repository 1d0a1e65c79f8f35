"""Netlink: sockets and messages of rtnetlink, RDMA, DCB and generic netlink. No policy."""
