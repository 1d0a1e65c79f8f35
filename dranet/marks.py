"""Marked steps of the walks: the places between which a driver that is killed leaves something half done.

Between any two of them the driver changes something outside of its process. Nobody listens in production, and
a mark is a look-up and a call of nothing. A test build of the driver listens, and kills itself at the step
that it was armed for; what the next one makes of the rest is judged (``tests/survival``). The text of each
member begins with the module, below ``dranet/``, that reaches it; that is the only place.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

Listener = Callable[["Step"], None]


class Step(StrEnum):
    """``walk:step``. A walk over several links or claims reaches a step several times."""

    # --- prepare: what the kubelet asks for ---
    PREPARE_CLAIM_FETCHED = "prepare:claim-fetched"
    """``driver/prepare.py``: the claim is known, and nothing is done for it."""
    PREPARE_LEASE_TAKEN = "prepare:lease-taken"
    """``driver/leases.py``: a DHCP server has given an address; no record tells of it."""
    PREPARE_STATE_READ = "prepare:state-read"
    """``driver/prepare.py``: the host state is read and the plan is made, in memory alone."""
    PREPARE_RECORD_COMMITTED = "prepare:record-committed"
    """``driver/prepare.py``: the record is on the disk."""
    PREPARE_LINKS_SET_DOWN = "prepare:links-set-down"
    """``driver/attachments.py``: the links are on the host, and down."""
    PREPARE_METADATA_WRITTEN = "prepare:metadata-written"
    """``driver/container_files.py``: the files that containers read are there, no CDI spec mounts them."""
    PREPARE_FILE_STAGED = "prepare:file-staged"
    """``files.py``: a CDI spec, or a file that containers read, is written under a passing name."""
    PREPARE_CDI_WRITTEN = "prepare:cdi-written"
    """``driver/container_files.py``: the spec is where the runtime looks."""
    PREPARE_BEFORE_ANSWER = "prepare:before-answer"
    """``driver/prepare.py``: all claims of the call are done, and the kubelet has not heard of it."""

    # --- attach: the pod's sandbox runs, its containers are created ---
    ATTACH_PLACE_COMMITTED = "attach:place-committed"
    """``driver/attachments.py``: the records say in which sandbox the devices are; they are on the host."""
    ATTACH_LINK_FOUND = "attach:link-found"
    """``kernel/attachment/attach.py``: the next link is about to move."""
    ATTACH_LINK_MOVED = "attach:link-moved"
    """``kernel/attachment/attach.py``: it is in the pod, down and bare."""
    ATTACH_SUBLINK_UNNAMED = "attach:sublink-unnamed"
    """``kernel/attachment/sublink.py``: a link on top of a parent is in the pod, under a passing name."""
    ATTACH_SUBLINK_CREATED = "attach:sublink-created"
    """``kernel/attachment/attach.py``: it is there under its name, down and bare."""
    ATTACH_STEPS_APPLIED = "attach:steps-applied"
    """``kernel/attachment/attach.py``: one more group of a plan's steps is applied."""
    ATTACH_CPUS_SET = "attach:cpus-set"
    """``kernel/attachment/attach.py``: near CPUs work for a device that is in the pod."""
    ATTACH_RDMA_MOVED = "attach:rdma-moved"
    """``kernel/attachment/attach.py``: an RDMA device is in the pod."""
    ATTACH_VERIFIED = "attach:verified"
    """``driver/attachments.py``: all devices were read back from the pod, and the gates are closed."""
    ATTACH_GATE_STAGED = "attach:gate-staged"
    """``driver/gate.py``: a ready file is there under a passing name."""
    ATTACH_GATE_OPENED = "attach:gate-opened"
    """``driver/attachments.py``: the containers of one more claim may start."""
    ATTACH_METADATA_WRITTEN = "attach:metadata-written"
    """``driver/hooks.py``: the files say what the devices are in the pod."""
    ATTACH_BEFORE_ANSWER = "attach:before-answer"
    """``driver/hooks.py``: the runtime has not heard that the sandbox may run."""
    ATTACH_FILES_WRITTEN = "attach:files-written"
    """``driver/workload/pack.py``: a container's files for its programs are there, and it is not created."""
    ATTACH_BEFORE_CONTAINER = "attach:before-container"
    """``driver/hooks.py``: the devices were looked at for a container; the runtime has not heard of it."""
    ATTACH_STATUS_WRITTEN = "attach:status-written"
    """``driver/reports/writer.py``: a claim's status is in the API; more may be waiting."""

    # --- release: the pod's sandbox stops, the kubelet unprepares ---
    RELEASE_GATE_CLOSED = "release:gate-closed"
    """``driver/attachments.py``: no container starts any more; the devices are in the pod."""
    RELEASE_EXTRAS_REMOVED = "release:extras-removed"
    """``kernel/attachment/detach.py``: rules, routes over several links and limits are out of the pod."""
    RELEASE_RDMA_HOME = "release:rdma-home"
    """``kernel/attachment/detach.py``: the RDMA device is on the host, its link in the pod."""
    RELEASE_SUBLINK_DELETED = "release:sublink-deleted"
    """``kernel/attachment/detach.py``: a link on top of a parent is gone."""
    RELEASE_LINK_HOME = "release:link-home"
    """``kernel/attachment/detach.py``: a link is on the host, as the pod had it."""
    RELEASE_LINK_NAMED = "release:link-named"
    """``kernel/attachment/restore.py``: name, MTU and the like were asked for; settings were not."""
    RELEASE_LINK_TUNED = "release:link-tuned"
    """``kernel/attachment/restore.py``: sysctls and offloads, too; addresses and routes were not."""
    RELEASE_LINK_SETTLED = "release:link-settled"
    """``kernel/attachment/detach.py``: a link is as Prepare found it, but for the CPUs that work for it."""
    RELEASE_LINK_RESTORED = "release:link-restored"
    """``kernel/attachment/detach.py``: the link is as Prepare found it; the record has it in the pod."""
    RELEASE_DEVICES_HOME = "release:devices-home"
    """``driver/attachments.py``: all devices of a claim are home; the record has them in the pod."""
    RELEASE_PLACE_CLEARED = "release:place-cleared"
    """``driver/attachments.py``: the record has them on the host."""
    RELEASE_BEFORE_STOP_ANSWER = "release:before-stop-answer"
    """``driver/hooks.py``: the runtime has not heard that the sandbox may go."""
    RELEASE_LEASES_ENDED = "release:leases-ended"
    """``driver/leases.py``: the DHCP server has its addresses back; the record has the leases."""
    RELEASE_CDI_REMOVED = "release:cdi-removed"
    """``driver/container_files.py``: the spec is gone."""
    RELEASE_METADATA_REMOVED = "release:metadata-removed"
    """``driver/container_files.py``: the files that containers read are gone."""
    RELEASE_RECORD_DELETED = "release:record-deleted"
    """``driver/prepare.py``: nothing tells of the claim."""
    RELEASE_BEFORE_ANSWER = "release:before-answer"
    """``driver/prepare.py``: the kubelet has not heard of it."""

    # --- publish: slices in the API server ---
    PUBLISH_BEGUN = "publish:begun"
    """``cluster/slice_sync.py``: the slices are not the desired ones, and none is written."""
    PUBLISH_SLICE_CREATED = "publish:slice-created"
    """``cluster/slice_writer.py``: one more slice is there; the others are as they were."""
    PUBLISH_SLICE_UPDATED = "publish:slice-updated"
    """``cluster/slice_writer.py``: one more slice is changed; the others are as they were."""
    PUBLISH_SLICE_DELETED = "publish:slice-deleted"
    """``cluster/slice_writer.py``: one more slice is gone; the others are as they were."""
    PUBLISH_DONE = "publish:done"
    """``cluster/slice_sync.py``: all are written, and nobody was told."""

    # --- migrate: the store of an earlier version is opened, and its records written again ---
    MIGRATE_TABLES_MADE = "migrate:tables-made"
    """``store/opening.py``: the file has the tables of this version; no record was read."""
    MIGRATE_SET_ASIDE = "migrate:set-aside"
    """``store/opening.py``: a record that cannot be read was moved to where it blocks nobody."""
    MIGRATE_VERSION_SET = "migrate:version-set"
    """``store/writing.py``: records and version are written, in a transaction that is not committed."""
    MIGRATE_COMMITTED = "migrate:committed"
    """``store/writing.py``: a transaction is on the disk, and memory has what was before."""

    # --- hand-over: from one instance of the driver to the next ---
    HANDOVER_JOINED = "hand-over:joined"
    """``driver/instances/roster.py``: the instance lives for the others, and is nothing to them."""
    HANDOVER_REQUEST_LEFT = "hand-over:request-left"
    """``driver/instances/roster.py``: it has asked for the duties."""
    HANDOVER_DUTIES_RELEASED = "hand-over:duties-released"
    """``driver/instances/handover.py``: nobody has the duties; the request lies there."""
    HANDOVER_DUTIES_GIVEN = "hand-over:duties-given"
    """``driver/instances/handover.py``: the one who had them has stepped back."""
    HANDOVER_DUTIES_LOCKED = "hand-over:duties-locked"
    """``driver/instances/handover.py``: the next one has them, and is its own successor as well."""
    HANDOVER_DUTIES_TAKEN = "hand-over:duties-taken"
    """``driver/instances/handover.py``: the way is free for another successor; no duty is done yet."""
    HANDOVER_GOODBYE_SAID = "hand-over:goodbye-said"
    """``driver/instances/handover.py``: the old one is told to stop, and nobody counts on it."""
    HANDOVER_DEREGISTERED = "hand-over:deregistered"
    """``driver/instances/leaving.py``: the kubelet's next calls are for the other one."""
    HANDOVER_SOCKETS_REMOVED = "hand-over:sockets-removed"
    """``kubelet/kubelet_plugin.py``: the kubelet cannot reach the old one any more."""
    HANDOVER_NAME_REMOVED = "hand-over:name-removed"
    """``driver/instances/roster.py``: it is no instance any more; its words lie there."""

    @property
    def walk(self) -> str:
        """What it is a step of."""
        return self.partition(":")[0]


class _Ear:
    listener: Listener | None = None


def reached(step: Step) -> None:
    """A walk has come to this step."""
    if _Ear.listener is not None:
        _Ear.listener(step)


def listen(listener: Listener | None) -> None:
    """Hear of each step, on the thread that reaches it; ``None``: nobody does. For test builds alone."""
    _Ear.listener = listener
