"""Why a claim gets its devices or not: attempts on each node, as plain values.

It runs the allocator repeatedly, also with one blocker removed, and reports only what then succeeds. It
prints nothing.
"""
