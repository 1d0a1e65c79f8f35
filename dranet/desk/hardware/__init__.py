"""Reads the hardware of nodes from ResourceSlices: NICs, GPUs of any driver, and their places.

Pure: ``claim new``, ``explain`` and ``validate`` have all distances from here.
"""
