"""The ready gate: a container whose NIC is not verified in its namespace does not start.

Prepare answers with a CDI device that mounts a per-claim *ready file*. The file is a link to the network
namespace of the sandbox in which the claim was attached and verified, so it can be mounted only as long as
that sandbox lives; otherwise the OCI runtime cannot make the mount and the container is not created. This
holds even when the runtime has skipped our hook, which it does when a plugin is late or gone (it "fails
open"), and when a sandbox is replaced while no driver runs.
"""

from __future__ import annotations

from pathlib import Path

from dranet.errors import StoreError
from dranet.model.sandbox import Mount

CONTAINER_FOLDER = "/var/run/dranet/claims"
"""Where a container sees the ready files of its claims."""


class ReadyGate:
    """The ready files below ``<state_dir>/ready``; an empty folder means that nothing is attached."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "ready"

    def mount_for(self, claim_uid: str) -> Mount:
        """The mount that holds a container back until the claim is attached."""
        return Mount(source=str(self._folder / claim_uid), destination=f"{CONTAINER_FOLDER}/{claim_uid}")

    def find_claim(self, mount: Mount) -> str | None:
        """UID of the claim whose ready file this is; ``None`` for any other mount."""
        source = Path(mount.source)
        return source.name if source.parent == self._folder else None

    def is_open(self, claim_uid: str) -> bool:
        """Whether a container of the claim could start now."""
        return (self._folder / claim_uid).exists()

    def open(self, claim_uid: str, netns_path: str) -> None:
        """Let the claim's containers start in the sandbox with this network namespace; replaces an older one.

        Raises:
            StoreError: the file cannot be made; the containers stay held back.
        """
        fresh = self._folder / f".{claim_uid}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(netns_path)
            fresh.replace(self._folder / claim_uid)
        except OSError as error:
            raise _unwritable(self._folder / claim_uid, error) from error

    def close(self, claim_uid: str) -> None:
        """Hold the claim's containers back; repeatable.

        Raises:
            StoreError: the file cannot be removed; containers may still start.
        """
        try:
            (self._folder / claim_uid).unlink(missing_ok=True)
        except OSError as error:
            raise _unwritable(self._folder / claim_uid, error) from error

    def list_open(self) -> frozenset[str]:
        """Claim UIDs whose gate was opened, also where the sandbox has ended since.

        Raises:
            StoreError: the folder cannot be read.
        """
        try:
            return frozenset(entry.name for entry in self._folder.iterdir())
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise _unwritable(self._folder, error) from error


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"ready file {path}: {error.strerror}", hint="is the state folder a writable mount with free space?"
    )
