"""Kubernetes' device CEL dialect: does a device match a selector?

One evaluator, for the testbed's scheduler (:class:`DeviceSelector`), for what an operator says of a node's
devices (:class:`DeviceExpression`: the filter, the rules for attributes) and for what a DeviceClass demands
of the values in a claim (:class:`ValueExpression`: its policy). The daemon needs the latter two only.
The engine (cel-expr-python) is an optional extra and is loaded with the first expression.

The dialect, as ``k8s.io/dynamic-resource-allocation/cel`` defines it: the variable ``device`` with
``driver``, ``attributes``, ``capacity`` and ``allowMultipleAllocations``; an unknown domain is an empty map;
a missing attribute is an error, and so is a result that is not a bool. ``quantity()`` and ``semver()`` are
ours. What Kubernetes has and this evaluator has not (regex, url, ip, cidr, sets, list and format libraries,
two-variable comprehensions) is an error that says so, never "no match". Not enforced: the cost limit.
"""

from dranet.cel.filter import DeviceExpression
from dranet.cel.scalars import CelError
from dranet.cel.selector import DeviceSelector, Version
from dranet.cel.value import ValueExpression
from dranet.cel.verdict import MAX_EXPRESSION_LENGTH

__all__ = [
    "MAX_EXPRESSION_LENGTH",
    "CelError",
    "DeviceExpression",
    "DeviceSelector",
    "ValueExpression",
    "Version",
]
