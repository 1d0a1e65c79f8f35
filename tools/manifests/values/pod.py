"""Values about where the driver's pods run, how they are replaced, and what they may do."""

from __future__ import annotations

from dranet.security.context import APPARMOR_TYPE, CAPABILITIES, MOUNTS, SELINUX_TYPE, Mount
from tools.manifests.values.kubernetes import AFFINITY, RESOURCES, TOLERATIONS
from tools.manifests.values.value import (
    BOOLEAN,
    LABELS,
    TEXT,
    Schema,
    Value,
    list_of,
    number,
    one_of,
)

PLACEMENT = (
    Value(
        "nodeSelector",
        "Nodes that get the driver. A node without NICs to give away costs a pod of some 60 MB, no more.",
        LABELS,
        {"kubernetes.io/os": "linux"},
        section="Where it runs",
    ),
    Value(
        "affinity",
        "As in a pod: for instance to leave out nodes that the image does not run on (neither amd64 nor "
        "arm64), or that are no machines (Fargate, virtual-kubelet), whose taints are tolerated, too.",
        AFFINITY,
        {},
    ),
    Value(
        "tolerations",
        "All taints. A driver that is not on a node publishes nothing there and gives no NIC back, so "
        "taints that keep others away (nvidia.com/gpu) or tell of trouble (node.kubernetes.io/not-ready) "
        "are not for it.",
        TOLERATIONS,
        [{"operator": "Exists", "effect": "NoSchedule"}, {"operator": "Exists", "effect": "NoExecute"}],
        reasons={
            "operator: Exists, effect: NoSchedule": "nodes reserved for GPU jobs, cordoned nodes",
            "operator: Exists, effect: NoExecute": "is not evicted: the pods of the node still hold its NICs",
        },
    ),
    Value(
        "priorityClassName",
        "system-node-critical: never preempted, and started before the pods that wait for its NICs. Some "
        "clusters (GKE) admit this class outside of kube-system only where a ResourceQuota allows it: "
        "criticalPodsQuota.",
        TEXT,
        "system-node-critical",
    ),
    Value(
        "criticalPodsQuota",
        "A ResourceQuota that allows pods of that priority class in the namespace.",
        parts=(
            Value(
                "enabled",
                "Make it. For GKE and clusters that limit the class likewise.",
                BOOLEAN,
                default=False,
            ),
            Value(
                "pods",
                "How many: at least twice the nodes, because an update doubles the pods.",
                number(1),
                10000,
            ),
        ),
    ),
    Value(
        "resources",
        "What a node reserves for it. The idle driver has some 55 MB and uses next to no processor time; a "
        "filter, shared_devices or attributes (CEL) add 15 MB. There is no memory limit by default: a "
        "driver that is killed at the limit cannot answer the pods that start at that moment.",
        RESOURCES,
        {"requests": {"cpu": "50m", "memory": "96Mi"}},
    ),
    Value(
        "dnsPolicy",
        "Default: the node's own resolver. The driver speaks to the API server by address and needs no name "
        "of the cluster, and it starts before the cluster's DNS does.",
        one_of("Default", "ClusterFirstWithHostNet", "ClusterFirst"),
        "Default",
    ),
)

_SHARE: Schema = {"type": ["integer", "string"], "minimum": 0, "pattern": "^(100|[0-9]{1,2})%$"}


def _probe(name: str, about: str, period: int, failures: int, timeout: int) -> Value:
    return Value(
        name,
        about,
        is_inline=True,
        parts=(
            Value("periodSeconds", "Pace of the looks.", number(1, 300), period),
            Value("timeoutSeconds", "How long an answer may take.", number(1, 300), timeout),
            Value(
                "failureThreshold", "Looks that fail in a row before it counts.", number(1, 1000), failures
            ),
        ),
    )


