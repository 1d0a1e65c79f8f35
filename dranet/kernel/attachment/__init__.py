"""Attach claimed devices to pods: record the state, apply the plan, return the device and restore its state.

``attach`` applies a plan in the runtime's hook by its ``steps``, ``detach`` returns the device to the host;
``restore`` records its state at Prepare and restores it. The other modules are what these share.
"""
