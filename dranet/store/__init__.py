"""Prepared claims on disk: what the driver promised before it answered the kubelet.

``claim_store`` is the interface. The other modules serve it: the folder with a file for each claim, its
content in memory, changes that the disk has refused, and partial decoding of damaged records. The package
depends on neither kernel, cluster nor runtime.
"""
