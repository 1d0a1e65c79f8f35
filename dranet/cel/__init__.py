"""Kubernetes' device CEL dialect: does a device match a selector?

One evaluator, today for the testbed's scheduler; the daemon itself never needs
it. The engine (cel-expr-python) is an optional extra and is loaded with the first selector.

The dialect, as ``k8s.io/dynamic-resource-allocation/cel`` defines it: the variable ``device`` with
``driver``, ``attributes``, ``capacity`` and ``allowMultipleAllocations``; an unknown domain is an empty map;
a missing attribute is an error, and so is a result that is not a bool. ``quantity()`` and ``semver()`` are
ours. What Kubernetes has and this evaluator has not (regex, url, ip, cidr, sets, list and format libraries,
two-variable comprehensions) is an error that says so, never "no match". Not enforced: the cost limit.
"""

from dranet.cel.scalars import CelError
from dranet.cel.selector import MAX_EXPRESSION_LENGTH, DeviceSelector, Version

__all__ = ["MAX_EXPRESSION_LENGTH", "CelError", "DeviceSelector", "Version"]
