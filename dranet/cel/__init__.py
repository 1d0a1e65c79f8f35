"""Kubernetes' device CEL dialect: evaluate expressions about devices and about values in claims.

The desk evaluates selectors with it (:mod:`dranet.desk.cel`). The engine (cel-expr-python) is an optional
extra and is loaded with the first expression.

The dialect, as ``k8s.io/dynamic-resource-allocation/cel`` defines it: the variable ``device`` with
``driver``, ``attributes``, ``capacity`` and ``allowMultipleAllocations``; an unknown domain is an empty map;
a missing attribute is an error, and so is a result that is not a bool. The rules are listed, each with cases,
in ``tests/cel/conformance``. What Kubernetes has and this evaluator lacks is :class:`NotJudged`, never "no
match". Kubernetes' cost limit is not enforced; bounds of our own take its place (:mod:`dranet.cel.checks`).
"""

from dranet.cel.expression import MAX_EXPRESSION_LENGTH, DeviceExpression, ValueExpression, Version
from dranet.cel.values import CelError, NotJudged

__all__ = ["MAX_EXPRESSION_LENGTH", "CelError", "DeviceExpression", "NotJudged", "ValueExpression", "Version"]
