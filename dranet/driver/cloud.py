"""Facts of the cloud about this machine and its place: recognised, asked for now and then, remembered.

The Node object or DMI names the cloud, so that elsewhere nothing is asked. The last answer of this boot is in
the state folder, and a start publishes it at once; the answer of now follows. Nothing waits for the cloud: an
answer that does not come leaves the last one in place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from dranet import files
from dranet.cluster.client import Backoff
from dranet.cluster.nodes import NodeView
from dranet.decoding import decode
from dranet.errors import ProviderError
from dranet.model.attributes import MAC
from dranet.model.device import Device
from dranet.model.facts import ProvidedFacts
from dranet.model.findings import CLOUD, CLOUD_FACTS, Finding, Severity, ok
from dranet.settings import CloudProvider
from dranet.telemetry import CloudMetrics, Outcome

if TYPE_CHECKING:
    from dranet.model.provider import ProvidedConfig
    from dranet.providers.cloud.answers import CloudFacts, Remembered

log = logging.getLogger(__name__)

NODE_SECONDS = 10.0
"""How long the Node object has time before DMI alone decides: a role may not allow to read it."""
ANSWER_SECONDS = 10.0
"""The time limit for all requests of one turn."""
REFRESH_SECONDS = 600.0
"""A live migration moves a machine to another host; a subnet or a label changes more seldom still."""
RETRY_SECONDS = (1.0, 60.0)
_MOST_BYTES = 1 << 20


_NO_CLOUD = (CloudProvider.OFF, CloudProvider.WEBHOOK)


class CloudRules(Struct, frozen=True):
    """The settings."""

    provider: CloudProvider = CloudProvider.AUTO
    labels: tuple[tuple[str, str], ...] = ()
    """Label of the Node and the attribute for its value."""
    sysfs_root: Path = Path("/sys")


class CloudMemory:
    """What the facts are made of, in a file. Blocking, best effort: without it a start publishes twice."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._content = b""

    def read(self) -> Remembered | None:
        """Return what was known in this boot: a machine that was off may have been moved."""
        try:
            content = files.read_file(self._path, _MOST_BYTES)
            known = _decode(content)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be read, so the cloud is asked again: %s", self._path, error)
            return None
        self._content = content
        return known if known.boot_id == self._boot_id else None

    def write(self, provider: CloudProvider, answer: CloudFacts, labels: Mapping[str, str]) -> None:
        from dranet.providers.cloud.answers import Remembered

        known = Remembered(self._boot_id, provider, answer, labels)
        try:
            content = msgspec.json.encode(known, order="deterministic")
        except ValueError as error:
            log.warning("%s is not written, so a restart asks the cloud first: %s", self._path, error)
            return
        if content == self._content:
            return
        if files.save(self._path, content):
            self._content = content

    def forget(self) -> None:
        self._content = b""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", self._path, error)


def _decode(content: bytes) -> Remembered:
    from dranet.providers.cloud.answers import Remembered

    return decode(content, Remembered)


