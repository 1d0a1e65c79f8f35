"""Examples on the testbed: applied, expanded, scheduled, attached by the real driver, judged, given back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from dranet.cluster import paths
from dranet.kernel.namespaces.netns import NetworkNamespace
from testbed.cluster import DRIVER_NAME, NAMESPACE, Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in
from testbed.scenario.on_testbed import OnTestbed
from testbed.scenario.scenario import (
    DeletePods,
    ExpectClaimCondition,
    ExpectHostUnchanged,
    ExpectInPod,
    ExpectNodeLink,
    ExpectVerdict,
    WaitPodRunning,
)
from testbed.scenario.steps import perform
from testbed.scenario.walk import Walk
from tests.data.gpu_drivers import (
    COMPUTE_DOMAIN,
    MIG_3G,
    Driver,
    compute_domain_devices,
    device_classes,
    nvidia_mig_0_4,
)
from tests.data.layouts import read_gpus
from tests.examples.controllers import make_pods, make_templates
from tests.examples.table import CLASSES, DGX, EXAMPLES, FOLDER, Example, Wanted
from tests.support.dhcp_servers import ScriptedServer, good_answers
from tests.support.namespaces import Namespace

JsonObject = dict[str, Any]

_SERVED = ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "Pod")
_DEADLINE = 60.0
CANNOT_RUN_HERE = 3
"""As the private trees of tests say it."""


def read_objects(file: Path) -> list[JsonObject]:
    return [item for item in yaml.safe_load_all(file.read_text()) if item]


def run_examples(hardware: str, beside: str = "", *, only: slice = slice(None)) -> None:
    """Run those of a kind, one after another on one node; ends the private tree, and so skips the test, where
    the kernel lacks what an example needs."""
    chosen = [example for example in EXAMPLES if (example.hardware, example.beside) == (hardware, beside)]
    for example in chosen[only]:
        if not _is_known(example.link_kind):
            sys.stdout.write(f"{example.file}: this kernel makes no {example.link_kind}\n")
            sys.exit(CANNOT_RUN_HERE)
    asyncio.run(_run(hardware, beside, chosen[only]))


def _is_known(link_kind: str) -> bool:
    """Whether the running kernel can make links of a kind; asked in this private tree."""
    if not link_kind:
        return True
    subprocess.run(["ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"], check=True)
    made = subprocess.run(
        ["ip", "link", "add", "link", "probe0", "name", "probe2", "type", link_kind], capture_output=True
    )
    subprocess.run(["ip", "link", "delete", "probe0"], check=True)
    return made.returncode == 0


async def _run(hardware: str, beside: str, examples: Sequence[Example]) -> None:
    async with Testbed(load_hardware(hardware), stand_in, WORK_DIR) as testbed:
        walk = Walk(OnTestbed(testbed), await asyncio.to_thread(testbed.node.snapshot))
        await testbed.apply(read_objects(CLASSES))
        with ExitStack() as stack:
            await _add_neighbour(testbed, beside, stack)
            settings: Mapping[str, str] | None = None
            for example in examples:
                try:
                    if example.settings != settings:
                        await _start_driver(testbed, example.settings)
                        settings = example.settings
                    await _run_example(testbed, walk, example)
                except Exception as error:
                    error.add_note(f"in {example.file}; the driver said:\n{testbed.driver.log_tail()}")
                    raise


async def _add_neighbour(testbed: Testbed, beside: str, stack: ExitStack) -> None:
    """Whoever else is on the node, or on its network."""
    if beside in ("vendor", "mig"):
        await testbed.add_vendor(str(Driver.NVIDIA), _halves() if beside == "mig" else ())
        await testbed.add_vendor(COMPUTE_DOMAIN, compute_domain_devices())
        await testbed.apply(device_classes())
    if beside == "plugin":
        placed = testbed.hardware.placed()
        uuids = [one.function.gpu.uuid for one in placed if one.function.gpu]
        testbed.kubelet.add_device_plugin("nvidia.com/gpu", uuids, "NVIDIA_VISIBLE_DEVICES")
        testbed.kubelet.add_device_plugin("openshift.io/storage_vfs", ["0000:81:00.1"])
    if beside == "dhcp":
        netns = stack.enter_context(NetworkNamespace.open(Path("/run/netns/fabric")))
        answer = partial(good_answers, address="10.64.0.50", server="10.64.0.254")
        stack.enter_context(ScriptedServer(Namespace("fabric", netns), "br-rail0", answer))


def _halves() -> list[JsonObject]:
    """The GPUs of a DGX H100 as two MIG devices each."""
    return [nvidia_mig_0_4(gpu, MIG_3G, start) for gpu in read_gpus(DGX) for start in MIG_3G.starts]


async def _start_driver(testbed: Testbed, settings: Mapping[str, str]) -> None:
    if testbed.driver.is_running:
        await testbed.driver.stop()
    await testbed.driver.start(settings)
    await testbed.driver.wait_ready(_DEADLINE)


async def _run_example(testbed: Testbed, walk: Walk, example: Example) -> None:
    objects = read_objects(FOLDER / example.file)
    objects += make_templates(objects)
    pods = make_pods(objects)
    assert [pod["metadata"]["name"] for pod in pods] == list(example.pods), example.file
    await testbed.apply([item for item in objects if item["kind"] in _SERVED and item["kind"] != "Pod"])
    for some in [[pod] for pod in pods] if example.takes_node else [pods]:
        await _run_pods(testbed, walk, example, some)
    await _forget(testbed, objects)


async def _run_pods(testbed: Testbed, walk: Walk, example: Example, pods: Sequence[JsonObject]) -> None:
    names = tuple(pod["metadata"]["name"] for pod in pods)
    await testbed.apply(pods)
    await perform(walk, WaitPodRunning(pods=names, within=_DEADLINE))
    for name in names:
        await _judge(testbed, walk, example, name, example.pods[name])
    if example.node_keeps:
        await perform(walk, ExpectNodeLink(name=example.node_keeps, up=True))
    await perform(walk, DeletePods(pods=names))
    await perform(walk, ExpectHostUnchanged())


async def _judge(testbed: Testbed, walk: Walk, example: Example, pod: str, wanted: Wanted) -> None:
    """Everything that the table says of one pod."""
    sandbox = testbed.sandbox(pod)
    assert sandbox is not None, pod
    moved = await asyncio.to_thread(testbed.node.nics_in, sandbox.netns_path)
    (container, *_) = testbed.containers(pod).values()
    verbs = [path for path in container.devices if path.startswith("/dev/infiniband/uverbs")]
    gpus = [path for path in container.devices if path.removeprefix("/dev/nvidia").isdecimal()]
    found = (len(moved), len(gpus), None if wanted.verbs is None else len(verbs))
    assert found == (wanted.nics, wanted.gpus, wanted.verbs), (example.file, pod, "NICs, GPUs, verbs", found)
    assert container.env.keys() >= set(wanted.environment), (example.file, pod, container.env)
    for command, texts in wanted.shows.items():
        await perform(walk, ExpectInPod(pod=pod, command=tuple(command.split()), has=texts))
    if wanted.distance:
        await perform(walk, ExpectVerdict(pods=(pod,), distance=wanted.distance))
    if wanted != Wanted():
        await _expect_ready(walk, example, pod)


async def _expect_ready(walk: Walk, example: Example, pod: str) -> None:
    """Every device of ours says so; what says nothing is another driver's."""
    for claim in await walk.cluster.fetch_pod_claims(pod):
        results = claim["status"]["allocation"]["devices"]["results"]
        if all(result["driver"] == DRIVER_NAME for result in results):
            name = claim["metadata"]["name"]
            ready = ExpectClaimCondition(claim=name, type="Ready", status="True", reason=example.reason)
            await perform(walk, ready)


async def _forget(testbed: Testbed, objects: Sequence[JsonObject]) -> None:
    """Claims and templates go with their example: the next may have one of the same name."""
    path_of = {
        "ResourceClaim": paths.resource_claim,
        "ResourceClaimTemplate": paths.resource_claim_template,
    }
    for item in objects:
        if build := path_of.get(item["kind"]):
            await testbed.api.delete(build(NAMESPACE, item["metadata"]["name"]))
