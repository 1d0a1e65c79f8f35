"""What ``dranet doctor`` looks at: the running driver, the API server, folders, and the node itself.

Some things only a running driver knows, because the kubelet and the runtime show what they can do by what
they call. The rest is asked here and now. A part that cannot be read does not stop the rest.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dranet.cli.doctor.node_config import read_device_plugins, read_kubelet_config, read_runtime_config
from dranet.cli.doctor.peers import ask_cluster_with_deadline, ask_running_driver, no_answer, not_asked
from dranet.cli.look import make_scanner
from dranet.desk.doctor.catalogue import CALL, CAPABILITY, FOLDER, GAIN, NO_NEW_PRIVILEGES, RIGHTS, run_checks
from dranet.desk.doctor.checks import ClusterFacts, DevicePlugin, Surroundings
from dranet.errors import DranetError
from dranet.inventory.offer import take_inventory
from dranet.kernel.host_checks import find_root, read_host_facts
from dranet.kernel.host_trials import try_calls
from dranet.kernel.netlink.socket import Rights, read_rights
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.device import Device
from dranet.model.facts import NodeFacts
from dranet.model.findings import PATIENCE, Finding, HostFacts, Severity, ok
from dranet.security.context import CAPABILITIES, HOST_PROC, MOUNTS, HostMount, resolve_path
from dranet.security.seccomp import RULES
from dranet.settings import Settings
from dranet.store.record_folder import RecordFolder
from dranet.view.options import CapturedFacts
from dranet.view.policy import load_policy

SETTINGS, VIEW = "settings", "view"
BLIND = "doctor-blind"

_VAR_RUN = Path("/var/run")
_AS_ROOT = "Run it as root, or correct --sysfs-root and --procfs-root."

Progress = Callable[[str], None]
"""Called with what is looked at next."""


class Examination(Struct, frozen=True):
    findings: tuple[Finding, ...]
    surroundings: Surroundings


def examine(settings: Settings, root: Path | None = None, progress: Progress = lambda _: None) -> Examination:
    """Ask everything now. ``root`` is the node's own file system; it is looked for where it is not given."""
    progress("the running driver")
    running = ask_running_driver(settings)
    progress("the API server")
    if is_elsewhere(root) and not settings.kubeconfig:  # the token is that of the debug container
        answers, cluster = [not_asked("the driver's service account is not at hand here")], ClusterFacts()
    else:
        answers, cluster = asyncio.run(ask_cluster_with_deadline(settings, ask_for_features=running is None))
    progress("the node")
    blind: list[Finding] = []
    surroundings = look_around(settings, cluster, running or [], root, blind)
    findings = (
        ok(SETTINGS, f"driver {settings.driver_name} on node {settings.node_name}", SETTINGS),
        *(running if running is not None else [no_answer(settings.bind_address)]),
        *answers,
        *judge_places(look_below(settings, root)),
        *([_not_judged("not the driver's container")] if is_elsewhere(root) else judge_rights(settings)),
        *blind,
        *run_checks(surroundings),
    )
    return Examination(findings, surroundings)


def is_elsewhere(root: Path | None) -> bool:
    """Outside the node's own file system, as in ``kubectl debug node``."""
    return root is not None and root != Path("/")


def look_below(settings: Settings, root: Path | None) -> Settings:
    """The settings with the node's folders where they are seen from here. ``/var/run`` is a link to ``/run``
    on every node, and would lead out of ``root``."""
    if root is None or not is_elsewhere(root):
        return settings

    def below(path: Path) -> Path:
        if path.is_relative_to(root):
            return path
        node_path = Path("/run") / path.relative_to(_VAR_RUN) if path.is_relative_to(_VAR_RUN) else path
        return root / node_path.relative_to("/")

    folders = ("kubelet_root", "state_dir", "cdi_dir", "nri_socket")
    return replace(settings, **{name: below(getattr(settings, name)) for name in folders})


