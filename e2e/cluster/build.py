"""Kubernetes' own programs, Helm and an IPAM plugin, built from their published Go modules into a cache.

The repository has a ``go.mod`` and a ``go.sum`` for each version (``modules/``); ``go build`` verifies every
download against the ``go.sum``. The cache has one folder for each version, which may be deleted at any time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.access import LaneUnavailable
from testbed.debian.packages import cache_folder

MODULES = Path(__file__).parent / "modules"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
OLDEST_GO = (1, 26)
_MINUTES = "5 to 10 minutes on two cores"
_VERSION_VARIABLES = "k8s.io/component-base/version"

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module of :data:`MODULES` and what is built from it."""

    folder: Path
    path: str
    """Import path of the module that has the programs: ``k8s.io/kubernetes``."""
    programs: Sequence[str]
    below: str = "/cmd"
    """The folder of the programs in the module."""
    files: Sequence[str] = ()
    """Other files and folders of the module that belong into the folder of the programs."""
    is_static: bool = False
    """Its programs run in an image that has no C library."""

    @property
    def version(self) -> str:
        """As the ``go.mod`` requires it, without the ``v``."""
        text = (self.folder / "go.mod").read_text(encoding="utf-8")
        match = re.search(rf"^(?:require |\t){re.escape(self.path)} v(\S+)", text, re.MULTILINE)
        if match is None:
            raise LaneUnavailable(f"{self.folder / 'go.mod'} does not require {self.path}")
        return match[1]

    @property
    def packages(self) -> list[str]:
        return [f"{self.path}{self.below}/{name}" for name in self.programs]

    @property
    def link_flags(self) -> str:
        """Strip the programs, and set Kubernetes' version as its release builds do."""
        if self.path != "k8s.io/kubernetes":
            return "-s -w"
        major, minor = self.version.split(".")[:2]
        values = {"gitVersion": f"v{self.version}", "gitMajor": major, "gitMinor": minor}
        return " ".join(
            ["-s -w", *(f"-X {_VERSION_VARIABLES}.{key}={value}" for key, value in values.items())]
        )


WHEREABOUTS = Module(
    MODULES / "whereabouts",
    "github.com/k8snetworkplumbingwg/whereabouts",
    ("cmd",),
    below="",
    files=(
        "doc/crds/whereabouts.cni.cncf.io_ippools.yaml",
        "doc/crds/whereabouts.cni.cncf.io_overlappingrangeipreservations.yaml",
    ),
)
"""Its one program is called ``cmd`` after its folder."""
HELM = Module(MODULES / "helm", "helm.sh/helm/v3", ("helm",))
KUEUE = Module(MODULES / "kueue", "sigs.k8s.io/kueue", ("kueue",), files=("charts/kueue",), is_static=True)


def known_versions() -> list[str]:
    """Minor versions of Kubernetes that can be built, the oldest first: ``1.34``."""
    folders = (path.name.removeprefix("kubernetes-") for path in MODULES.glob("kubernetes-*"))
    return sorted(folders, key=lambda text: tuple(map(int, text.split("."))))


def choose_version() -> str:
    """``KUBE_VERSION``, or the newest.

    Raises:
        LaneUnavailable: it is unknown; the known ones are named.
    """
    known = known_versions()
    wanted = os.environ.get("KUBE_VERSION", "") or known[-1]
    if wanted not in known:
        raise LaneUnavailable(f"KUBE_VERSION={wanted} is not known", hint=f"choose one of {', '.join(known)}")
    return wanted


def kubernetes(version: str) -> Module:
    return Module(MODULES / f"kubernetes-{version}", "k8s.io/kubernetes", PROGRAMS)


def find_built(module: Module) -> Path | None:
    """The folder of programs that an earlier build left in the cache."""
    folder = _cached(module)
    return folder if all(os.access(folder / name, os.X_OK) for name in module.programs) else None


def build(module: Module, report: Report) -> Path:
    """The folder of the module's programs: cached, or built now. Blocking.

    Raises:
        LaneUnavailable: there is no Go that is new enough, or the build fails; with the end of Go's output.
    """
    if (found := find_built(module)) is not None:
        return found
    go = find_go()
    title = f"{module.path} {module.version}"
    report(f"building {title}: {', '.join(module.programs)} ({_MINUTES}, once)")
    folder = _cached(module)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder.parent) as temporary:
        built = Path(temporary, "programs")
        built.mkdir()
        _run_go(go, module, built, report)
        _copy_files(go, module, built)
        shutil.rmtree(folder, ignore_errors=True)
        built.rename(folder)
    report(f"{title} is ready in {folder}")
    return folder


def _copy_files(go: str, module: Module, output: Path) -> None:
    """From where ``go build`` has just put the module."""
    for name in module.files:
        found = _find_source(go, module) / name
        if found.is_dir():  # under its whole name: Kueue's program is called like its chart
            shutil.copytree(found, output / name)
        else:
            shutil.copyfile(found, output / Path(name).name)


def find_go() -> str:
    """The path of a Go that is new enough.

    Raises:
        LaneUnavailable: no Go is on PATH.
    """
    needed = ".".join(map(str, OLDEST_GO))
    hint = f"install Go {needed} or newer, or set KUBE_BIN_DIR to a folder of Kubernetes' programs"
    go = shutil.which("go")
    if go is None:
        raise LaneUnavailable("no Go on PATH, which builds Kubernetes' programs", hint=hint)
    version = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, check=False
    ).stdout.strip()
    match = re.match(r"go(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < OLDEST_GO:
        raise LaneUnavailable(f"{go} is {version or 'no working Go'}; Kubernetes needs {needed}", hint=hint)
    return go


def _cached(module: Module) -> Path:
    name = module.folder.name.partition("-")[0]
    return (cache_folder("cluster") / f"{name}-{module.version}").resolve()


def _run_go(go: str, module: Module, output: Path, report: Report) -> None:
    """``-v`` names each package as it is compiled, which is the progress that is shown."""
    command = [
        go,
        "build",
        "-v",
        "-trimpath",
        "-ldflags",
        module.link_flags,
        "-o",
        f"{output}/",
        *module.packages,
    ]
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"}
    if module.is_static:
        environment["CGO_ENABLED"] = "0"
    process = subprocess.Popen(
        command,
        cwd=module.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process:
        tail = _follow(process.stderr, report)
        if process.wait():
            raise LaneUnavailable(f"go build of {module.path} {module.version} failed: {' | '.join(tail)}")


def _find_source(go: str, module: Module) -> Path:
    """The module's folder in Go's cache, where the build has put it."""
    command = [go, "list", "-m", "-f", "{{.Dir}}", module.path]
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"}
    done = subprocess.run(
        command, cwd=module.folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode or not done.stdout.strip():
        raise LaneUnavailable(f"go list of {module.path} {module.version} failed: {done.stderr.strip()}")
    return Path(done.stdout.strip())


def _follow(lines: Iterator[str], report: Report, every: float = 10.0) -> list[str]:
    """Report how many packages were compiled; return the last lines, which have the error if there is one."""
    tail: list[str] = []
    compiled, reported = 0, time.monotonic()
    for line in map(str.strip, lines):
        tail = [*tail[-7:], line]
        compiled += not line.startswith("go: downloading")
        if time.monotonic() - reported >= every:
            reported = time.monotonic()
            report(f"  {compiled} packages compiled; {line}" if compiled else f"  {line}")
    return tail


def print_progress(text: str) -> None:
    sys.stdout.write(f"cluster: {text}\n")
    sys.stdout.flush()
