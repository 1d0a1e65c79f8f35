"""Coverage-guided fuzzing (``make fuzz``): what comes from outside must end in a named error or a good value.

Each target is a function of bytes that raises when the code under test breaks its promise. libFuzzer, through
atheris, mutates the bytes towards code that no input has reached. A target runs in a process of its own,
since libFuzzer ends the process that it runs in.
"""

INSTRUMENTED = ("dranet.claims", "dranet.model", "dranet.kernel", "dranet.wire", "dranet.cluster")
"""Packages whose branches guide the fuzzer; nothing of them may be imported before it is asked to watch."""

NAMES = ["config", "claim", "plan", "plan-for-another-link", "dhcp", "nri-frames", "http"]
"""The keys of ``targets.TARGETS``."""
