"""What the kubelet is told of devices whose links are on their way into a pod, on their way home, or off.

The kubelet syncs a pod anew with each change that it hears of one of its devices, and nothing else happens to
the pod, its end included, until it has looked at the runtime again: a second later at most. A link that moves
is off or out of sight for milliseconds, and one that nobody has is often off. Neither is news for a pod: a
device that was well is told as well until more is known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dranet.kubelet.health import DeviceHealthFact

UNKNOWN_SECONDS = 10.0
"""A link that is off, or out of sight, for so long in a pod is told as it is. Faults wait as long."""


class ToldHealth:
    """The last word on each device that was well."""

    def __init__(self) -> None:
        self._well: dict[str, DeviceHealthFact] = {}
        self._unknown_since: dict[str, float] = {}

    def settle(
        self, facts: Sequence[DeviceHealthFact], in_pods: Collection[str], now: float
    ) -> tuple[DeviceHealthFact, ...]:
        """The facts as the kubelet is to hear them. ``in_pods`` are the devices that were moved into one."""
        unknown = {fact.device for fact in facts if fact.healthy is None}
        self._unknown_since = {name: self._unknown_since.get(name, now) for name in unknown & {*in_pods}}
        late = {name for name, since in self._unknown_since.items() if now - since >= UNKNOWN_SECONDS}
        kept = {name: fact for name, fact in self._well.items() if name in unknown - late}
        self._well = kept | {fact.device: fact for fact in facts if fact.healthy}
        return tuple(kept.get(fact.device, fact) for fact in facts)
