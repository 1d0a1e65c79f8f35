"""Facts of the cloud about this machine and its place: recognised, asked for now and then, remembered.

The Node object or DMI names the cloud, so that elsewhere nothing is asked. The last answer of this boot is in
the state folder, and a start publishes it at once; the answer of now follows. Nothing waits for the cloud: an
answer that does not come leaves the last one in place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from dranet import files
from dranet.cluster.client import Backoff
from dranet.cluster.nodes import NodeView
from dranet.errors import ProviderError
from dranet.model.attributes import MAC
from dranet.model.device import Device
from dranet.model.facts import ProvidedFacts
from dranet.model.findings import CLOUD, CLOUD_FACTS, Finding, Severity, ok
from dranet.settings import CloudProvider
from dranet.telemetry import CloudMetrics, Outcome

if TYPE_CHECKING:
    from dranet.model.provider import ProvidedConfig
    from dranet.providers.cloud.answers import CloudFacts

log = logging.getLogger(__name__)

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


class _Remembered(Struct):
    boot_id: str
    facts: tuple[ProvidedFacts, ...]


class CloudMemory:
    """The last answers, in a file. Blocking, best effort: without it a start publishes twice."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id

    def read(self) -> tuple[ProvidedFacts, ...]:
        """Return the answers of this boot: a machine that was off may have been moved."""
        try:
            found = msgspec.json.decode(files.read_file(self._path, _MOST_BYTES), type=_Remembered)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be read, so the cloud is asked again: %s", self._path, error)
            return ()
        return found.facts if found.boot_id == self._boot_id else ()

    def write(self, facts: tuple[ProvidedFacts, ...]) -> None:
        try:
            if not facts:
                self._path.unlink(missing_ok=True)
                return
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=files.FOLDER_MODE)
            content = msgspec.json.encode(_Remembered(self._boot_id, facts), order="deterministic")
            files.replace_file(self._path, self._path.with_suffix(".new"), content)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)


class CloudWatch:
    """Everything but :attr:`facts` is for the event loop."""

    def __init__(
        self,
        rules: CloudRules,
        memory: CloudMemory,
        metrics: CloudMetrics,
        on_change: Callable[[], None],
        ask: Callable[[CloudProvider], Any] | None = None,
    ) -> None:
        """
        Args:
            ask: returns the answer of a cloud (``CloudFacts``, awaitable); by default its metadata service.
        """
        self._rules = rules
        self._memory = memory
        self._metrics = metrics
        self._on_change = on_change
        self._ask = ask or _ask_metadata_service
        self._node: NodeView | None = None
        self._node_is_known = asyncio.Event()
        self._provider = CloudProvider.OFF
        self._answer: CloudFacts | None = None
        self._failure = ""
        self._problems: frozenset[str] = frozenset()
        self.facts: tuple[ProvidedFacts, ...] = memory.read() if self._is_wanted else ()
        """As known now; replaced as a whole."""

    @property
    def _is_wanted(self) -> bool:
        return self._rules.provider not in _NO_CLOUD or bool(self._rules.labels)

    def note_node(self, node: NodeView) -> None:
        """The Node object, each time that it was read."""
        self._node = node
        self._node_is_known.set()
        if self._answer is not None or self._rules.labels:
            self._combine()

    def find_config(self, device: Device) -> ProvidedConfig | None:
        """What the cloud's network needs of the device."""
        if self._answer is None or not self._answer.configs:
            return None
        from dranet.model.provider import ProvidedConfig

        mac = str(device.attributes.get(MAC.qualified, "")).lower()
        found = self._answer.configs.get(mac)
        return ProvidedConfig(f"the network of {self._provider}", found) if found else None

    async def run(self) -> None:
        """Recognise the cloud, and ask it now and then until cancelled."""
        if not self._is_wanted:
            return
        self._provider = await self._recognise()
        if self._provider in _NO_CLOUD:
            if not self._rules.labels:
                self._set(())
            return
        log.info("the node is in a cloud", extra={"context": {"provider": str(self._provider)}})
        retries = Backoff(*RETRY_SECONDS)
        while True:
            answered = await self._refresh()
            if answered:
                retries.reset()
            await asyncio.sleep(REFRESH_SECONDS if answered else retries.next_seconds())

    async def _recognise(self) -> CloudProvider:
        if self._rules.provider is not CloudProvider.AUTO:
            return self._rules.provider
        from dranet.providers.cloud.detect import DmiHints, NodeHints, detect

        await self._node_is_known.wait()
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
        self._combine()
        return True

    async def _read_coreweave(self) -> CloudFacts:
        from dranet.providers.cloud.labels import read_coreweave

        await self._node_is_known.wait()
        return read_coreweave(self._node.labels if self._node else {})

    def _combine(self) -> None:
        from dranet.model.provider import check_attributes
        from dranet.providers.cloud.answers import CloudFacts
        from dranet.providers.cloud.labels import apply_rule, read_aws, read_coreweave

        answer = self._answer or CloudFacts()
        labels = self._node.labels if self._node else {}
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
        self._set(tuple(found))

    def _report(self, problems: Iterable[str]) -> None:
        """Log each problem once while it lasts."""
        now = frozenset(problems)
        for problem in sorted(now - self._problems):
            log.warning("the cloud's attribute %s, so it is left out", problem)
        self._problems = now

    def _set(self, facts: tuple[ProvidedFacts, ...]) -> None:
        if facts == self.facts:
            return
        self.facts = facts
        self._memory.write(facts)
        self._on_change()

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
    return await readers[provider](MetadataClient(address))
