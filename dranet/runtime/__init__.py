"""The container runtime's room: NRI hooks (containerd, CRI-O) and CDI spec files.

It speaks NRI's wire and the CDI file format, and hands out :mod:`dranet.model.claim` nouns. It does not
know what a hook does with a pod, nor what a claim is beyond its uid.
"""
