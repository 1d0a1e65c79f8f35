"""What the API server, the kubelet and the runtime can do, as asked and seen while the driver runs.

Nothing here is inferred from a version, and nothing here makes the driver unready: every optional feature
degrades to its absence. ``/readyz?verbose`` and ``dranet doctor`` name the feature gate
to turn on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from dranet.cluster.capabilities import ApiCapabilities, Support
from dranet.cluster.slice_plan import Feature
from dranet.driver.ipam import IpamState
from dranet.driver.virtual_functions import PfState
from dranet.inventory.offer import ServedGpus
from dranet.kubelet.plugin import KubeletCapabilities
from dranet.model.findings import (
    API,
    API_FIELD,
    DEFAULT_REQUEST_TIMEOUT_SECONDS,
    DRA_SERVICE,
    GPU_OFFER,
    GPUS,
    IPAM,
    IPAM_CHECK,
    IPAM_RELEASE,
    IPAM_SOURCE,
    KUBELET,
    KUBELET_HEALTH,
    PATIENCE,
    REGISTRATION,
    RUNTIME,
    RUNTIME_CDI,
    RUNTIME_NRI,
    VF_COUNT,
    VIRTUAL_FUNCTIONS,
    Finding,
    Severity,
    ok,
)
from dranet.runtime.nri import RuntimeCapabilities
from dranet.settings import HealthTaints, PublishGpus, Settings

_MATTERS: Mapping[Feature, str] = {
    Feature.TAINTS: "the scheduler goes on giving out a NIC whose link is down",
    Feature.OBSERVED_TAINTS: "a trial of health taints (effect None) shows nothing",
    Feature.SHARED_DEVICES: "a device goes to one claim only, although --shared-devices names it",
    Feature.BANDWIDTH: "default_bandwidth has no effect: no bandwidth is counted, and no share is limited",
    Feature.LIST_ATTRIBUTES: "resource.kubernetes.io/numaNode is one number and cannot match a list",
    Feature.COUNTERS: "the scheduler gives out a physical function while pods have its virtual functions; "
    "the driver refuses the later claim",
}
_SETTINGS: Mapping[Feature, str] = {
    Feature.TAINTS: "--health-taints=off",
    Feature.OBSERVED_TAINTS: "--health-taints=NoSchedule",
    Feature.SHARED_DEVICES: "an empty --shared-devices",
    Feature.BANDWIDTH: "no --default-bandwidth",
    Feature.LIST_ATTRIBUTES: "--list-attributes=false",
    Feature.COUNTERS: "a --filter that offers the virtual functions only",
}


def judge_all(
    settings: Settings,
    api: ApiCapabilities | None,
    kubelet: KubeletCapabilities,
    runtime: RuntimeCapabilities,
    served: ServedGpus | None = None,
    ipam: IpamState | None = None,
) -> list[Finding]:
    """``served`` is ``None`` for a node without GPUs, ``ipam`` without sources of addresses."""
    return [
        *judge_api(api, settings),
        *judge_kubelet(kubelet, shares_devices=bool(settings.shared_devices)),
        *judge_runtime(runtime, settings.hook_budget_seconds),
        *(judge_gpus(settings, served) if served is not None else ()),
        *(judge_ipam(ipam) if ipam is not None else ()),
    ]


def judge_api(features: ApiCapabilities | None, settings: Settings) -> list[Finding]:
    """One finding for each optional field of a slice; ``None`` before the first request."""
    if features is None:
        return [_note(API, "the optional fields of slices have not been asked for yet", API_FIELD)]
    wanted = find_wanted(settings)
    return [_judge_field(feature, features[feature], feature in wanted) for feature in Feature]


def find_wanted(settings: Settings) -> frozenset[Feature]:
    """The optional fields that these settings make the driver publish, sooner or later."""
    asked = {
        Feature.TAINTS: settings.health_taints is not HealthTaints.OFF,
        Feature.OBSERVED_TAINTS: settings.health_taints is HealthTaints.NONE,
        Feature.SHARED_DEVICES: bool(settings.shared_devices),
        Feature.BANDWIDTH: bool(settings.shared_devices) and settings.default_bandwidth is not None,
        Feature.LIST_ATTRIBUTES: settings.list_attributes,
        Feature.COUNTERS: settings.virtual_functions_file is not None,
    }
    return frozenset(feature for feature, wants in asked.items() if wants)


def _judge_field(feature: Feature, support: Support, wanted: bool) -> Finding:
    if support is Support.KEPT:
        return ok(API, f"{feature} kept", API_FIELD)
    if support is Support.UNKNOWN:
        return _note(API, f"{feature}: only a real write will show", API_FIELD)
    seen = f"{feature} {support} (feature gate {feature.gate})"
    if not wanted:
        return _note(API, seen, API_FIELD)
    fix = f"turn {feature.gate} on in the API server and the scheduler, or do without: {_SETTINGS[feature]}"
    return Finding(API, Severity.WARNING, seen, _MATTERS[feature], fix, API_FIELD)


def judge_kubelet(capabilities: KubeletCapabilities, *, shares_devices: bool) -> list[Finding]:
    service = _judge_dra_service(capabilities, shares_devices=shares_devices)
    return [_judge_registration(capabilities), service, _judge_health(capabilities)]


def _judge_registration(capabilities: KubeletCapabilities) -> Finding:
    if capabilities.registered:
        return ok(KUBELET, f"registered{_since(capabilities.registered_at)}", REGISTRATION)
    fix = "is --kubelet-root the kubelet's --root-dir, mounted into the pod at the same path?"
    if capabilities.registered is False:
        seen = f"refuses to register the driver: {capabilities.registration_error}"
        fix = "the text is the kubelet's own; it tries again by itself"
    elif capabilities.asked_at:
        seen = "has asked who we are and not answered yet"
    else:
        seen = "has not found the driver yet"
    matters = "no pod with a claim of ours starts on this node"
    return Finding(KUBELET, Severity.PROBLEM, seen, matters, fix, REGISTRATION)


def _judge_dra_service(capabilities: KubeletCapabilities, *, shares_devices: bool) -> Finding:
    if not capabilities.dra_service:
        return _note(KUBELET, "has not prepared a claim yet, so its DRA version is not known", DRA_SERVICE)
    seen = f"calls {capabilities.dra_service}"
    if capabilities.dra_service.startswith("v1."):
        return ok(KUBELET, seen, DRA_SERVICE)
    return Finding(
        KUBELET,
        Severity.WARNING if shares_devices else Severity.NOTE,
        f"{seen}, which has no share IDs",
        "the shares of one device look alike to the kubelet",
        "update the kubelet to 1.35 or later, or leave --shared-devices empty" if shares_devices else "",
        DRA_SERVICE,
    )


def _judge_health(capabilities: KubeletCapabilities) -> Finding:
    if capabilities.health_streams:
        return ok(KUBELET, f"watches device health ({capabilities.health_service})", KUBELET_HEALTH)
    if capabilities.health_service:
        return _note(
            KUBELET, f"watched device health ({capabilities.health_service}), not now", KUBELET_HEALTH
        )
    seen = "does not watch device health (feature gate ResourceHealthStatus)"
    matters = "pods do not show the health of their devices; taints and metrics do not depend on it"
    return Finding(KUBELET, Severity.NOTE, seen, matters, id=KUBELET_HEALTH)


def judge_runtime(capabilities: RuntimeCapabilities, hook_budget_seconds: float) -> list[Finding]:
    """Its name and version, how long it waits for a hook, and whether what CDI adds reaches containers."""
    if not capabilities.name:
        seen = "has not connected over NRI yet"
        matters = "no NIC can be attached, so no claim with a NIC is prepared"
        fix = "enable NRI in the runtime; is --nri-socket its socket, mounted into the pod?"
        return [Finding(RUNTIME, Severity.PROBLEM, seen, matters, fix, RUNTIME_NRI)]
    forms = [capabilities.event_form] if capabilities.event_form else []
    return [
        ok(RUNTIME, f"{capabilities.name} {capabilities.version}".strip(), RUNTIME_NRI),
        _judge_patience(capabilities.request_timeout_seconds, hook_budget_seconds),
        *(ok(RUNTIME, f"reports pods by {form}", RUNTIME_NRI) for form in forms),
        ok(RUNTIME, "containers get what our CDI devices add", RUNTIME_CDI)
        if capabilities.shows_our_mounts
        else _note(RUNTIME, "no container has come with a CDI device of ours yet", RUNTIME_CDI),
    ]


def _judge_patience(timeout_seconds: float | None, hook_budget_seconds: float) -> Finding:
    if timeout_seconds is None:
        usual = f"usually {DEFAULT_REQUEST_TIMEOUT_SECONDS:g} s"
        patience = f"does not report how long it waits for a hook ({usual})"
        if hook_budget_seconds < DEFAULT_REQUEST_TIMEOUT_SECONDS:
            return _note(RUNTIME, patience, PATIENCE)
        seen = f"{patience}, and --hook-budget-seconds is {hook_budget_seconds:g} s"
        matters = "where it waits less, pods start without their devices"
        fix = f"make sure that plugin_request_timeout of the runtime is above {hook_budget_seconds:g} s"
        return Finding(RUNTIME, Severity.WARNING, seen, matters, fix, PATIENCE)
    seen = f"waits {timeout_seconds:g} s for a hook"
    if timeout_seconds >= hook_budget_seconds:
        return ok(RUNTIME, seen, PATIENCE)
    seen = f"{seen}, less than --hook-budget-seconds ({hook_budget_seconds:g} s)"
    matters = "the driver answers earlier than it was set to; a slow attach goes on behind the answer"
    fix = f"raise plugin_request_timeout of the runtime above {hook_budget_seconds:g} s"
    return Finding(RUNTIME, Severity.WARNING, seen, matters, fix, PATIENCE)


def judge_gpus(settings: Settings, served: ServedGpus) -> list[Finding]:
    """Whose GPUs the node's GPUs are; one line for each vendor whose GPUs another driver serves."""
    mode = settings.publish_gpus
    if mode is not PublishGpus.AUTO:
        return [_note(GPUS, f"{mode} offered, as publish_gpus sets", GPU_OFFER)]
    if not served.is_known:
        seen = "not offered: the API server has not reported yet whether another driver serves them"
        matters = "claims that ask this driver for a GPU wait"
        fix = "may the driver list resourceslices and get its node? --publish-gpus=always does not ask"
        return [Finding(GPUS, Severity.WARNING, seen, matters, fix, GPU_OFFER)]
    left = [
        _note(GPUS, f"{vendor}: left to {server}", GPU_OFFER) for vendor, server in served.by_vendor.items()
    ]
    return left or [ok(GPUS, "offered: no other driver serves them", GPU_OFFER)]


