"""Prepared claims on disk: what the driver promised before it answered the kubelet.

``claim_store`` is what everybody else uses. The other modules are its file: how it is opened, read, written
and, where the disk has damaged it, saved. It knows no kernel, cluster or runtime.
"""
