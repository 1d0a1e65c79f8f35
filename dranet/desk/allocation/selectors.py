"""Results of selectors for devices: each is evaluated once, for however many nodes and requests."""

from __future__ import annotations

from typing import NamedTuple

from dranet.cel import CelError
from dranet.desk.allocation.devices import Candidate
from dranet.desk.allocation.failures import AllocationError, Cause
from dranet.desk.allocation.requests import Alternative, Selector
from dranet.desk.cel import DeviceValues


class SelectorResult(NamedTuple):
    """The result of the selectors of one alternative for one device."""

    selector: Selector | None = None
    """The first that does not match, or that failed."""
    error: AllocationError | None = None
    """The attempt breaks off when it comes to this device."""

    @property
    def matches(self) -> bool:
        return self.selector is None and self.error is None


_MATCH = SelectorResult()
_Answer = tuple[int, CelError | None]
"""Which selector does not match, or failed and how; -1 if all match."""


class SelectorResults:
    """One for each attempt."""

    def __init__(self) -> None:
        self._values: dict[Candidate, DeviceValues | CelError] = {}
        self._by_expression: dict[tuple[str, Candidate], bool | CelError] = {}
        self._by_expressions: dict[tuple[tuple[str, ...], Candidate], _Answer] = {}
        self._by_alternative: dict[tuple[Alternative, Candidate], SelectorResult] = {}

    def of(self, alternative: Alternative, candidate: Candidate) -> SelectorResult:
        """Never raises: an error counts only when the search comes to the device."""
        key = alternative, candidate
        result = self._by_alternative.get(key)
        if result is None:
            result = self._by_alternative[key] = self._judge(alternative, candidate)
        return result

    def _judge(self, alternative: Alternative, candidate: Candidate) -> SelectorResult:
        """Evaluate the selectors; requests of one pod are often alike, so results are shared by
        expressions."""
        key = alternative.expressions, candidate
        answer = self._by_expressions.get(key)
        if answer is None:
            answer = self._by_expressions[key] = self._ask_all(alternative, candidate)
        index, error = answer
        if error:
            selector = alternative.selectors[index]
            return SelectorResult(selector, _failure(alternative, selector, candidate, error))
        if index >= 0:
            return SelectorResult(alternative.selectors[index])
        return _refuse(alternative, candidate) if candidate.blocker else _MATCH

    def _ask_all(self, alternative: Alternative, candidate: Candidate) -> _Answer:
        for index, selector in enumerate(alternative.selectors):
            answer = self._ask(selector, candidate)
            if isinstance(answer, CelError):
                return index, answer
            if not answer:
                return index, None
        return -1, None

    def _ask(self, selector: Selector, candidate: Candidate) -> bool | CelError:
        if isinstance(selector.program, CelError):
            return selector.program
        key = selector.expression, candidate
        answer = self._by_expression.get(key)
        if answer is None:
            answer = self._by_expression[key] = self._evaluate(selector, candidate)
        return answer

    def _evaluate(self, selector: Selector, candidate: Candidate) -> bool | CelError:
        values = self._values.get(candidate)
        if values is None:
            values = self._values[candidate] = _convert(candidate)
        if isinstance(values, CelError) or isinstance(selector.program, CelError):
            return values if isinstance(values, CelError) else CelError(selector.expression)
        try:
            return selector.program.accepts(values)
        except CelError as error:
            return error


def _refuse(alternative: Alternative, candidate: Candidate) -> SelectorResult:
    """The result for a device that matches but cannot be judged."""
    what = f"request {alternative.name}: {candidate}: {candidate.blocker}"
    cause, device = Cause.NOT_MODELLED, str(candidate)
    return SelectorResult(None, AllocationError(what, cause, request=alternative.name, device=device))


def _convert(candidate: Candidate) -> DeviceValues | CelError:
    if candidate.unreadable:
        return CelError(candidate.unreadable)
    try:
        return DeviceValues(
            candidate.driver, candidate.cel_attributes(), candidate.cel_capacity(), candidate.shared
        )
    except CelError as error:
        return error


def _failure(
    alternative: Alternative, selector: Selector, candidate: Candidate, error: CelError
) -> AllocationError:
    if error is selector.program:
        what, cause = f"selector #{selector.index} of {selector.origin}", Cause.SELECTOR_INVALID
    else:
        what, cause = f"device {candidate}", Cause.SELECTOR_FAILED
    failure = AllocationError(
        f"request {alternative.name}: {what}: {error.message}",
        cause,
        request=alternative.name,
        device=str(candidate),
        hint=error.hint,
    )
    failure.__cause__ = error
    return failure