def look_around(
    settings: Settings, cluster: ClusterFacts, running: list[Finding], root: Path | None, blind: list[Finding]
) -> Surroundings:
    """What the checks judge; a part that cannot be read is left empty, and reported in ``blind``."""
    node, offered, expected_rails = NodeFacts(), tuple[Device, ...](), dict[str, int]()
    try:
        file = settings.facts_file
        node = CapturedFacts(str(file)).read() if file else make_scanner(settings).read()
        policy = load_policy(settings)
        expected_rails = dict(policy.expected_rails)
        decisions = take_inventory(node, {}, policy)
        offered = tuple(decision.device for decision in decisions if decision.published)
    except (DranetError, OSError) as error:
        why = "What depends on the node's devices is not judged."
        seen, fix = (error.message, error.hint) if isinstance(error, DranetError) else (str(error), _AS_ROOT)
        blind.append(Finding(VIEW, Severity.WARNING, seen, why, fix, BLIND))
    if settings.facts_file:
        seen = f"the devices are those of {settings.facts_file}, all else is this machine's"
        why = "Findings about both together may be of neither."
        fix = "Leave facts_file out to look at this machine alone."
        blind.append(Finding(VIEW, Severity.NOTE, seen, why, fix, BLIND))
    host, plugins = _read_host(settings, root or find_root(settings.procfs_root), node)
    return Surroundings(
        settings=settings,
        node=node,
        host=host,
        offered=offered,
        cluster=cluster,
        plugins=plugins,
        expected_rails=expected_rails,
        shown=find_shown(running),
    )


def find_shown(running: list[Finding]) -> frozenset[str]:
    """What a running driver is sure of: what works, and how long the runtime waits, be it too short."""
    return frozenset(f.id for f in running if f.severity is Severity.OK or (f.id == PATIENCE and f.matters))


def _read_host(
    settings: Settings, root: Path | None, node: NodeFacts
) -> tuple[HostFacts, tuple[DevicePlugin, ...]]:
    host = read_host_facts(settings.sysfs_root, settings.procfs_root, root, node)
    files = PseudoFiles(root, []) if root is not None else None
    kubelet = PseudoFiles(look_below(settings, root).kubelet_root, [])
    config = read_runtime_config(files) if files is not None else None
    host = replace(host, runtime=config, kubelet=read_kubelet_config(files, kubelet))
    plugins = read_device_plugins(kubelet)
    return host, tuple(DevicePlugin(resource, ids) for resource, ids in plugins)


PLACES = "places"
_NOT_OURS = "may not be used by this user"
_NO_NRI = "no NIC can be attached, so no claim with a NIC is prepared"
PLACE = "place"
"""The id of its findings."""

LEAST_FREE_BYTES = 16 << 20
"""Records and spec files are a few kilobytes each; less than this is a disk that is full."""


def judge_places(settings: Settings) -> list[Finding]:
    """One finding for each place, and for each damaged record; reads only."""
    registry = settings.kubelet_root / "plugins_registry"
    root = "is --kubelet-root the kubelet's --root-dir, mounted into the pod at the same path?"
    return [
        _judge_folder(registry, "the kubelet cannot find the driver", root, may_be_made=False),
        _judge_folder(settings.plugin_dir, "the kubelet cannot call the driver", root),
        _judge_folder(
            settings.state_dir,
            "no claim can be prepared: what is promised must be on disk first",
            "mount a folder of the node's own disk there (--state-dir)",
        ),
        *_judge_damaged_records(settings.state_dir),
        _judge_folder(
            settings.cdi_dir,
            "the runtime does not learn what a container of a claim gets",
            "mount the folder that the runtime reads CDI specs from (--cdi-dir)",
        ),
        _judge_nri_socket(settings.nri_socket),
        _judge_folder(
            settings.sysfs_root / "class" / "net",
            "devices of the node are not found",
            "mount the node's sysfs (--sysfs-root)",
            may_be_made=False,
            must_be_writable=False,
        ),
    ]


