"""Measurements that can be repeated with one command: ``make bench`` (or ``python -m benchmarks NAME...``).

Machines differ and are noisy, so what counts are ratios of two things measured in turn in the same run.
Everything runs in a private process tree with namespaces of its own.
"""
