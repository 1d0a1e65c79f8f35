"""Kubernetes' device CEL dialect: evaluate expressions about devices and about values in claims.

The rules of the dialect are listed, each with cases, in ``tests/cel/conformance``. What Kubernetes has and
this evaluator lacks is :class:`NotJudged`, never "no match". Kubernetes' cost limit is not enforced; bounds
of our own take its place (:mod:`dranet.cel.checks`). The engine (cel-expr-python) is an optional extra and is
loaded with the first expression. The desk evaluates selectors with it (:mod:`dranet.desk.cel`).
"""

from dranet.cel.expression import MAX_EXPRESSION_LENGTH, DeviceExpression, ValueExpression, Version
from dranet.cel.values import CelError, NotJudged

__all__ = ["MAX_EXPRESSION_LENGTH", "CelError", "DeviceExpression", "NotJudged", "ValueExpression", "Version"]
