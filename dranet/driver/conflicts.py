"""Whether the addresses of a claim are in use elsewhere: asked at Prepare, from the host's link.

``address_conflicts`` decides what a conflict does. Nothing of this is loaded while it is off.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dranet.driver.executor import NotedThreadPool
from dranet.driver.ipam import Obtained
from dranet.driver.reports.announcer import Announcer
from dranet.errors import DeviceError, KernelError, Reason
from dranet.kernel.conflicts import Conflict, Unprobed, find_conflicts
from dranet.model.plan import AddAddress, PreparedClaim
from dranet.settings import AddressConflicts
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics

if TYPE_CHECKING:
    from dranet.driver.planner import DecodedClaim, DecodedDevice

log = logging.getLogger(__name__)

THREADS = 16
Probe = Callable[[str, Sequence[str], bool], "tuple[Conflict, ...] | Unprobed"]
"""Link, addresses, and whether the link itself will have them."""


class ConflictCheck:
    def __init__(
        self,
        mode: AddressConflicts,
        store: ClaimStore,
        boot_id: str,
        announcer: Announcer,
        metrics: Metrics,
        probe: Probe = find_conflicts,
    ) -> None:
        self._mode = mode
        self._store = store
        self._boot_id = boot_id
        self._announcer = announcer
        self._metrics = metrics.ipam
        self._probe = probe

    async def check(self, decoded: DecodedClaim, obtained: Obtained) -> None:
        """Raises DeviceError (``AddressConflict``) where ``address_conflicts`` is ``refuse``. A network that
        cannot be asked is no reason to refuse."""
        asked = [(device, _addresses_of(device, decoded, obtained)) for device in decoded.devices]
        found = await asyncio.gather(*(self._check(decoded, own, wanted) for own, wanted in asked if wanted))
        texts = [text for one in found for text in one]
        if not texts:
            return
        self._metrics.conflicts.inc(len(texts))
        error = DeviceError(
            "; ".join(texts),
            hint="give the pod another address, or free it there; see docs/networking/address-pools.md",
            reason=Reason.ADDRESS_CONFLICT,
            retryable=True,
        )
        if self._mode is AddressConflicts.REFUSE:
            raise error
        log.warning("addresses in use: %s", error, extra={"context": {"claim": decoded.claim}})
        self._announcer.addresses_in_conflict(decoded.pod, error)

    async def _check(self, decoded: DecodedClaim, device: DecodedDevice, wanted: Sequence[str]) -> list[str]:
        name = device.device.name
        texts = [f"device {name}: {text}" for text in self._find_held(decoded, device, wanted)]
        if device.config.interface.type == "vlan":
            return texts  # its network has no link yet
        try:
            call = functools.partial(self._probe, device.device.ifname, wanted, not device.is_on_top)
            found = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except KernelError as error:
            self._note_unprobed(name, str(error))
            return texts
        if isinstance(found, Unprobed):
            self._note_unprobed(name, found.why)
            return texts
        for conflict in found:
            if conflict.proxy:
                log.info("not a conflict: %s answers for every address (proxy ARP)", conflict.describe())
        return [*texts, *(f"device {name}: {one.describe()}" for one in found if not one.proxy)]

    @functools.cached_property
    def _threads(self) -> NotedThreadPool:
        """A pool of its own: a probe takes most of a second, and must not keep the driver from scanning."""
        return NotedThreadPool(THREADS, thread_name_prefix="probe")

    def _note_unprobed(self, device: str, why: str) -> None:
        self._metrics.unprobed.inc()
        log.warning("device %s: its addresses are not probed for: %s", device, why)

    def _find_held(
        self, decoded: DecodedClaim, device: DecodedDevice, wanted: Sequence[str]
    ) -> Iterator[str]:
        """What other links on top of the same device have, or will have: the kernel does not ask them. The
        caller holds the device, so none comes before this claim is committed."""
        for record in self._store.get_all():
            if record.claim.uid == decoded.claim.uid or record.boot_id != self._boot_id:
                continue
            for address in _planned(record, device.device.name):
                if address in wanted:
                    yield f"{address} is in use by claim {record.claim} (pod {record.pod})"


def _addresses_of(device: DecodedDevice, decoded: DecodedClaim, obtained: Obtained) -> list[str]:
    """What the claim names, or a source gave; what the link has on the host is in use there already, and a
    DHCP server looks after its own."""
    if not device.is_link:
        return []
    answer = obtained.addresses.get(device.key) or decoded.pooled.get(device.key)
    named = answer.addresses if answer is not None else device.config.interface.addresses or ()
    return list(dict.fromkeys(cidr.partition("/")[0] for cidr in named))


def _planned(record: PreparedClaim, device: str) -> Iterable[str]:
    for plan in record.plans:
        if plan.device == device:
            steps = (step for step in plan.steps if isinstance(step, AddAddress))
            yield from (step.address.cidr.partition("/")[0] for step in steps)
