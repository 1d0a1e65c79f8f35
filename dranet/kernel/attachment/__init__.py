"""Attach claimed devices to pods: record the state, apply the plan, return the device and restore its state.

``record`` reads the state at Prepare, ``attach`` applies a plan in the runtime's hook, ``detach`` returns the
device to the host and ``restore`` restores its state. Each other module is one kind of step or of check.
"""
