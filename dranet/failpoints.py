"""Failpoints: named places in the walks at which a test build of the driver can kill itself.

Between two failpoints the driver changes something outside its process. A driver that is killed there leaves
that change half done, and ``tests/survival`` checks what the next driver makes of it. In production there is
no listener, and a failpoint costs one attribute lookup.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

Listener = Callable[["Failpoint"], None]


class Failpoint(StrEnum):
    """``walk:step``. A walk over several links or claims reaches the same failpoint several times."""

    # --- prepare: the kubelet prepares a claim ---
    PREPARE_CLAIM_FETCHED = "prepare:claim-fetched"
    """The claim is known, and nothing has been done for it."""
    PREPARE_PROFILE_NOTED = "prepare:profile-noted"
    """The journal has the profiles that the provider is about to be asked for."""
    PREPARE_PROFILE_OBTAINED = "prepare:profile-obtained"
    """The provider has given the profiles of a claim, of which no record exists yet."""
    PREPARE_LEASE_TAKEN = "prepare:lease-taken"
    """A DHCP server has granted an address that no record contains yet."""
    PREPARE_ADDRESS_NOTED = "prepare:address-noted"
    """The journal has the requests of a claim, and no IPAM plugin was asked."""
    PREPARE_ADDRESS_TAKEN = "prepare:address-taken"
    """A plugin has given an address that no record contains yet."""
    PREPARE_STATE_READ = "prepare:state-read"
    """The host state is read and the plan is made, both in memory only."""
    PREPARE_RECORD_COMMITTED = "prepare:record-committed"
    """The record is on disk."""
    PREPARE_LINKS_SET_DOWN = "prepare:links-set-down"
    """The links are on the host, and down."""
    PREPARE_METADATA_WRITTEN = "prepare:metadata-written"
    """The files that containers read exist, and no CDI spec mounts them yet."""
    PREPARE_FILE_STAGED = "prepare:file-staged"
    """A CDI spec, or a file that containers read, is written under its temporary name."""
    PREPARE_CDI_WRITTEN = "prepare:cdi-written"
    """The spec is where the runtime looks for it."""
    PREPARE_BEFORE_ANSWER = "prepare:before-answer"
    """All claims of the call are done, and the kubelet has not been answered."""

    # --- attach: the pod's sandbox runs, its containers are created ---
    ATTACH_PLACE_COMMITTED = "attach:place-committed"
    """The records name the sandbox that gets the devices, which are still on the host."""
    ATTACH_LINK_FOUND = "attach:link-found"
    """The next link is about to move."""
    ATTACH_LINK_MOVED = "attach:link-moved"
    """The link is in the pod, down and unconfigured."""
    ATTACH_SUBLINK_UNNAMED = "attach:sublink-unnamed"
    """A link on top of a parent is in the pod, under its temporary name."""
    ATTACH_SUBLINK_CREATED = "attach:sublink-created"
    """The link on top of a parent has its final name, and is down and unconfigured."""
    ATTACH_STEPS_APPLIED = "attach:steps-applied"
    """Another group of the plan's steps is applied."""
    ATTACH_CPUS_SET = "attach:cpus-set"
    """Nearby CPUs serve a device that is in the pod."""
    ATTACH_RDMA_MOVED = "attach:rdma-moved"
    """An RDMA device is in the pod."""
    ATTACH_VERIFIED = "attach:verified"
    """All devices were read back from the pod, and the start gates are closed."""
    ATTACH_GATE_STAGED = "attach:gate-staged"
    """A ready file exists under its temporary name."""
    ATTACH_GATE_OPENED = "attach:gate-opened"
    """The containers of another claim may start."""
    ATTACH_METADATA_WRITTEN = "attach:metadata-written"
    """The files describe the devices as they are in the pod."""
    ATTACH_BEFORE_ANSWER = "attach:before-answer"
    """The runtime has not been answered that the sandbox may run."""
    ATTACH_FILES_WRITTEN = "attach:files-written"
    """The files for a container's programs exist, and the container is not created."""
    ATTACH_BEFORE_CONTAINER = "attach:before-container"
    """The devices were checked for a container, and the runtime has not been answered."""
    ATTACH_STATUS_WRITTEN = "attach:status-written"
    """The status of a claim is in the API; others may be waiting."""

    # --- release: the pod's sandbox stops, the kubelet unprepares ---
    RELEASE_GATE_CLOSED = "release:gate-closed"
    """No container starts any longer; the devices are in the pod."""
    RELEASE_EXTRAS_REMOVED = "release:extras-removed"
    """Rules, multipath routes and limits are removed from the pod."""
    RELEASE_RDMA_HOME = "release:rdma-home"
    """The RDMA device is on the host, its link in the pod."""
    RELEASE_SUBLINK_DELETED = "release:sublink-deleted"
    """A link on top of a parent is deleted."""
    RELEASE_LINK_HOME = "release:link-home"
    """A link is on the host, configured as in the pod."""
    RELEASE_LINK_NAMED = "release:link-named"
    """Name, MTU and the like were restored; settings were not."""
    RELEASE_LINK_TUNED = "release:link-tuned"
    """Sysctls and offloads were also restored; addresses and routes were not."""
    RELEASE_LINK_SETTLED = "release:link-settled"
    """A link is as Prepare found it, except for the CPUs that serve it."""
    RELEASE_LINK_RESTORED = "release:link-restored"
    """The link is as Prepare found it; its record still places it in the pod."""
    RELEASE_DEVICES_HOME = "release:devices-home"
    """All devices of a claim are on the host; the record still places them in the pod."""
    RELEASE_PLACE_CLEARED = "release:place-cleared"
    """The record places them on the host."""
    RELEASE_BEFORE_STOP_ANSWER = "release:before-stop-answer"
    """The runtime has not been answered that the sandbox may be removed."""
    RELEASE_LEASES_ENDED = "release:leases-ended"
    """The DHCP server has its addresses back; the record still contains the leases."""
    RELEASE_PROFILE_RETURNED = "release:profile-returned"
    """The provider has a profile back; the journal still has it."""
    RELEASE_CDI_REMOVED = "release:cdi-removed"
    """The spec is removed."""
    RELEASE_METADATA_REMOVED = "release:metadata-removed"
    """The files that containers read are removed."""
    RELEASE_RECORD_DELETED = "release:record-deleted"
    """Nothing on the node refers to the claim."""
    RELEASE_ADDRESS_RETURNED = "release:address-returned"
    """A plugin has released an address, and the journal still has its request."""
    RELEASE_BEFORE_ANSWER = "release:before-answer"
    """The kubelet has not been answered."""

    # --- publish: slices in the API server ---
    PUBLISH_BEGUN = "publish:begun"
    """The slices differ from the desired ones, and none is written."""
    PUBLISH_SLICE_CREATED = "publish:slice-created"
    """Another slice exists; the rest are unchanged."""
    PUBLISH_SLICE_UPDATED = "publish:slice-updated"
    """Another slice is updated; the rest are unchanged."""
    PUBLISH_SLICE_DELETED = "publish:slice-deleted"
    """Another slice is deleted; the rest are unchanged."""
    PUBLISH_DONE = "publish:done"
    """All slices are written, and no listener has been called."""

    # --- functions: virtual functions, by the rules of a file ---
    FUNCTIONS_REMOVED = "functions:removed"
    """A physical function has none any more, and none of the new ones."""
    FUNCTIONS_MADE = "functions:made"
    """They exist, without defaults and without drivers."""
    FUNCTIONS_DEFAULTS_SET = "functions:defaults-set"
    """Another one has its defaults, and no driver."""
    FUNCTIONS_DRIVER_BOUND = "functions:driver-bound"
    """Another one has its driver."""

    # --- migrate: the store of an earlier version is opened, and its records are written again ---
    MIGRATE_OPENED = "migrate:opened"
    """The folder of records is there; no record was read."""
    MIGRATE_SET_ASIDE = "migrate:set-aside"
    """An unreadable record is renamed, so that it blocks nothing."""
    MIGRATE_STAGED = "migrate:staged"
    """A record is written under a temporary name."""
    MIGRATE_REPLACED = "migrate:replaced"
    """A record has its name; others of the same step may not."""
    MIGRATE_COMMITTED = "migrate:committed"
    """A step is on disk, and memory still has the previous state."""

    # --- hand-over: from one instance of the driver to the next ---
    HANDOVER_JOINED = "hand-over:joined"
    """The other instances see this one, which has no role yet."""
    HANDOVER_REQUEST_LEFT = "hand-over:request-left"
    """The instance has asked to become the leader."""
    HANDOVER_DUTIES_RELEASED = "hand-over:duties-released"
    """No instance is the leader; the request is still there."""
    HANDOVER_LEAD_PASSED = "hand-over:lead-passed"
    """The previous leader has stepped back."""
    HANDOVER_LEAD_LOCKED = "hand-over:lead-locked"
    """The next leader holds both locks: the leader's and the successor's."""
    HANDOVER_DUTIES_TAKEN = "hand-over:duties-taken"
    """Another instance may queue as successor; the new leader has not begun its work."""
    HANDOVER_GOODBYE_SENT = "hand-over:goodbye-sent"
    """The previous instance is asked to stop, and the others no longer rely on it."""
    HANDOVER_DEREGISTERED = "hand-over:deregistered"
    """The kubelet sends its next calls to the other instance."""
    HANDOVER_SOCKETS_REMOVED = "hand-over:sockets-removed"
    """The kubelet can no longer reach the previous instance."""
    HANDOVER_NAME_REMOVED = "hand-over:name-removed"
    """It is no longer a member; its messages to the others are still there."""

    @property
    def walk(self) -> str:
        return self.partition(":")[0]


class _Registered:
    listener: Listener | None = None


def reached(failpoint: Failpoint) -> None:
    if _Registered.listener is not None:
        _Registered.listener(failpoint)


def listen(listener: Listener | None) -> None:
    """Call ``listener`` at each failpoint, on the thread that reaches it. Only test builds do."""
    _Registered.listener = listener
