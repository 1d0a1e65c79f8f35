"""The room that decides what the node offers: facts -> devices -> decisions -> pages of slices.

Pure: it gets ``NodeFacts`` and the devices that pods have now, and returns values. It must not know the
kernel, the API server, the store or the clock; the corridor (``driver.publish``) carries values in and out.
"""
