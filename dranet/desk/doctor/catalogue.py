"""Every id that a finding can have: what ``docs/commands/doctor.md`` lists, and what ``--ignore`` accepts.

``ENTRIES`` are findings about the running driver, the API server and folders; their explanations are written
where they are found. ``CHECKS`` judge facts of the node: a module for each subject has its own ``CHECKS``.
Tests hold a fixture that triggers each id, and one that does not (``tests/desk/doctor``).
"""

from __future__ import annotations

from collections.abc import Iterator

from dranet.desk.doctor import cabling, managers, pcie, rdma, system, tuning
from dranet.desk.doctor.checks import Check, Entry, Surroundings, not_visible
from dranet.model.findings import Finding

RIGHTS = "rights"
CAPABILITY, CALL, FOLDER, GAIN = "capability", "system-call", "node-folder", "no-new-privileges"
_RIGHTS_PAGE = "docs/reference/rights.md"

NO_NEW_PRIVILEGES = Entry(
    GAIN,
    RIGHTS,
    "whether a program that the driver starts could gain rights",
    "The driver starts only IPAM plugins. They, and any program that it is made to start, would get the "
    "rights of a set-user-ID program.",
    "Set `allowPrivilegeEscalation: false` for its container.",
)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "driver-silent",
        "driver",
        "whether a driver of this version answers on its port (--bind-address)",
        "Only a running driver sees what the kubelet and the runtime can do.",
        "Start it and look again; run the doctor of the driver's own image.",
    ),
    Entry(
        "part-not-ready",
        "driver",
        "each part of /readyz: driver, runtime, kubelet, slices",
        "Until it is ready no pod with a claim starts here, or the scheduler does not see the devices.",
        "The finding names the part and its own words; the driver's log has the rest.",
    ),
    Entry(
        "port-certificate",
        "port",
        "whether the certificate that the port shows is the one in its file (--metrics-tls-cert), and good "
        "for a while yet",
        "A certificate that was not renewed is refused by scrapers of the port once it has expired.",
        "Fix the Secret: certificate and key must belong together.",
    ),
    Entry(
        "api-server",
        "api",
        "whether the API server answers, in time, and knows the Node",
        "Without it, no devices are published and no claims are prepared.",
        "Is --kubeconfig right, or is this the driver's pod? Is --node-name the Node's name (downward API)?",
    ),
    Entry(
        "api-field",
        "api",
        "whether the API server keeps the optional fields of slices (feature gates)",
        "What a setting asks for does not reach the scheduler.",
        "Enable the gate that the finding names, in API server and scheduler, or do without the setting.",
    ),
    Entry(
        "permission-missing",
        "permissions",
        "every right of the driver's role, for the user or service account that runs the doctor",
        "The finding names what the right is needed for.",
        "Apply the role of this version (deploy/rbac.yaml), or ask as the driver's service account.",
    ),
    Entry(
        "kubelet-registration",
        "kubelet",
        "whether the kubelet has registered the driver",
        "No pod with a claim of ours starts on this node.",
        "Is --kubelet-root the kubelet's --root-dir, mounted into the pod at the same path?",
    ),
    Entry(
        "kubelet-dra-service",
        "kubelet",
        "which version of the DRA service the kubelet calls",
        "With v1beta1 the shares of one device look alike to the kubelet.",
        "Update the kubelet to 1.35 or later, or leave --shared-devices empty.",
    ),
    Entry(
        "kubelet-health",
        "kubelet",
        "whether the kubelet watches the health of devices",
        "Pods do not show the health of their devices; taints and metrics do not depend on it.",
        "The kubelet's feature gate ResourceHealthStatus.",
    ),
    Entry(
        "runtime-nri",
        "runtime",
        "whether the runtime has connected over NRI, and which runtime it is",
        "No NIC can be attached, so no claim with a NIC is prepared.",
        "Enable NRI in the runtime; is --nri-socket its socket, mounted into the pod?",
    ),
    Entry(
        "runtime-patience",
        "runtime",
        "how long the running runtime waits for a hook",
        "A slow attach goes on behind the hook's answer, and its containers are tried again.",
        "Raise plugin_request_timeout of the runtime above hook_budget_seconds.",
    ),
    Entry(
        "runtime-cdi",
        "runtime",
        "whether a container has come with a CDI device of ours",
        "Until one has, it is not proven that CDI is on.",
        "Nothing to do before the first pod with a claim.",
    ),
    Entry(
        "gpu-offer",
        "gpus",
        "whether this driver offers the node's GPUs, or to whom they are left",
        "Claims that ask the wrong driver for a GPU wait.",
        "See docs/guides/gpus.md; --publish-gpus decides.",
    ),
    Entry(
        "virtual-functions",
        "virtual functions",
        "physical functions with a rule of virtual_functions_file, and what keeps them from it",
        "Claims for the missing virtual functions wait.",
        "See docs/networking/virtual-functions.md.",
    ),
    Entry(
        "ipam-source",
        "ipam",
        "the entries of ipam_file, and whether their plugins can be run",
        "Claims with interface.ipam are refused.",
        "See docs/networking/ipam.md.",
    ),
    Entry(
        "ipam-release",
        "ipam",
        "addresses of claims that are over and that their source does not release",
        "The source runs out of addresses.",
        "See the Events IPAMFailed of the claims; the driver tries again in each reconcile.",
    ),
    Entry(
        "ipam-check",
        "ipam",
        "addresses of prepared claims that are not theirs any more, by their source",
        "Other pods may get the same addresses.",
        "See the Events IPAMFailed of the pods, and delete the pods.",
    ),
    Entry(
        "webhook-provider",
        "webhook",
        "whether the webhook provider (--webhook-url) answers, and does what the settings ask of it",
        "New devices, and claims that name a profile, cannot be prepared; others keep its last answers.",
        "Start the provider, or correct webhook_url; see docs/networking/providers.md.",
    ),
    Entry(
        "cloud-facts",
        "cloud",
        "whether the cloud's metadata service answers",
        "Claims that select by the cloud's attributes wait.",
        "Let the node's network reach the metadata service, or set cloud_provider to off.",
    ),
    Entry(
        "place",
        "places",
        "the folders and the socket that the driver shares with kubelet and runtime",
        "What is missing, read-only or full there stops the driver; the finding describes how.",
        "Mount the node's folder at the same path, or make room.",
    ),
    Entry(
        "store-damaged",
        "places",
        "records of claims that the disk has damaged",
        "A NIC whose record was lost comes back from its pod as the pod had it.",
        "Look at the disk and at dranet prepared; after the pod has ended, dranet forget removes the record.",
    ),
    Entry(
        "settings",
        "settings",
        "under which name, and on which node",
        "With another name or node than the driver's, all other findings are about another driver.",
        "Give the driver's own settings (--config, flags; DRANET_* is there by kubectl exec).",
    ),
    Entry(
        "doctor-blind",
        "view",
        "a part of the node that could not be read at all",
        "It is not judged.",
        "The finding names what failed; run it as root on the node.",
    ),
    Entry(
        CAPABILITY,
        RIGHTS,
        "which of the driver's capabilities this process has",
        "The finding names what it is needed for.",
        f"Add it to `capabilities` of the driver's container ({_RIGHTS_PAGE}).",
    ),
    Entry(
        CALL,
        RIGHTS,
        "whether the driver's system calls are let through, by trying each where it changes nothing",
        "The finding names what it is needed for.",
        f"Use the profile of `dranet seccomp`, or add the call to yours ({_RIGHTS_PAGE}).",
    ),
    Entry(
        FOLDER,
        RIGHTS,
        "whether folders of the node are mounted into the driver's container, writable where they must be",
        "The finding names what it is needed for.",
        f"Mount it as the DaemonSet of this version does ({_RIGHTS_PAGE}).",
    ),
    NO_NEW_PRIVILEGES,
)


CHECKS: tuple[Check, ...] = (
    *system.CHECKS,
    *managers.CHECKS,
    *rdma.CHECKS,
    *pcie.CHECKS,
    *cabling.CHECKS,
    *tuning.CHECKS,
    not_visible,
)
"""In the order in which people read them."""


def list_entries() -> tuple[Entry, ...]:
    """Every id that a finding can have."""
    return (*ENTRIES, *(check.entry for check in CHECKS))


def run_checks(surroundings: Surroundings) -> Iterator[Finding]:
    for check in CHECKS:
        yield from check.run(surroundings)
