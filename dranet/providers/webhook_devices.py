"""What a webhook provider knows about the node's devices: asked in the background, never in a scan.

A device is asked about when its identity is new, and again now and then. An answer stays until the next good
one: also while the provider is away, and after a restart of the driver (``<state_dir>/webhook.json``). While
the provider is away only its health is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dranet import files
from dranet.decoding import decode
from dranet.errors import ProviderError, Reason
from dranet.model.attributes import DOMAIN
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import ProvidedAttribute, ProvidedFacts
from dranet.model.provider import CheckedAttributes, DeviceIdentity, check_attributes, identify
from dranet.providers.webhook import WebhookCapabilities, WebhookClient

log = logging.getLogger(__name__)

HEALTH_SECONDS = 30.0
"""How often the provider's health is asked for, and the longest pause between tries while it is away."""
FIRST_RETRY_SECONDS = 1.0
PARALLEL = 4
"""Devices that are asked about at a time."""
_FORMAT = 1
_MAX_BYTES = 64 << 20


class Answer(Struct, frozen=True):
    """The last good answers about a device."""

    device: DeviceIdentity
    attributes: tuple[ProvidedAttribute, ...] | None = None
    """``None``: not answered yet."""
    config: Mapping[str, Any] | None = None
    """``None``: not answered yet."""
    answered_at: float = 0.0
    """Unix time since which both are as the provider has them; 0: never."""

    def is_about(self, device: DeviceIdentity) -> bool:
        """A name stays when another NIC takes the slot; the interface may be renamed."""
        return (self.device.mac, self.device.pci_address) == (device.mac, device.pci_address)


class _File(Struct):
    format: int
    url: str
    answers: dict[str, Answer]


class Observer(Protocol):
    """Shows how the provider does (``telemetry.WebhookMetrics``)."""

    def is_up(self, url: str, up: bool) -> None: ...

    def oldest_answer(self, url: str, unix_time: float) -> None: ...


