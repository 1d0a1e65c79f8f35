"""What a failed attach takes back: last done, first undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dranet.errors import DranetError

Undo = Callable[[], Iterable[str] | None]
"""Takes one thing back; returns what could not be taken back, one line each, or nothing."""


class UndoStack:
    """The undo of every step that was taken so far, each with the device that it was taken for."""

    def __init__(self) -> None:
        self._undos: list[tuple[str, Undo]] = []

    def later(self, device: str, undo: Undo) -> None:
        """Take this back if a later step fails."""
        self._undos.append((device, undo))

    def run(self) -> tuple[str, ...]:
        """Take everything back, going on after a refusal; returns the problems, each with its device."""
        problems: list[str] = []
        while self._undos:
            device, undo = self._undos.pop()
            try:
                problems += [f"{device}: {problem}" for problem in undo() or ()]
            except DranetError as error:
                problems.append(f"{device}: {error.message}")
        return tuple(problems)
