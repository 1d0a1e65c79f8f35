"""A one-node Kubernetes cluster in one process tree, for the demo, the tests and offline answers.

It stands in for everything around the driver: the hardware, the API server, the scheduler, the kubelet and
the container runtime. The driver under test is the ordinary program in a child process, met over sockets
alone, so that the testbed cannot cheat.
"""