class WebhookDevices:
    """Lives on the event loop; :attr:`facts` and :meth:`find_config` may be used in any thread."""

    def __init__(
        self,
        client: WebhookClient,
        needs: WebhookCapabilities,
        get_devices: Callable[[], Iterable[Device]],
        on_change: Callable[[], None],
        observer: Observer,
        file: Path,
        refresh_seconds: float,
    ) -> None:
        """
        Args:
            client: of the provider.
            needs: what the settings ask of it; without the first it is not asked about devices.
            get_devices: those on offer, as of the last scan.
            on_change: called when :attr:`facts` are others.
            observer: of the provider's health.
            file: keeps the answers for the next start.
            refresh_seconds: when to ask again about a device that has not changed.
        """
        self._client = client
        self._needs = needs
        self._get_devices = get_devices
        self._on_change = on_change
        self._observer = observer
        self._file = file
        self._refresh_seconds = refresh_seconds
        self._answers = self._read_file()
        self._due: dict[str, float] = {}
        """When to ask about a device again, on the loop's clock. None for a device that is not here."""
        self._gone_since: dict[str, float] = {}
        """Devices with an answer that are not offered, on the same clock."""
        self._saved = _timeless(self._answers)
        """As in the file."""
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._news = asyncio.Event()
        self._next_health = 0.0
        self._problems: dict[str, str] = {}
        """By device: what is wrong with its last answers; empty when nothing is."""
        self.problem = ""
        """Why the provider is away; empty while it answers."""
        self.facts = self._build_facts()
        """Replaced as a whole."""

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def has_configs(self) -> bool:
        """Whether it is asked about devices at all."""
        return self._needs.cloud_provider

    def scanned(self) -> None:
        """There may be new devices."""
        self._news.set()

    def find_config(self, device: Device) -> Mapping[str, Any] | None:
        """What the provider wants for the device; ``None`` for a GPU, about which it is not asked.

        Raises:
            ProviderError: it has not answered yet. Without its config a NIC would not work as intended.
        """
        if device.kind is DeviceKind.GPU:
            return None
        answer = self._answers.get(device.name)
        if answer is not None and answer.config is not None and answer.is_about(identify(device)):
            return answer.config
        cause = self._problems.get(device.name) or self.problem or "it is being asked"
        raise ProviderError(
            f"device {device.name}: the webhook provider {self._client.url} has not answered yet how to "
            f"configure it: {cause}",
            hint="this is retried",
        )

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            self._news.clear()
            pause = await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()

    async def _look(self) -> float:
        """Ask what is due. Returns after how many seconds to look again, unless a scan comes first."""
        clock = asyncio.get_running_loop().time
        due = self._find_due(clock())
        if clock() >= self._next_health or (due and not self.problem):
            self._next_health = clock() + await self._ask_all(due)
        next_due = self._next_health if self.problem else min([self._next_health, *self._due.values()])
        return max(0.0, next_due - clock())

    async def _ask_all(self, devices: Iterable[DeviceIdentity]) -> float:
        """Returns after how many seconds to ask for the provider's health again."""
        try:
            await self._check_health()
        except ProviderError as error:
            return self._note_away(error)
        if self.problem:
            log.info("the webhook provider %s answers again", self._client.url)
        self.problem, self._retry_seconds = "", FIRST_RETRY_SECONDS
        self._observer.is_up(self._client.url, True)
        turn = asyncio.Semaphore(PARALLEL)
        await asyncio.gather(*(self._ask(device, turn) for device in devices))
        await self._note_answers()
        return HEALTH_SECONDS

    async def _check_health(self) -> None:
        offered, needed = await self._client.read_capabilities(), self._needs
        names = {
            "cloudProvider": needed.cloud_provider and not offered.cloud_provider,
            "profileProvider": needed.profile_provider and not offered.profile_provider,
        }
        missing = [name for name, is_missing in names.items() if is_missing]
        if missing:
            raise ProviderError(
                f"webhook provider {self._client.url}: /health: it has no {' and no '.join(missing)}",
                hint="correct cloud_provider or profile_provider, or the provider",
                reason=Reason.PROVIDER_REFUSED,
            )

    def _note_away(self, error: ProviderError) -> float:
        if str(error) != self.problem:
            log.warning("%s; its last answers stay", error)
        self.problem = str(error)
        self._observer.is_up(self._client.url, False)
        pause = self._retry_seconds
        self._retry_seconds = min(2 * pause, HEALTH_SECONDS)
        return random.SystemRandom().uniform(pause / 2, pause)

    def _find_due(self, now: float) -> list[DeviceIdentity]:
        """The devices to ask about. Those that are in a pod are not asked about, and keep their answers."""
        offered = {one.name: one for one in self._get_devices() if one.kind is not DeviceKind.GPU}
        self._forget_gone(offered, now)
        here = {name: identify(one) for name, one in offered.items() if _is_here(one)}
        # A device is asked about as soon as it is back: a time in the past would leave no pause meanwhile.
        self._due = {name: due for name, due in self._due.items() if name in here}
        for name, device in offered.items():
            answer = self._answers.get(name)
            if answer is not None and not answer.is_about(identify(device)):
                del self._answers[name]
                self._due.pop(name, None)
        return [identity for name, identity in here.items() if self._due.get(name, now) <= now]

    def _forget_gone(self, offered: Container[str], now: float) -> None:
        """A device that is not offered loses its answers after a refresh; also those of an earlier driver."""
        gone = [name for name in self._answers if name not in offered]
        self._gone_since = {name: self._gone_since.get(name, now) for name in gone}
        for name, since in self._gone_since.items():
            if now - since >= self._refresh_seconds:
                del self._answers[name]
                self._problems.pop(name, None)

    async def _ask(self, device: DeviceIdentity, turn: asyncio.Semaphore) -> None:
        """Both questions; one that fails leaves its last good answer."""
        answer = self._answers.get(device.name) or Answer(device)
        problems: list[str] = []
        async with turn:
            attributes = await _try(self._client.read_attributes(device), problems)
            config = await _try(self._client.read_config(device), problems)
        pause = min(self._refresh_seconds, HEALTH_SECONDS) if problems else self._refresh_seconds
        if not problems:
            answer = replace(answer, answered_at=time.time())
        if attributes is not None:
            checked = parse_attributes(attributes)
            problems += checked.problems
            answer = replace(answer, device=device, attributes=checked.attributes)
        if config is not None:
            answer = replace(answer, device=device, config=config)
        self._answers[device.name] = answer
        self._due[device.name] = asyncio.get_running_loop().time() + pause
        problem = "; ".join(problems)
        if problem and self._problems.get(device.name) != problem:  # once while it lasts
            log.warning("webhook provider: device %s: %s", device.name, problem)
        self._problems[device.name] = problem

    async def _note_answers(self) -> None:
        times = [answer.answered_at for name, answer in self._answers.items() if name in self._due]
        self._observer.oldest_answer(self._client.url, min(times, default=time.time()))
        facts = self._build_facts()
        if facts != self.facts:
            self.facts = facts
            self._on_change()
        if (known := _timeless(self._answers)) != self._saved:
            self._saved = known
            await asyncio.to_thread(self._write_file, dict(self._answers))

    def _build_facts(self) -> tuple[ProvidedFacts, ...]:
        return tuple(
            ProvidedFacts(device=name, attributes=answer.attributes)
            for name, answer in sorted(self._answers.items())
            if answer.attributes
        )

    # --- the file ---

    def _read_file(self) -> dict[str, Answer]:
        """Best effort: what cannot be read is asked again."""
        try:
            known = decode(files.read_file(self._file, _MAX_BYTES), _File)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be read, the webhook provider is asked again: %s", self._file, error)
            return {}
        return known.answers if (known.format, known.url) == (_FORMAT, self._client.url) else {}

    def _write_file(self, answers: dict[str, Answer]) -> None:
        content = json.dumps(msgspec.to_builtins(_File(_FORMAT, self._client.url, answers))).encode()
        files.save(self._file, content)


def _is_here(device: Device) -> bool:
    """Not in a pod."""
    return bool(device.ifname) or device.kind is DeviceKind.RDMA


async def _try(question: Awaitable[Mapping[str, Any]], problems: list[str]) -> Mapping[str, Any] | None:
    try:
        return await question
    except ProviderError as error:
        problems.append(str(error))
        return None


def parse_attributes(answer: Mapping[str, Any]) -> CheckedAttributes:
    """The attributes of a device, as in a ResourceSlice."""
    return check_attributes({_qualify(name): _unwrap(value) for name, value in answer.items()})


def _qualify(name: str) -> str:
    """A name without a domain is in the driver's own, as in a ResourceSlice."""
    return name if "/" in name else f"{DOMAIN}/{name}"


def _unwrap(value: object) -> object:
    """The value of a DeviceAttribute (``{"string": "a"}``), to be checked; ``None`` for other kinds."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, inner),) = value.items()
        is_right = {"string": str, "int": int, "bool": bool}.get(kind) is type(inner)
        return inner if is_right else None
    return None


def _timeless(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    return {name: replace(answer, answered_at=0.0) for name, answer in answers.items()}