UPDATES = (
    Value(
        "updateStrategy",
        "How a new version replaces the old one on a node (docs/user/updates.md).",
        section="Updates, probes and the end",
        parts=(
            Value(
                "type",
                "OnDelete: only when you delete a pod.",
                one_of("RollingUpdate", "OnDelete"),
                "RollingUpdate",
            ),
            Value(
                "rollingUpdate",
                "With a surge the new instance starts beside the old one and takes over without a gap. "
                "Without it (maxSurge 0, maxUnavailable 1) pods that start meanwhile wait some seconds. One "
                "of both is 0.",
                parts=(
                    Value("maxSurge", "Nodes at a time: a number, or a percentage.", _SHARE, 1),
                    Value("maxUnavailable", "Nodes that may be without a driver.", _SHARE, 0),
                ),
            ),
        ),
    ),
    Value(
        "terminationGracePeriodSeconds",
        "null: the setting drain_seconds and 35 more. Less than drain_seconds + 20 is refused: the driver "
        "would be killed while it ends.",
        {"type": ["integer", "null"], "minimum": 20},
        None,
    ),
    Value(
        "probes",
        "Two instances share the node's port while an update goes on, and an HTTP probe of the new pod "
        "would reach the old one. So readiness is a file in the pod's own volume; and liveness, whoever "
        "answers, ends only what nobody answers for. periodSeconds is the pace of the looks; "
        "failureThreshold of them in a row count.",
        parts=(
            _probe("startup", "/healthz, until it answers for the first time.", 2, 60, 2),
            _probe("readiness", "The file that is there while the driver is ready.", 10, 1, 5),
            _probe(
                "liveness",
                "/healthz: the driver's loop runs, and nothing is lost that only a new process has. Slow on "
                "purpose: a restart mends little that the driver does not mend itself.",
                10,
                6,
                5,
            ),
        ),
    ),
)


def _camel(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(word.capitalize() for word in rest)


def mount_key(mount: Mount) -> str:
    """The value that switches a mount off."""
    return _camel(mount.name)


def _always_mounted() -> str:
    return "".join(
        f"\n- {mount.path}{' (read-only)' if mount.read_only else ''}: {mount.why}"
        for mount in MOUNTS
        if not mount.feature
    )


SECURITY = (
    Value(
        "securityContext",
        "The container is not privileged, cannot become so, and its root file system is read-only. It runs "
        "as user 0, to whom the sockets of kubelet and runtime belong, with all capabilities dropped but "
        "these. Taking one away costs what its line says; docs/user/security.md has the whole story, tested.",
        section="What it may do on the node",
        parts=(
            Value(
                "capabilities",
                "Each with its reason.",
                list_of({"type": "string", "pattern": "^[A-Z][A-Z_]*$"}),
                [capability.name for capability in CAPABILITIES],
                reasons={
                    capability.name: f"{capability.why}. Without it {capability.without}"
                    for capability in CAPABILITIES
                },
            ),
            Value(
                "seccomp",
                "Which system calls the kernel answers.",
                parts=(
                    Value(
                        "type",
                        "Driver: the driver's own profile, which an init container without any capability "
                        "writes to the kubelet's seccomp folder. RuntimeDefault: the runtime's, without "
                        "that init container; where the runtime's profile goes by capabilities, it lets the "
                        "driver work. Unconfined: none, to find out whether the profile is in the way. "
                        "Localhost: one of yours.",
                        one_of("Driver", "RuntimeDefault", "Unconfined", "Localhost"),
                        "Driver",
                    ),
                    Value(
                        "localhostProfile",
                        "With Localhost: file below the kubelet's seccomp folder.",
                        TEXT,
                        "",
                    ),
                ),
            ),
            Value(
                "appArmor",
                "On nodes with AppArmor (Ubuntu, Debian, SUSE).",
                parts=(
                    Value(
                        "type",
                        "Unconfined, because the runtimes' own profile forbids to mount and most writes to "
                        "/proc and /sys, by which the driver sets sysctls and reads a pod's queues. "
                        "Localhost: one of yours.",
                        one_of("Unconfined", "RuntimeDefault", "Localhost"),
                        APPARMOR_TYPE,
                    ),
                    Value(
                        "localhostProfile",
                        "With Localhost: the profile's name, loaded on the node.",
                        TEXT,
                        "",
                    ),
                ),
            ),
            Value(
                "seLinuxType",
                "On nodes with SELinux (RHEL, Fedora, OpenShift, Bottlerocket): the type of containers that "
                "manage their node. Nodes without SELinux do not look at it; empty says nothing.",
                {"type": "string", "pattern": "^[a-z0-9_]*$"},
                SELINUX_TYPE,
            ),
        ),
    ),
    Value(
        "mounts",
        "Folders of the node that one may do without. Always mounted are:" + _always_mounted(),
        parts=tuple(
            Value(
                mount_key(mount),
                f"{mount.path}{' (read-only)' if mount.read_only else ''}: {mount.why}. For "
                f"{mount.feature}; without "
                f"it {mount.without}.",
                BOOLEAN,
                default=True,
            )
            for mount in MOUNTS
            if mount.feature
        ),
    ),
)
