"""Where the time of a pod goes: the steps that the kubelet and the driver count in their own metrics.

Both keep sums of seconds. One pod runs at a time, so what a sum grows by between two readings is that pod's.
Steps overlap and contain each other: a hook of the driver is a part of the kubelet's call of the runtime.
"""

from __future__ import annotations

import json
import ssl
import statistics
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.measure import read_processor_seconds
from dranet.terminal import format_table
from e2e.cluster.config import NODE_ADDRESS

DRIVER_METRICS = "http://127.0.0.1:9177/metrics"
KUBELET_METRICS = f"https://{NODE_ADDRESS}:10250/metrics"


class Step(NamedTuple):
    """One sum of a histogram."""

    title: str
    metric: str
    label: str = ""
    value: str = ""


_RUNTIME = "kubelet_runtime_operations_duration_seconds"
_DRA = "dra_operations_duration_seconds"
_CALLS = "dra_grpc_operations_duration_seconds"
_PHASES = "dranet_claim_prepare_phase_seconds"
_HOOKS = "dranet_driver_nri_plugin_requests_latency_seconds"
_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_PROCESSOR = "processor"
_SHOWN = 0.05
"""Milliseconds; a step below that in every kind is left out."""

STARTS = (
    Step("kubelet: prepare all claims", _DRA, "operation_name", "PrepareResources"),
    Step("  call of NodePrepareResources", _CALLS, "method_name", f"{_SERVICE}/NodePrepareResources"),
    Step("    driver: Prepare", "dranet_claim_prepare_seconds"),
    *(
        Step(f"    driver: {phase}", _PHASES, "phase", phase)
        for phase in ("wait", "fetch", "decode", "lease", "plan", "store", "files")
    ),
    Step("kubelet: RunPodSandbox", _RUNTIME, "operation_type", "run_podsandbox"),
    Step("  driver: hook", _HOOKS, "method", "RunPodSandbox"),
    *(
        Step(f"    kernel: {step}", "dranet_attach_step_seconds", "step", step)
        for step in (
            *("move-link", "set-link", "set-ethtool", "set-sysctl", "remove-programs", "add-address"),
            *("set-up", "add-route", "add-neighbour", "add-rule", "move-rdma"),
        )
    ),
    Step("kubelet: CreateContainer", _RUNTIME, "operation_type", "create_container"),
    Step("  driver: hook", _HOOKS, "method", "CreateContainer"),
    Step("kubelet: StartContainer", _RUNTIME, "operation_type", "start_container"),
    Step("  driver: hook", _HOOKS, "method", "StartContainer"),
    Step("driver: all commits of the store", "dranet_store_write_seconds"),
)
ENDS = (
    Step("kubelet: StopContainer", _RUNTIME, "operation_type", "stop_container"),
    Step("kubelet: StopPodSandbox", _RUNTIME, "operation_type", "stop_podsandbox"),
    Step("  driver: hook", _HOOKS, "method", "StopPodSandbox"),
    Step("driver: devices returned", "dranet_detach_seconds"),
    Step("kubelet: unprepare all claims", _DRA, "operation_name", "UnprepareResources"),
    Step("  call of NodeUnprepareResources", _CALLS, "method_name", f"{_SERVICE}/NodeUnprepareResources"),
    Step("    driver: Unprepare", "dranet_claim_unprepare_seconds"),
    Step("driver: all commits of the store", "dranet_store_write_seconds"),
)
PROCESSORS = tuple(
    Step(program, _PROCESSOR)
    for program in (
        *("kubelet", "containerd", "dranet"),
        *("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager"),
    )
)
"""The processor time of whole programs. They share two cores, so one that works makes others wait."""


class Meters:
    """Reads both pages of metrics, and the processor time of programs.

    ``kubeconfig`` is an administrator's. ``pids`` has the process of each title of :data:`PROCESSORS`.
    """

    def __init__(self, kubeconfig: Path, pids: Mapping[str, int]) -> None:
        self._pids = pids
        user = json.loads(kubeconfig.read_text())["users"][0]["user"]
        self._kubelet = urllib.request.Request(
            KUBELET_METRICS, headers={"Authorization": f"Bearer {user['token']}"}
        )
        self._trust = ssl.create_default_context()
        self._trust.check_hostname = False
        self._trust.verify_mode = ssl.CERT_NONE  # it has signed its certificate itself

    def read(self) -> dict[Step, float]:
        """Milliseconds of every step since the two programs started. Blocking."""
        with urllib.request.urlopen(self._kubelet, timeout=10, context=self._trust) as answer:
            text = str(answer.read(), "utf-8")
        with urllib.request.urlopen(DRIVER_METRICS, timeout=10) as answer:
            text += str(answer.read(), "utf-8")
        return _sum(text)

    def read_processors(self) -> dict[Step, float]:
        """Milliseconds of processor time since the programs started."""
        return {step: read_processor_seconds(self._pids[step.title]) * 1000 for step in PROCESSORS}


def _sum(text: str) -> dict[Step, float]:
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    by_name: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append((sample.labels, sample.value))
    return {
        step: 1000
        * sum(
            value
            for labels, value in by_name.get(f"{step.metric}_sum", ())
            if not step.label or labels.get(step.label) == step.value
        )
        for step in (*STARTS, *ENDS)
    }


def subtract(after: Mapping[Step, float], before: Mapping[Step, float]) -> dict[Step, float]:
    """What one pod has added."""
    return {step: after[step] - before[step] for step in after}


def build_profile(
    title: str, steps: Sequence[Step], pods: Mapping[str, Sequence[Mapping[Step, float]]]
) -> str:
    """A table of medians in milliseconds, a column for each kind of pod."""
    rows = []
    for step in steps:
        medians = [statistics.median(pod[step] for pod in seen) for seen in pods.values()]
        if max(medians) >= _SHOWN:
            rows.append((step.title, *(f"{median:.1f}" for median in medians)))
    blocks = format_table((title, *pods), rows)
    return "\n".join(line.rstrip() for block in blocks for line in block)
