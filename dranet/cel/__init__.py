"""Kubernetes' device CEL dialect: does a device match a selector?

One evaluator, for the testbed's scheduler (:class:`DeviceSelector`), for what an operator says of a node's
devices (:class:`DeviceExpression`: the filter, the rules for attributes) and for what a DeviceClass demands
of the values in a claim (:class:`ValueExpression`: its policy). The daemon needs the latter two only.
The engine (cel-expr-python) is an optional extra and is loaded with the first expression.

The dialect, as ``k8s.io/dynamic-resource-allocation/cel`` defines it: the variable ``device`` with
``driver``, ``attributes``, ``capacity`` and ``allowMultipleAllocations``; an unknown domain is an empty map;
a missing attribute is an error, and so is a result that is not a bool. The rules are listed, each with cases,
in ``tests/cel/conformance``. What Kubernetes has and this evaluator has not is :class:`NotJudged`, never "no
match". Not enforced: Kubernetes' cost limit; there are bounds of our own instead (:mod:`dranet.cel.checks`).
"""

from dranet.cel.device import DeviceExpression, Version
from dranet.cel.expression import MAX_EXPRESSION_LENGTH, ValueExpression
from dranet.cel.values import CelError, NotJudged

__all__ = [
    "MAX_EXPRESSION_LENGTH",
    "CelError",
    "DeviceExpression",
    "NotJudged",
    "ValueExpression",
    "Version",
]