def _judge_damaged_records(state_dir: Path) -> Iterator[Finding]:
    try:
        damaged = RecordFolder(state_dir / "claims").read_unreadable()
    except OSError:
        return  # the state folder itself has been checked, and a driver that never ran has no records
    for record in damaged:
        yield Finding(
            PLACES,
            Severity.WARNING,
            f"{record.file}: the record of claim {record.claim_uid} cannot be read: {record.why}",
            "a NIC whose record was lost comes back from its pod as the pod had it",
            f"look at the disk; after its pod has ended: dranet forget {record.claim_uid}",
            "store-damaged",
        )


def _judge_folder(
    folder: Path, matters: str, fix: str, *, may_be_made: bool = True, must_be_writable: bool = True
) -> Finding:
    try:
        return _look_at(folder, matters, fix, may_be_made=may_be_made, must_be_writable=must_be_writable)
    except OSError as error:
        if error.errno == errno.EACCES and not is_like_driver():
            return _hidden(str(folder))
        return _unfit(f"{folder}: {error.strerror}", matters, fix)


def _look_at(folder: Path, matters: str, fix: str, *, may_be_made: bool, must_be_writable: bool) -> Finding:
    """Raises OSError where it cannot even be looked at."""
    if not folder.exists():
        nearest = next(parent for parent in folder.parents if parent.exists())
        may_make = os.access(nearest, os.W_OK) or not is_like_driver()
        if may_be_made and nearest.is_dir() and may_make:
            seen = f"{folder} does not exist yet; the driver makes it"
            return Finding(PLACES, Severity.NOTE, seen, id=PLACE)
        return _unfit(f"{folder} does not exist", matters, fix)
    if not folder.is_dir():
        return _unfit(f"{folder} is not a folder", matters, fix)
    if must_be_writable and is_like_driver() and not os.access(folder, os.W_OK):
        return _unfit(f"{folder} cannot be written", matters, fix)
    shortage = _find_shortage(os.statvfs(folder)) if must_be_writable else ""
    if shortage:
        return _unfit(f"{folder} has {shortage}", matters, "make room there")
    return ok(PLACES, str(folder), PLACE)


def _find_shortage(free: os.statvfs_result) -> str:
    if free.f_bavail * free.f_frsize < LEAST_FREE_BYTES:
        return f"{free.f_bavail * free.f_frsize >> 20} MiB left"
    return "no room for another file (inodes)" if free.f_files and not free.f_favail else ""


def _judge_nri_socket(path: Path) -> Finding:
    enable = (
        "enable NRI in the runtime (containerd 2.0 has it on, CRI-O by enable_nri), or correct --nri-socket"
    )
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
        trouble = _probe_socket(path) if is_socket else "is not a socket"
    except OSError as error:
        if error.errno == errno.EACCES and not is_like_driver():
            return _hidden(f"the NRI socket {path}")
        return _unfit(f"the NRI socket {path}: {error.strerror}", _NO_NRI, enable)
    if trouble == _NOT_OURS and not is_like_driver():
        return _hidden(f"the NRI socket {path}")
    if not trouble:
        return ok(PLACES, str(path), PLACE)
    return _unfit(f"the NRI socket {path} {trouble}", _NO_NRI, enable)


