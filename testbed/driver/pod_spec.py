"""What a kubelet makes of the driver's pod spec before it asks the runtime: the part that is about rights.

Pure: a pod spec as the DaemonSet has it in, CRI messages out (``kubelet_pods.go``,
``securitycontext/util.go``, ``kuberuntime_container_linux.go`` of Kubernetes). Folders of the node may be
elsewhere in a testbed; ``moved`` maps them, and moves the container's view of them along, since kubelet and
runtime get those paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from testbed.pb import cri_pb2 as pb
from tools.manifests import pod_security

MASKED_PATHS = (
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
"""With ``procMount: Default``."""

_PROPAGATION = {
    "None": pb.PROPAGATION_PRIVATE,
    "HostToContainer": pb.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": pb.PROPAGATION_BIDIRECTIONAL,
}
_MAKES_FOLDER = "DirectoryOrCreate"


@dataclass(frozen=True, slots=True)
class NodeView:
    """What the pod spec leaves to the node that it runs on."""

    node_name: str
    kubelet_root: str
    moved: Mapping[str, str] = field(default_factory=dict)
    """Folder of an ordinary node -> where it is here."""
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """The same where the container sees it at its usual place all the same."""
    volumes: Mapping[str, str] = field(default_factory=dict)
    """Volumes that are no folders of the node (ConfigMaps, scratch): name -> a folder with the content."""
    pod_uid: str = ""

    def move(self, path: str) -> str:
        """Where a path of an ordinary node is here."""
        return _move(path, self.moved)

    def find_source(self, path: str) -> str:
        """The folder that is mounted for it."""
        return _move(path, {**self.moved, **self.stand_ins})


def _move(path: str, moved: Mapping[str, str]) -> str:
    for folder in sorted(moved, key=len, reverse=True):
        if path == folder or path.startswith(f"{folder}/"):
            return moved[folder] + path[len(folder) :]
    return path


def list_folders_to_make(spec: Mapping[str, Any], view: NodeView) -> list[str]:
    """Folders of ``hostPath`` volumes that the kubelet makes where they are missing."""
    paths = (volume["hostPath"] for volume in spec.get("volumes", ()) if "hostPath" in volume)
    return [view.find_source(path["path"]) for path in paths if path.get("type") == _MAKES_FOLDER]


def build_sandbox_security(spec: Mapping[str, Any]) -> pb.LinuxSandboxSecurityContext:
    """Which namespaces the pod shares with the node."""
    return pb.LinuxSandboxSecurityContext(
        namespace_options=pb.NamespaceOption(
            network=pb.NODE if spec.get("hostNetwork") else pb.POD,
            pid=pb.NODE if spec.get("hostPID") else pb.CONTAINER,
            ipc=pb.NODE if spec.get("hostIPC") else pb.POD,
        )
    )


def build_container(
    spec: Mapping[str, Any], container: Mapping[str, Any], view: NodeView
) -> pb.ContainerConfig:
    """One container of the pod, init container or not; image and log are the caller's."""
    return pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name=container["name"]),
        command=container.get("command", ()),
        args=container.get("args", ()),
        working_dir=container.get("workingDir", ""),
        envs=_build_environment(container.get("env", ()), view),
        mounts=_build_mounts(spec, container, view),
        linux=pb.LinuxContainerConfig(
            resources=_build_resources(container.get("resources", {})),
            security_context=_build_security(spec, container, view),
        ),
    )


def _build_environment(variables: Iterable[Mapping[str, Any]], view: NodeView) -> list[pb.KeyValue]:
    from_pod = {"spec.nodeName": view.node_name, "metadata.uid": view.pod_uid}
    return [
        pb.KeyValue(key=variable["name"], value=_read_variable(variable, from_pod)) for variable in variables
    ]


def _read_variable(variable: Mapping[str, Any], from_pod: Mapping[str, str]) -> str:
    source = variable.get("valueFrom")
    if source is None:
        return str(variable.get("value", ""))
    return from_pod.get(source.get("fieldRef", {}).get("fieldPath", ""), "")


def _build_mounts(spec: Mapping[str, Any], container: Mapping[str, Any], view: NodeView) -> list[pb.Mount]:
    volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
    mounts = []
    for mount in container.get("volumeMounts", ()):
        path = volumes[mount["name"]].get("hostPath", {}).get("path")
        source = view.find_source(path) if path else view.volumes[mount["name"]]
        if sub_path := mount.get("subPath"):
            source = str(PurePosixPath(source, sub_path))
        mounts.append(
            pb.Mount(
                container_path=view.move(mount["mountPath"]),
                host_path=source,
                readonly=mount.get("readOnly", False),
                propagation=_PROPAGATION[mount.get("mountPropagation", "None")],
            )
        )
    return mounts