def judge_virtual_functions(states: Iterable[PfState], problem: str) -> Iterator[Finding]:
    """Whether each physical function with a rule has what the rule wants."""
    if problem:
        fix = "correct the file; the last good one stays in force"
        yield Finding(VIRTUAL_FUNCTIONS, Severity.WARNING, problem, "new rules are not known", fix, VF_COUNT)
    for state in states:
        seen = f"{state.device}: {state.observed} of {state.desired}"
        if state.problem:
            matters = "claims for the missing functions wait, or functions lack their defaults"
            fix = "free what is named, e.g. by a drain of the node; see docs/networking/virtual-functions.md"
            seen = f"{seen}; {state.problem}"
            yield Finding(VIRTUAL_FUNCTIONS, Severity.WARNING, seen, matters, fix, VF_COUNT)
        else:
            yield ok(VIRTUAL_FUNCTIONS, seen, VF_COUNT)


def judge_ipam(state: IpamState) -> Iterator[Finding]:
    """The sources of addresses, and addresses that they do not release."""
    if state.problem:
        fix = "correct the file; the last good one stays in force"
        yield Finding(IPAM, Severity.WARNING, state.problem, "new entries are not known", fix, IPAM_SOURCE)
    for name, why in state.missing.items():
        matters = f"claims with interface.ipam: {name} are refused"
        fix = "install the plugin on the node, or name its folder in --cni-bin-dirs"
        yield Finding(IPAM, Severity.WARNING, f"{name}: {why}", matters, fix, IPAM_SOURCE)
    good = [name for name in state.sources if name not in state.missing]
    if good and not state.problem:
        yield ok(IPAM, f"sources of addresses: {', '.join(good)}", IPAM_SOURCE)
    if state.unreleased:
        seen = f"{state.unreleased} claims that are over keep addresses, for {state.unreleased_seconds:.0f} s"
        matters = "the source of addresses runs out of them"
        fix = "see the Events of the claims (IPAMFailed); the driver tries again in each reconcile"
        yield Finding(IPAM, Severity.WARNING, seen, matters, fix, IPAM_RELEASE)
    if state.failed_checks:
        seen = f"addresses of {state.failed_checks} prepared claims are not theirs any more"
        matters = "other pods may get the same addresses"
        fix = "see the Events of the pods (IPAMFailed), and delete the pods"
        yield Finding(IPAM, Severity.WARNING, seen, matters, fix, IPAM_CHECK)


def _note(part: str, seen: str, finding_id: str) -> Finding:
    return Finding(part, Severity.NOTE, seen, id=finding_id)


def _since(moment: float | None) -> str:
    if moment is None:
        return ""
    return f" since {datetime.fromtimestamp(moment, UTC).isoformat(timespec='seconds')}"
