"""Knows which devices the scheduler of Kubernetes gives to a claim: slices, classes -> results.

Pure: it reads API objects as JSON and returns JSON or the reason why not. The testbed's scheduler allocates
by it, ``dranet explain`` prints what it did, ``dranet claim new`` proves by it that what it wrote can be had.
It must not know the driver, its devices or the hardware: every driver's slices are the same to it.
"""
