"""What a recording rule and an alert are."""

from __future__ import annotations

from enum import StrEnum

from dranet.dataclass import dataclass


class Severity(StrEnum):
    """Who is told, and when."""

    CRITICAL = "critical"
    """Somebody is woken: many nodes at once, and only a person can mend it."""
    WARNING = "warning"
    """A ticket, for the next working day."""
    INFO = "info"
    """For those who look; nobody has to act."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A series that is computed once for all who ask. Its name is ``level:metric:operations``."""

    name: str
    expr: str
    about: str


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert, and the section of the runbook about it."""

    name: str
    severity: Severity
    wait: str
    """How long it must hold (``for``); empty is not at all."""
    expr: str
    summary: str
    """One line, with labels."""
    meaning: str
    """What has happened, and what it does to pods: for the notification and for the page."""
    command: str
    """The first to type."""
    mend: str
    """What to do about what it shows; Markdown, for the page."""
    refs: tuple[str, ...] = ()
    """Pages of ``docs/user`` that say more."""

    @property
    def anchor(self) -> str:
        """Of its section in the page."""
        return self.name.lower()
