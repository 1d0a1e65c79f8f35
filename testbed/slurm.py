"""Slurm's controller out of Debian's packages, to read a topology that others wrote.

The packages are unpacked into a folder of the cache, which becomes the root of the controller. It runs in
namespaces of its own (mounts, network, processes, host name), and what it writes is in memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from testbed.debian.packages import (
    PrivateApt,
    Release,
    Report,
    Unavailable,
    cache_folder,
    keep,
    make_cache,
    read_release,
    read_version,
    unpack,
)

_PACKAGES = ("slurmctld", "slurm-client")
_KEPT = ("lib", "slurm")
"""The programs and the libraries; the rest of what they depend on sets a system up."""
_FOLDERS = ("dev", "etc/slurm", "proc", "run", "state", "tmp")
_IN_MEMORY = ("etc/slurm", "run", "state", "tmp")
_HOST = "controller"
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\n",
    "etc/hosts": f"127.0.0.1 localhost {_HOST}\n",
}
_SETTINGS = f"""\
ClusterName=testbed
SlurmctldHost={_HOST}(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/pgid
SelectType=select/cons_tres
StateSaveLocation=/state
SlurmctldPidFile=/run/slurmctld.pid
SlurmctldLogFile=/state/log
MailProg=/usr/bin/scontrol
PartitionName=all Nodes=ALL Default=YES
"""
_SCRIPT = """\
set -e
hostname controller
ip link set lo up
ip address add 192.0.2.1/32 dev lo  # without it no address but the loopback's is looked up
for folder in $IN_MEMORY; do mount -t tmpfs none "$ROOT/$folder"; done
mount -t proc none "$ROOT/proc"
mount --bind /dev "$ROOT/dev"
cp "$FILES"/* "$ROOT/etc/slurm"
for names in $LISTS; do chroot "$ROOT" /usr/bin/scontrol show hostlist "$names"; done
[ -z "$LISTS" ] || exit 0
chroot "$ROOT" /usr/sbin/slurmctld -D -c >"$ROOT/state/output" 2>&1 &
for turn in $(seq 200); do
    chroot "$ROOT" /usr/bin/scontrol show topology 2>/dev/null && exit
    kill -0 $! 2>/dev/null || break
    sleep 0.2
done
cat "$ROOT/state/log" "$ROOT/state/output" >&2
exit 1
"""
_SECONDS = 120


class SlurmFailed(Exception):
    """The controller does not start; with its log."""


class Slurm(Struct, frozen=True):
    """A controller that can be started."""

    root: Path
    version: str

    def show_topology(self, files: Mapping[str, str], nodes: str, settings: str = "") -> str:
        """Start with these configuration files and return what ``scontrol show topology`` prints.

        Raises:
            SlurmFailed: it does not take them.
        """
        return self._run({"slurm.conf": f"{_SETTINGS}{settings}\n{_describe(nodes)}", **files})

    def list_hosts(self, lists: Iterable[str]) -> list[str]:
        """``scontrol show hostlist`` of each: the list as Slurm writes it."""
        return self._run({"slurm.conf": _SETTINGS + _describe("none")}, " ".join(lists)).split()

    def _run(self, files: Mapping[str, str], lists: str = "") -> str:
        with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
            for name, text in files.items():
                (Path(folder) / name).write_text(text)
            memory = " ".join(_IN_MEMORY)
            own = {"ROOT": str(self.root), "FILES": folder, "IN_MEMORY": memory, "LISTS": lists}
            done = subprocess.run(
                ["unshare", "-m", "-n", "-p", "-u", "-f", "--kill-child", "bash", "-c", _SCRIPT],
                env={**os.environ, **own},
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        if done.returncode:
            raise SlurmFailed(done.stderr or done.stdout)
        return done.stdout


def _describe(nodes: str) -> str:
    return f"NodeName={nodes} NodeAddr=127.0.0.1 CPUs=1\n"


def fetch_slurm(suite: str, report: Report = lambda _: None) -> Slurm:
    """The cached controller of a Debian suite, or fetch and unpack it (15 s, 20 MB). Blocking.

    Raises:
        Unavailable: no apt, no mirror, no network, or the suite is not served.
    """
    cache = cache_folder("slurm")
    for manifest in sorted(cache.glob(f"{suite}-*/manifest.json"), reverse=True):
        return Slurm(manifest.parent / "root", json.loads(manifest.read_text())["version"])
    release = read_release()
    make_cache(cache)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as temporary:
        return _fetch(Path(temporary), cache, release, suite, report)


def _fetch(work: Path, cache: Path, release: Release, suite: str, report: Report) -> Slurm:
    apt = PrivateApt(work / "apt", release.source, (suite,), release.architecture)
    report(f"reading the package index of {suite}")
    apt.update()
    wanted = [name for name in apt.resolve(_PACKAGES, suite) if name.startswith(_KEPT)]
    report(f"downloading {' and '.join(_PACKAGES)} with {len(wanted) - len(_PACKAGES)} libraries")
    debs = apt.download(wanted, work / "debs")
    root = work / "stage/root"
    for deb in debs.values():
        unpack(deb, root)
    version = read_version(debs["slurmctld"])
    _complete(root)
    (work / "stage/manifest.json").write_text(json.dumps({"version": version}))
    final = cache / f"{suite}-{version.replace(':', '-')}-{release.architecture}"
    keep(work / "stage", final)
    report(f"Slurm {version} is ready in {final}")
    return Slurm(final / "root", version)


def _complete(root: Path) -> None:
    """What the packages' scripts would do: the links of a merged /usr, and the name of the program."""
    for name in ("bin", "lib", "lib64", "sbin"):
        if (root / "usr" / name).is_dir() and not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    program = root / "usr/sbin/slurmctld"
    if not program.exists():
        program.symlink_to("slurmctld-wlm")
    for name in _FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, text in _FILES.items():
        (root / name).write_text(text)


__all__ = ["Slurm", "SlurmFailed", "Unavailable", "fetch_slurm"]