def _build_resources(resources: Mapping[str, Any]) -> pb.LinuxContainerResources:
    """The limit of memory; shares of CPU time are of no account in a testbed."""
    limit = str(resources.get("limits", {}).get("memory", ""))
    units = {"Ki": 10, "Mi": 20, "Gi": 30}
    if limit[-2:] in units:
        return pb.LinuxContainerResources(memory_limit_in_bytes=int(limit[:-2]) << units[limit[-2:]])
    return pb.LinuxContainerResources(memory_limit_in_bytes=int(limit or 0))


def _build_security(
    spec: Mapping[str, Any], container: Mapping[str, Any], view: NodeView
) -> pb.LinuxContainerSecurityContext:
    of_pod = spec.get("securityContext", {})
    context = {
        **{key: of_pod[key] for key in _INHERITED if key in of_pod},
        **container.get("securityContext", {}),
    }
    capabilities = context.get("capabilities", {})
    privileged = context.get("privileged", False)
    is_default_proc = context.get("procMount", "Default") == "Default" and not privileged
    return pb.LinuxContainerSecurityContext(
        capabilities=pb.Capability(
            add_capabilities=capabilities.get("add", ()), drop_capabilities=capabilities.get("drop", ())
        ),
        privileged=privileged,
        namespace_options=build_sandbox_security(spec).namespace_options,
        run_as_user=_wrap(context.get("runAsUser")),
        run_as_group=_wrap(context.get("runAsGroup")),
        readonly_rootfs=context.get("readOnlyRootFilesystem", False),
        no_new_privs=context.get("allowPrivilegeEscalation") is False,
        masked_paths=MASKED_PATHS if is_default_proc else (),
        readonly_paths=READ_ONLY_PATHS if is_default_proc else (),
        seccomp=_build_seccomp(context.get("seccompProfile"), view, privileged=privileged),
        apparmor=pb.SecurityProfile(profile_type=pb.SecurityProfile.Unconfined),
    )


_INHERITED = (
    "runAsUser",
    "runAsGroup",
    "runAsNonRoot",
    "seccompProfile",
    "seLinuxOptions",
    "appArmorProfile",
)
"""What a container inherits from ``spec.securityContext``."""


def _build_seccomp(
    profile: Mapping[str, Any] | None, view: NodeView, *, privileged: bool
) -> pb.SecurityProfile:
    """Without a profile it is Unconfined, unless the kubelet is configured otherwise (``seccompDefault``)."""
    kind = "Unconfined" if profile is None or privileged else profile["type"]
    if kind == "Localhost" and profile is not None:
        place = f"{view.kubelet_root}/seccomp/{profile['localhostProfile']}"
        return pb.SecurityProfile(profile_type=pb.SecurityProfile.Localhost, localhost_ref=place)
    return pb.SecurityProfile(profile_type=pb.SecurityProfile.ProfileType.Value(kind))


def _wrap(number: int | None) -> pb.Int64Value | None:
    return None if number is None else pb.Int64Value(value=number)


PodSpec = dict[str, Any]
CONTAINER = "dranet"


def build_pod_spec() -> PodSpec:
    """The pod spec as far as rights go, straight from ``manifests/security.py``."""
    return {
        **pod_security.build_pod_security(),
        "volumes": pod_security.build_volumes(),
        "initContainers": [
            {
                "name": "seccomp",
                "command": ["dranet", "seccomp", "--write", "/var/lib/kubelet/seccomp"],
                "securityContext": pod_security.build_init_context(),
                "volumeMounts": pod_security.build_init_volume_mounts(),
            }
        ],
        "containers": [
            {
                "name": CONTAINER,
                "securityContext": pod_security.build_security_context(),
                "volumeMounts": pod_security.build_volume_mounts(),
            }
        ],
    }


def read_pod_spec(manifests: Path) -> tuple[PodSpec, dict[str, dict[str, str]]]:
    """The pod spec of the DaemonSet in rendered manifests, and the data of the ConfigMaps next to it."""
    documents = [document for document in yaml.safe_load_all(manifests.read_text()) if document]
    (spec,) = (d["spec"]["template"]["spec"] for d in documents if d["kind"] == "DaemonSet")
    data = {d["metadata"]["name"]: d.get("data", {}) for d in documents if d["kind"] == "ConfigMap"}
    return spec, data
