"""Files that belong to claims: those of no claim go, and those that a claim lacks are written again.

Ready files, CDI specs and the files that tell containers of their devices. Nothing reads them but the runtime
and containers, so only the driver can notice that somebody has removed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from dranet.driver.attachments import Attachments
from dranet.driver.container_files import ContainerFiles
from dranet.driver.gate import ReadyGate
from dranet.driver.reconcile.actions import Action, ActionLog, Why
from dranet.driver.start_windows import StartWindows
from dranet.errors import StoreError
from dranet.model.plan import PreparedClaim
from dranet.store.claim_store import ClaimStore


class FileReconciler:
    """Files against records. Blocking: for a worker thread."""

    def __init__(
        self,
        boot_id: str,
        store: ClaimStore,
        attachments: Attachments,
        gate: ReadyGate,
        files: ContainerFiles,
        windows: StartWindows,
        actions: ActionLog,
    ) -> None:
        self._boot_id = boot_id
        self._store = store
        self._attachments = attachments
        self._gate = gate
        self._files = files
        self._windows = windows
        self._actions = actions

    def forget_other_boots(self) -> None:
        """After a reboot no namespace, gate or attach of a record is left; the kubelet prepares anew.

        Raises:
            KernelError: another instance holds the node's devices for too long.
            StoreError: the disk refused.
        """
        with self._attachments.locked():
            for record in self._store.get_all():
                if record.boot_id != self._boot_id:
                    for remove in (self._gate.close, self._files.remove):
                        with suppress(StoreError):  # of no record, so the sweep tries it again, and tells
                            remove(record.claim.uid)
                    self._store.delete(record.claim.uid)
                    self._actions.note(Action.FORGOTTEN, Why.REBOOTED, record)

    def sweep_leftovers(self) -> None:
        """Remove ready files, CDI specs and metadata files that no record owns.

        Another instance may be preparing claims: its records come before its files, so files are listed
        first, and no record comes or goes meanwhile.

        Raises:
            KernelError: that instance holds the node's devices for too long.
            StoreError: the disk refused.
        """
        with self._attachments.locked():
            opened, written = self._gate.list_claims(), self._files.list_claims()
            known = {record.claim.uid for record in self._store.get_all()}
            for claim_uid in opened - known:
                self._gate.close(claim_uid)
                self._actions.note_files("ready file", claim_uid)
            for claim_uid in written - known:
                self._files.remove(claim_uid)
                self._actions.note_files("CDI spec, metadata", claim_uid)

    def shut_gates(self) -> None:
        """Of claims that several pods may use, which no container is being started with.

        Raises:
            StoreError: a ready file cannot be removed.
        """
        with self._attachments.locked():
            for pod_uid in {record.pod.uid for record in self._store.get_all()}:
                self._windows.sweep(pod_uid, self._store.get_by_pod(pod_uid))

    def find_unfinished(self, seen_before: Sequence[PreparedClaim]) -> tuple[PreparedClaim, ...]:
        """Of the claims that were prepared some time ago those without their CDI spec: a Prepare that is
        under way writes its own."""
        known = {record.claim.uid for record in self._store.get_all()}
        return tuple(
            record for record in seen_before if record.claim.uid in known and self._files.are_missing(record)
        )
