"""A real containerd and runc from the distribution's packages, as a runtime of the testbed."""
