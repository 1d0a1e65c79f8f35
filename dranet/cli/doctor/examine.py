"""What ``dranet doctor`` looks at: the running driver, the API server, folders, and the node itself.

Some things only a running driver knows, because the kubelet and the runtime show what they can do by what
they call. The rest is asked here and now. A part that cannot be read does not stop the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dranet.cli.doctor.cluster import ask_cluster_with_deadline, not_asked
from dranet.cli.doctor.kubelet_config import read_device_plugins, read_kubelet_config
from dranet.cli.doctor.places import judge_places, judge_rights, rights_elsewhere
from dranet.cli.doctor.running import ask_running_driver, no_answer
from dranet.cli.doctor.runtime_config import read_runtime_config
from dranet.desk.doctor.catalogue import run_checks
from dranet.desk.doctor.checks import ClusterFacts, DevicePlugin, Surroundings
from dranet.driver.protected_addresses import OWN_ADDRESS
from dranet.driver.publish import CapturedFacts
from dranet.errors import DranetError
from dranet.inventory.offer import take_inventory
from dranet.kernel.discovery.protected_addresses import ProtectedAddress
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.host_checks.read import find_root, read_host_facts
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.device import Device
from dranet.model.facts import NodeFacts
from dranet.model.findings import PATIENCE, Finding, Severity, ok
from dranet.model.host_facts import HostFacts
from dranet.settings import Settings
from dranet.view.policy import load_policy

SETTINGS, VIEW = "settings", "view"
BLIND = "doctor-blind"

_VAR_RUN = Path("/var/run")
_AS_ROOT = "Run it as root, or correct --sysfs-root and --procfs-root."
_CAPTURED = "Leave --facts out to look at this machine alone."

Progress = Callable[[str], None]
"""Called with what is looked at next."""


class Examination(Struct, frozen=True):
    """Everything that was found out, and what it was judged by."""

    findings: tuple[Finding, ...]
    surroundings: Surroundings
    driver_answers: bool


def examine(settings: Settings, root: Path | None = None, progress: Progress = lambda _: None) -> Examination:
    """Everything that can be found out now, in the order in which it was asked.

    Args:
        settings: the driver's.
        root: the node's own file system; looked for where it is not given.
        progress: for a person who waits.
    """
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
        *([rights_elsewhere()] if is_elsewhere(root) else judge_rights(settings)),
        *blind,
        *run_checks(surroundings),
    )
    return Examination(findings, surroundings, running is not None)


def is_elsewhere(root: Path | None) -> bool:
    """Whether we run outside the node's own file system, as in ``kubectl debug node``."""
    return root is not None and root != Path("/")


def look_below(settings: Settings, root: Path | None) -> Settings:
    """The settings with the node's folders where they are seen from here.

    ``/var/run`` is a link to ``/run`` on every node, and would lead out of ``root``.
    """
    if root is None or not is_elsewhere(root):
        return settings

    def below(path: Path) -> Path:
        if path.is_relative_to(root):
            return path
        node_path = Path("/run") / path.relative_to(_VAR_RUN) if path.is_relative_to(_VAR_RUN) else path
        return root / node_path.relative_to("/")

    return replace(
        settings,
        kubelet_root=below(settings.kubelet_root),
        state_dir=below(settings.state_dir),
        cdi_dir=below(settings.cdi_dir),
        nri_socket=below(settings.nri_socket),
    )


def look_around(
    settings: Settings,
    cluster: ClusterFacts,
    running: list[Finding],
    root: Path | None,
    blind: list[Finding],
) -> Surroundings:
    """What the checks judge; a part that cannot be read is left empty, and reported in ``blind``."""
    node, offered = NodeFacts(), tuple[Device, ...]()
    try:
        node = _read_node(settings)
        offered = _find_offered(settings, node)
    except (DranetError, OSError) as error:
        why = "What depends on the node's devices is not judged."
        seen, fix = (error.message, error.hint) if isinstance(error, DranetError) else (str(error), _AS_ROOT)
        blind.append(Finding(VIEW, Severity.WARNING, seen, why, fix, BLIND))
    if settings.facts_file:
        seen = f"the devices are those of {settings.facts_file}, all else is this machine's"
        why = "Findings about both together may be of neither."
        blind.append(Finding(VIEW, Severity.NOTE, seen, why, _CAPTURED, BLIND))
    host, plugins = _read_host(settings, root or find_root(settings.procfs_root), node)
    return Surroundings(
        settings=settings,
        node=node,
        host=host,
        offered=offered,
        cluster=cluster,
        plugins=plugins,
        shown=find_shown(running),
    )


def find_shown(running: list[Finding]) -> frozenset[str]:
    """What a running driver is sure of: what works, and how long the runtime waits, be it too short."""
    sure = (f.id for f in running if f.severity is Severity.OK or (f.id == PATIENCE and f.matters))
    return frozenset(sure)


def _read_node(settings: Settings) -> NodeFacts:
    if settings.facts_file:
        return CapturedFacts(str(settings.facts_file)).read()
    scanner = NodeScanner(settings.sysfs_root, settings.procfs_root, pci_ids=settings.pci_ids)
    own = (ProtectedAddress(OWN_ADDRESS, address, is_own=True) for address in settings.node_addresses)
    scanner.set_protected_addresses(list(own))
    return scanner.read()


def _find_offered(settings: Settings, node: NodeFacts) -> tuple[Device, ...]:
    decisions = take_inventory(node, {}, load_policy(settings))
    return tuple(decision.device for decision in decisions if decision.published)


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
