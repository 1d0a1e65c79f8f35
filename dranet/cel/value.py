"""What a DeviceClass demands of a value in a claim: an expression over ``value`` and ``claim.namespace``."""

from __future__ import annotations

from dranet.cel.verdict import VALUE, Verdict


class ValueExpression:
    """A compiled demand. Make it with :meth:`compile`; it can be used for any number of values."""

    __slots__ = ("_verdict",)

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    @property
    def expression(self) -> str:
        """As it was given."""
        return self._verdict.expression

    @classmethod
    def compile(cls, expression: str) -> ValueExpression:
        """Check and compile.

        Raises:
            CelError: too long, not CEL, a name that the dialect (or this evaluator) does not have, a result
                that cannot be a bool; MissingFeature where there is no engine.
        """
        return cls(Verdict.compile(expression, VALUE))

    def holds(self, value: object, namespace: str) -> bool:
        """Whether it is true of a JSON value, lists and objects included.

        Raises:
            CelError: a key that the value lacks, a wrong type, a result that is not a bool.
        """
        return self._verdict.holds({"claim.namespace": namespace, "value": value})
