"""Drivers of 1,000 nodes against a real API server and etcd, and a job that claims their devices."""
