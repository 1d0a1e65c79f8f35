"""Coverage-guided fuzzing (``make fuzz``): what comes from outside must end in a named error or a good value.

Each target is a function of bytes that raises when the code under test breaks its promise. libFuzzer, through
atheris, mutates the bytes towards code that no input has reached. A target runs in a process of its own,
since libFuzzer ends the process that it runs in.
"""

INSTRUMENTED = (
    "dranet.claims",
    "dranet.cluster",
    "dranet.desk",
    "dranet.inventory",
    "dranet.ipam",
    "dranet.kernel",
    "dranet.model",
    "dranet.providers",
    "dranet.wire",
)
"""Packages whose branches guide the fuzzer; nothing of them may be imported before it is asked to watch."""

NAMES = [
    "config",
    "claim",
    "provided-config",
    "plan",
    "plan-for-another-link",
    "dhcp",
    "lldp",
    "lldpd",
    "nri-frames",
    "http",
    "cloud",
    "webhook-attributes",
    "cni-plugin",
    "ipam-result",
    "ipam-file",
    "address-pool",
    "virtual-functions",
    "fabric",
]
"""The keys of ``targets.TARGETS``."""
