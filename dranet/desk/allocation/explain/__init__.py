"""Why a claim gets its devices or not: attempts on each node -> an explanation as plain values.

It asks the allocator again and again, also with an obstacle taken away, and tells only what then succeeds.
It prints nothing.
"""