def _probe_socket(path: Path) -> str:
    """What is wrong with a socket; empty if a program listens on it. The program does not notice: it uses a
    stream socket, so the kernel refuses our datagram socket (EPROTOTYPE) before it reaches the program, and
    with another error where no program listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(bytes(path))
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                return "is left over: no program listens on it"
            if error.errno in (errno.EACCES, errno.EPERM):
                return _NOT_OURS
    return ""


def is_like_driver() -> bool:
    """Root, that is: what other users may not see or write does not matter to the driver."""
    return os.geteuid() == 0


def _hidden(what: str) -> Finding:
    seen = f"{what} cannot be looked at by this user"
    return Finding(PLACES, Severity.NOTE, seen, "it is not judged", "run the doctor as root", PLACE)


def _unfit(seen: str, matters: str, fix: str) -> Finding:
    return Finding(PLACES, Severity.PROBLEM, seen, matters, fix, PLACE)


_OWN_PROC = Path("/proc")


def judge_rights(settings: Settings) -> list[Finding]:
    """One finding for each missing right, or a single one if none is missing; reads only."""
    if os.geteuid() != 0:
        return [_not_judged("not root, as the driver is")]
    rights, status = read_rights(), _OWN_PROC / "self/mountinfo"
    mounts = status.read_text(errors="replace") if settings.procfs_root != _OWN_PROC else ""
    missing = [*_judge_capabilities(rights), *_judge_calls(rights, try_calls())]
    if mounts:
        missing += _judge_mounts(settings, parse_mount_points(mounts))
    if mounts and rights.may_gain:
        seen = "a program that the driver starts could gain rights"
        fix = NO_NEW_PRIVILEGES.fix
        missing.append(Finding(RIGHTS, Severity.NOTE, seen, NO_NEW_PRIVILEGES.matters, fix, GAIN))
    return missing or [ok(RIGHTS, "all that the driver needs", CAPABILITY)]


def _not_judged(this_is: str) -> Finding:
    seen = f"not judged: this is {this_is}"
    return Finding(RIGHTS, Severity.NOTE, seen, fix="run it where the driver runs", id=CAPABILITY)


def _judge_capabilities(rights: Rights) -> Iterator[Finding]:
    for capability in CAPABILITIES:
        if not rights.has(capability.name):
            severity = Severity.WARNING if capability.feature else Severity.PROBLEM
            seen = f"CAP_{capability.name} lacks"
            fix = f"add {capability.name} to the capabilities of the driver's container"
            yield Finding(RIGHTS, severity, seen, capability.without, fix, CAPABILITY)


def _judge_calls(rights: Rights, refused: Mapping[str, str]) -> Iterator[Finding]:
    """Judge refused calls; a missing capability that explains one has been reported already."""
    for rule in RULES:
        if rule.name in refused and all(map(rights.has, rule.needs)):
            severity = Severity.WARNING if rule.feature else Severity.PROBLEM
            seen = f"the kernel or a seccomp profile refuses {', '.join(rule.calls)}: {refused[rule.name]}"
            fix = "use the profile that `dranet seccomp` prints, or add this to yours"
            yield Finding(RIGHTS, severity, seen, rule.without, fix, CALL)


def _judge_mounts(settings: Settings, points: Mapping[str, bool]) -> Iterator[Finding]:
    places = {
        "kubelet_root": str(settings.kubelet_root),
        "state_dir": str(settings.state_dir),
        "cdi_dir": str(settings.cdi_dir),
        "nri_dir": str(settings.nri_socket.parent),
        "driver_name": settings.driver_name,
    }
    for mount in MOUNTS:
        path = os.path.realpath(
            resolve_path(mount.path, places).replace(HOST_PROC, str(settings.procfs_root), 1)
        )
        if fault := _find_fault(mount, path, points):
            severity = Severity.NOTE if mount.feature else Severity.PROBLEM
            folder = resolve_path(mount.host_path, places)
            fix = f"mount the node's {folder} at {path}{'' if mount.read_only else ', writable'}"
            if mount.propagation != "None":
                fix += f", with mountPropagation: {mount.propagation}"
            yield Finding(RIGHTS, severity, f"{path} {fault}", mount.without, fix, FOLDER)


def _find_fault(mount: HostMount, path: str, points: Mapping[str, bool]) -> str:
    nearest = next((str(p) for p in (Path(path), *Path(path).parents) if str(p) in points), "/")
    is_within = mount.path.startswith(f"{HOST_PROC}/") and nearest != path
    if nearest == "/" or is_within:
        return "is not mounted from the node"
    if not mount.read_only and os.statvfs(path).f_flag & os.ST_RDONLY:
        return "is mounted read-only"
    if mount.propagation != "None" and not points[nearest]:
        return "does not show what the node mounts there later"
    return ""


def parse_mount_points(mountinfo: str) -> dict[str, bool]:
    """Where something is mounted, and whether later mounts of the node show there: proc_pid_mountinfo(5)."""
    points = {}
    for line in mountinfo.splitlines():
        fields = line.partition(" - ")[0].split()
        if len(fields) >= 6:
            points[fields[4]] = any(tag.startswith(("master:", "shared:")) for tag in fields[6:])
    return points
