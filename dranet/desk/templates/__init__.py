"""Writes claims: what this hardware publishes -> the manifests that align on it.

Pure: it reads ResourceSlices as JSON (of a cluster, a file, or what a capture would publish) and returns
manifests with the reason for each choice, or explains why no node can give what was requested. That what it
wrote can be had is proven with ``allocation``, never assumed.
"""
