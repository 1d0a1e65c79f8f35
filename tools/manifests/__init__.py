"""What Kubernetes objects the driver is installed by, as far as they are made from the code itself.

Talks to nobody: each module declares, and says why; `tools/pages/reference.py` writes the results into
`charts/dranet/`. Must not know: what a cluster looks like at this moment.
"""
