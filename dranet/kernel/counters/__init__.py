"""Counters of links and RDMA ports, for metrics and for the health watch."""