class CloudWatch:
    """Everything but :attr:`facts` is for the event loop."""

    def __init__(
        self,
        rules: CloudRules,
        memory: CloudMemory,
        metrics: CloudMetrics,
        on_change: Callable[[], None],
        ask: Callable[[CloudProvider], Any] | None = None,
        find_ipv6_router: Callable[[str], str] = lambda _: "",
    ) -> None:
        """
        Args:
            find_ipv6_router: returns the router that the kernel has for a link, by its name; may be empty.
            ask: returns the answer of a cloud (``CloudFacts``, awaitable); by default its metadata service.
        """
        self._rules = rules
        self._memory = memory
        self._metrics = metrics
        self._on_change = on_change
        self._ask = ask or _ask_metadata_service
        self._find_ipv6_router = find_ipv6_router
        self._node: NodeView | None = None
        self._node_news = asyncio.Event()
        self._provider = CloudProvider.OFF
        self._answer: CloudFacts | None = None
        self._labels: Mapping[str, str] = {}
        self._failure = ""
        self._problems: frozenset[str] = frozenset()
        self.facts: tuple[ProvidedFacts, ...] = self._recall() if self._is_wanted else ()
        """As known now; replaced as a whole."""

    @property
    def _is_wanted(self) -> bool:
        return self._rules.provider not in _NO_CLOUD or bool(self._rules.labels)

    def _recall(self) -> tuple[ProvidedFacts, ...]:
        known = self._memory.read()
        if known is None or self._rules.provider not in (CloudProvider.AUTO, known.provider):
            return ()
        self._provider, self._answer, self._labels = known.provider, known.answer, known.labels
        return self._combine()

    def note_node(self, node: NodeView) -> None:
        """The Node object, each time that it was read."""
        self._node, self._labels = node, node.labels
        self._node_news.set()
        if self._answer is not None or self._rules.labels:
            self._update()

    def find_config(self, device: Device) -> ProvidedConfig | None:
        """What the cloud's network needs of the device."""
        if self._answer is None:
            return None
        from dranet.model.provider import ProvidedConfig

        mac = str(device.attributes.get(MAC.qualified, "")).lower()
        found = self._answer.find_config(mac, lambda: self._find_ipv6_router(device.ifname))
        return ProvidedConfig(f"the network of {self._provider}", found) if found else None

    async def run(self) -> None:
        """Recognise the cloud, and ask it now and then until cancelled."""
        if not self._is_wanted:
            return
        provider = await self._recognise()
        if provider is not self._provider:
            self._provider, self._answer = provider, None
            self._update()
        if provider in _NO_CLOUD:
            return
        log.info("the node is in a cloud", extra={"context": {"provider": str(provider)}})
        retries = Backoff(*RETRY_SECONDS)
        while True:
            answered = await self._refresh()
            if answered:
                retries.reset()
            await asyncio.sleep(REFRESH_SECONDS if answered else retries.next_seconds())

    async def _recognise(self) -> CloudProvider:
        """Look at each answer about the Node: a cloud's controller writes the provider ID after the node has
        joined."""
        if self._rules.provider is not CloudProvider.AUTO:
            return self._rules.provider
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NODE_SECONDS):
                await self._node_news.wait()
        while (found := self._detect()) is CloudProvider.OFF:
            if self._node is not None and self._provider is not CloudProvider.OFF:
                self._provider, self._answer = CloudProvider.OFF, None
                self._update()  # what is remembered is of a cloud that the node is no longer in
            self._node_news.clear()
            await self._node_news.wait()
        return found

    def _detect(self) -> CloudProvider:
        from dranet.providers.cloud.detect import DmiHints, NodeHints, detect

        node = self._node or NodeView()
        texts = [
            _read_text(self._rules.sysfs_root / "class/dmi/id" / name)
            for name in ("sys_vendor", "chassis_asset_tag")
        ]
        return detect(NodeHints(node.provider_id, node.labels), DmiHints(*texts))

    async def _refresh(self) -> bool:
        provider, outcome = self._provider, Outcome.FAILED
        try:
            if provider is CloudProvider.COREWEAVE:
                self._answer = await self._read_coreweave()
            else:
                self._answer = await self._ask(provider)
            outcome, self._failure = Outcome.SUCCESS, ""
        except ProviderError as error:
            if error.message != self._failure:
                log.warning("the cloud does not answer, its last answer stays published: %s", error)
            self._failure = error.message
            return False
        finally:
            self._metrics.requests.labels(str(provider), outcome).inc()
        self._metrics.answered.labels(str(provider)).set(time.time())
        self._update()
        return True

    async def _read_coreweave(self) -> CloudFacts:
        from dranet.providers.cloud.labels import read_coreweave

        await self._node_news.wait()
        return read_coreweave(self._labels)

    def _update(self) -> None:
        """Take over what is known now."""
        from dranet.providers.cloud.answers import CloudFacts

        facts = self._combine()
        answer = self._answer or CloudFacts()
        if facts or answer.configs or answer.ipv6_routing:
            self._memory.write(self._provider, answer, self._labels)
        else:
            self._memory.forget()
        if facts != self.facts:
            self.facts = facts
            self._on_change()

    def _combine(self) -> tuple[ProvidedFacts, ...]:
        from dranet.model.provider import check_attributes
        from dranet.providers.cloud.answers import CloudFacts
        from dranet.providers.cloud.labels import apply_rule, read_aws, read_coreweave

        answer = self._answer or CloudFacts()
        labels = self._labels
        if self._provider is CloudProvider.COREWEAVE:
            answer = read_coreweave(labels)
        of_labels = read_aws(labels) if self._provider is CloudProvider.AWS else {}
        node = {**answer.node, **of_labels, **apply_rule(self._rules.labels, labels)}
        problems: list[str] = []
        found: list[ProvidedFacts] = []
        groups = [
            ("", "", node),
            *((mac, "", values) for mac, values in sorted(answer.by_mac.items())),
            *(("", rdma, values) for rdma, values in sorted(answer.by_rdma.items())),
        ]
        for mac, rdma, values in groups:
            checked = check_attributes(values)
            problems += checked.problems
            if checked.attributes:
                found.append(ProvidedFacts(mac=mac, rdma_device=rdma, attributes=checked.attributes))
        self._report(problems)
        return tuple(found)

    def _report(self, problems: Iterable[str]) -> None:
        """Log each problem once while it lasts."""
        now = frozenset(problems)
        for problem in sorted(now - self._problems):
            log.warning("the cloud's attribute %s, so it is left out", problem)
        self._problems = now

    def read_findings(self) -> list[Finding]:
        """One for the doctor, where a cloud is asked at all."""
        if self._provider in _NO_CLOUD:
            return []
        if not self._failure:
            count = sum(len(one.attributes) for one in self.facts)
            return [ok(CLOUD, f"{self._provider}: {count} facts about the machine", CLOUD_FACTS)]
        return [
            Finding(
                CLOUD,
                Severity.WARNING,
                f"{self._provider}: {self._failure}",
                "the attributes of the cloud are those of its last answer, or missing; claims that select by "
                "them may stay pending",
                "allow the pod, which is in the node's network, to reach the metadata service; or set "
                "cloud_provider to off",
                CLOUD_FACTS,
            )
        ]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


async def _ask_metadata_service(provider: CloudProvider) -> CloudFacts:
    from dranet.providers.cloud import alibaba, aws, azure, gce, oke
    from dranet.providers.cloud.metadata import ADDRESS, MetadataClient

    readers = {
        CloudProvider.GCE: gce.read,
        CloudProvider.AWS: aws.read,
        CloudProvider.AZURE: azure.read,
        CloudProvider.OKE: oke.read,
        CloudProvider.ALIBABA: alibaba.read,
    }
    address = alibaba.ADDRESS if provider is CloudProvider.ALIBABA else ADDRESS
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await readers[provider](MetadataClient(address))
    except TimeoutError as error:
        raise ProviderError(
            f"metadata service {address}: no whole answer within {ANSWER_SECONDS:g} s"
        ) from error
