"""The rules of ``dranet validate`` and the findings that break them.

A finding has a rule, the place where it is broken, and a fix. The page ``docs/reference/validate-rules.md``
lists the same rules; a test compares.
"""

from __future__ import annotations

from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable


_SHOWN_MAX = 80


class LintSeverity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """It is refused, or the pod does not start."""
    WARNING = "warning"
    """It may fail, or does not do what it seems to."""
    NOTE = "note"
    """Worth knowing; nothing is wrong."""


class LintRule(Struct, frozen=True):
    """One thing that is looked for."""

    name: str
    severity: LintSeverity
    finds: str
    """What it finds, as a clause of a table."""
    why: str
    """What comes of it, as a sentence."""


class LintFinding(Struct, frozen=True):
    """One rule broken at one place."""

    rule: LintRule
    path: str
    """The field, from the object: ``spec.devices.requests[0].exactly.count``."""
    text: str
    """What is wrong, in a line."""
    fix: str = ""

    @property
    def severity(self) -> LintSeverity:
        return self.rule.severity


def suggest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """``did you mean X?`` if one of ``known`` is spelt like ``name``."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    similar = get_close_matches(name[:_SHOWN_MAX].lower(), by_lower, n=1)
    return f"did you mean {by_lower[similar[0]]}?" if similar else otherwise


_NEARLY = 0.85


def find_misspelt(name: str, known: Iterable[str]) -> str:
    """The one of ``known`` that ``name`` was meant to be; empty where they differ by more than a slip of the
    fingers, or by a digit alone, as ``rail-0`` and ``rail-1`` do."""
    letters = _without_digits(name)
    others = [one for one in known if _without_digits(one) != letters]
    similar = get_close_matches(name[:_SHOWN_MAX], others, n=1, cutoff=_NEARLY)
    return similar[0] if similar else ""


def _without_digits(name: str) -> str:
    return "".join(letter for letter in name if not letter.isdigit())


def show(value: object) -> str:
    """A name or another value, quoted and short."""
    text = str(value)
    return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "...")


_ERROR, _WARNING, _NOTE = LintSeverity.ERROR, LintSeverity.WARNING, LintSeverity.NOTE

SHAPE = LintRule(
    "shape",
    _ERROR,
    "a field whose value has the wrong type",
    "The API server refuses the object; it is not checked further here.",
)
REFUSED = LintRule(
    "refused",
    _ERROR,
    "a name, a number of entries or a combination that the API does not take",
    "The API server refuses the object.",
)
UNREADABLE = LintRule(
    "unreadable",
    _ERROR,
    "a file that is no YAML, or a document that is no object: without apiVersion, kind or a name",
    "kubectl refuses it; it is not checked here.",
)
NO_OBJECT = LintRule(
    "no-object",
    _NOTE,
    "a file of a folder that has no Kubernetes object, such as values.yaml of a Helm chart",
    "It is not checked here, and kubectl apply of the folder fails.",
)
UNKNOWN_KIND = LintRule(
    "unknown-kind",
    _ERROR,
    "a kind that resource.k8s.io does not have, or a kind or group that is nearly one of those checked here",
    "No API server has it; the object is not checked further.",
)
API_VERSION = LintRule(
    "api-version",
    _ERROR,
    "an object of another version of resource.k8s.io than v1: v1beta2, v1beta1, v1alpha3, or one that does "
    "not exist",
    "Kubernetes 1.34 and later serve only v1 by default, and kubectl finds no such kind.",
)
UNKNOWN_FIELD = LintRule(
    "unknown-field",
    _ERROR,
    "a field that the API does not have, often one from v1beta1",
    "kubectl refuses it; other clients drop it without a message.",
)
DUPLICATE = LintRule(
    "duplicate",
    _ERROR,
    "two objects of one kind, name and namespace",
    "The one that is applied last replaces the other.",
)
PARAMETERS = LintRule(
    "parameters",
    _ERROR,
    "opaque parameters that the driver refuses, or that the DeviceClass does not allow",
    "The driver refuses the claim; the pod stays in ContainerCreating until you delete it.",
)
NO_INTERFACE = LintRule(
    "no-interface",
    _ERROR,
    "a config for GPUs alone, or settings of an interface for an RDMA-only device",
    "The driver refuses the claim; the pod stays in ContainerCreating until you delete it.",
)
PROFILE = LintRule(
    "profile",
    _NOTE,
    "parameters that name a profile",
    "The node's profile provider (setting `profile_provider`) gives it when the pod starts. Without one, or "
    "while it is away, Prepare refuses the claim.",
)
DRIVER_UNKNOWN = LintRule(
    "driver-unknown",
    _WARNING,
    "a config for a driver that is nearly ours, or that publishes nothing in the given slices",
    "No driver reads the config, and no error shows it.",
)
REQUEST_UNKNOWN = LintRule(
    "request-unknown",
    _ERROR,
    "a config, a constraint or a container that names a request which the claim does not have",
    "The API server refuses the claim, or the pod does not start.",
)
CLASS_MISSING = LintRule(
    "class-missing",
    _ERROR,
    "a DeviceClass that the cluster does not have (with --live)",
    "The pod stays Pending: no device can be chosen without the class.",
)
CLASS_MISSPELT = LintRule(
    "class-misspelt",
    _WARNING,
    "a DeviceClass that is nearly one of the files, of the driver's chart or of a GPU vendor",
    "The pod stays Pending unless the cluster has a class of this name.",
)
CLASS_NOT_PROVIDED = LintRule(
    "class-not-given",
    _NOTE,
    "a DeviceClass that is not in the files, where others are",
    "Its selectors and its policy are not looked at. It may be in the cluster.",
)
TOO_MANY = LintRule(
    "too-many-devices",
    _ERROR,
    "a claim that asks for more than 32 devices",
    "It can never be allocated.",
)
ALTERNATIVE = LintRule(
    "alternative-unreachable",
    _WARNING,
    "an alternative that asks for no less than one before it, under no fewer constraints",
    "Whenever it could be chosen, the earlier one is.",
)
CONSTRAINT_ALONE = LintRule(
    "constraint-alone",
    _WARNING,
    "a constraint over one device",
    "There is nothing to compare it with; it only demands that the attribute is there.",
)
CONSTRAINT_UNKNOWN = LintRule(
    "constraint-unknown",
    _WARNING,
    "a constraint on an attribute that this driver does not publish and no given slice has",
    "A device without the attribute never satisfies it.",
)
NEVER_SHARED = LintRule(
    "constraint-never-met",
    _WARNING,
    "matchAttribute on an attribute of which the given devices never share a value",
    "No choice of devices satisfies the claim on any given node.",
)
SELECTOR = LintRule(
    "selector",
    _ERROR,
    "a selector that is not CEL, or not of the device dialect",
    "The API server refuses it.",
)
CAPACITY_UNKNOWN = LintRule(
    "capacity-unknown",
    _WARNING,
    "a request for a capacity that no device which it selects publishes under this name",
    "The pod stays Pending. The scheduler compares names as they are written, with their domain.",
)
CAPACITY_TOO_MUCH = LintRule(
    "capacity-too-much",
    _WARNING,
    "a request for more of a capacity than any device which it selects has",
    "The pod stays Pending, however little other claims take.",
)
BANDWIDTH_UNCOUNTED = LintRule(
    "bandwidth-uncounted",
    _WARNING,
    "a request for dra.net/bandwidth that selects no shared NIC and no virtual function that counts it",
    "The pod stays Pending: a device without the capacity does not match the request.",
)
SELECTOR_COSTS = LintRule(
    "selector-costs",
    _ERROR,
    "a selector that reads text or a list to its end whose length the cluster cannot know",
    "The API server takes it for too complex and refuses it: it may exceed the cost limit.",
)
SELECTOR_FAILS = LintRule(
    "selector-fails",
    _ERROR,
    "a selector that fails on a device of the given slices or captures",
    "One such device on a node is enough: the pod cannot be scheduled, whatever else is free.",
)
SELECTOR_MAY_FAIL = LintRule(
    "selector-may-fail",
    _WARNING,
    "a selector that fails on a device which leaves out an attribute",
    "One such device on a node is enough: the pod cannot be scheduled, whatever else is free.",
)
SELECTOR_NOT_JUDGED = LintRule(
    "selector-not-judged",
    _NOTE,
    "a selector with functions that this program does not have",
    "A cluster may well evaluate it; it is not judged here.",
)
ATTRIBUTE_UNKNOWN = LintRule(
    "attribute-unknown",
    _WARNING,
    "an attribute that this driver does not publish and no given slice has",
    "Where it is guarded the selector never matches, elsewhere it fails.",
)
UNALIGNED = LintRule(
    "unaligned",
    _WARNING,
    "a claim, or the claims of a pod, for GPUs and NICs that no constraint relates",
    "The distance between NIC and GPU is luck: traffic may cross the processors' link.",
)
BY_CHANCE = LintRule(
    "alignment-by-chance",
    _WARNING,
    "a pod with NICs of a claim and GPUs of a device plugin, but not all of the node",
    "The kubelet chooses the GPUs after the scheduler has chosen the NICs: their distance is luck.",
)
GPU_TWICE = LintRule(
    "gpu-twice",
    _WARNING,
    "a pod that asks for GPUs by a claim and by an extended resource of its containers",
    "It takes both: more GPUs than it needs, or it stays Pending where only one of the two drivers runs.",
)
NO_MATCH = LintRule(
    "no-match",
    _WARNING,
    "a request that no device of the given slices or captures matches",
    "The pod stays Pending on the given nodes.",
)
OTHER_TYPE = LintRule(
    "other-type",
    _WARNING,
    "an attribute of this driver that is compared with a value of another type",
    "Nothing is converted: == is never true, and < is an error.",
)
CLAIM_KIND = LintRule(
    "claim-kind",
    _WARNING,
    "a pod that names as a claim what is a template, or the reverse",
    "The pod stays Pending: they are two kinds of objects.",
)
CLAIM_MISSING = LintRule(
    "claim-missing",
    _ERROR,
    "a pod whose claim or template the cluster does not have (with --live)",
    "The pod stays Pending.",
)
CLAIM_MISSPELT = LintRule(
    "claim-misspelt",
    _WARNING,
    "a pod whose claim or template is not in the files, where one has nearly its name",
    "The pod stays Pending unless the cluster has one of this name.",
)
CLAIM_NOT_PROVIDED = LintRule(
    "claim-not-given",
    _NOTE,
    "a pod whose claim or template is not in the files, where others are",
    "It is not checked. It may be in the cluster.",
)
CLAIM_UNDECLARED = LintRule(
    "claim-undeclared",
    _ERROR,
    "a container that names a claim which the pod does not declare",
    "The API server refuses the pod.",
)
CLAIM_UNUSED = LintRule(
    "claim-unused",
    _WARNING,
    "a claim that no container names",
    "No container gets the files of its devices, and none waits until they are in the pod.",
)
CLAIM_SOURCE = LintRule(
    "claim-source",
    _ERROR,
    "a claim of a pod without exactly one of resourceClaimName and resourceClaimTemplateName",
    "The API server refuses the pod.",
)
CLAIM_SHARED = LintRule(
    "claim-shared",
    _WARNING,
    "several pods that name one ResourceClaim",
    "They share its devices, and a network device goes to one of them; a template gives each its own.",
)
ADDRESS_SHARED = LintRule(
    "address-shared",
    _WARNING,
    "a template with interface.addresses from which several pods are made",
    "All of them get the same addresses.",
)
HOST_NETWORK = LintRule(
    "host-network",
    _WARNING,
    "a pod with hostNetwork and a network device",
    "The pod has no network namespace that a device could move to. The driver refuses to start it, unless "
    "all its devices are RDMA-only ones in shared mode.",
)
NODE_NAME = LintRule(
    "node-name",
    _WARNING,
    "a pod that comes with its nodeName and has claims",
    "The scheduler does not see it, and its claims are never allocated: the pod waits without end.",
)
IFNAME = LintRule(
    "interface-name",
    _ERROR,
    "two devices of a pod with one interface name",
    "The second cannot come into the pod, and the pod does not start.",
)
IFNAME_TAKEN = LintRule(
    "interface-name-taken",
    _WARNING,
    "an interface called eth0",
    "The pod network usually has this name for its own interface. Then the pod does not start.",
)
PRIVILEGED = LintRule(
    "privileged",
    _NOTE,
    "a privileged container that uses a claim",
    "It reaches every device of the node, not only those of its claims.",
)
MEMLOCK = LintRule(
    "memlock",
    _NOTE,
    "a container with an RDMA device and neither CAP_IPC_LOCK nor a memlock parameter",
    "RDMA pins memory, and the runtime's default limit for locked memory is often too small for it.",
)

RULES: tuple[LintRule, ...] = (
    SHAPE,
    REFUSED,
    UNREADABLE,
    NO_OBJECT,
    UNKNOWN_KIND,
    API_VERSION,
    UNKNOWN_FIELD,
    DUPLICATE,
    PARAMETERS,
    NO_INTERFACE,
    PROFILE,
    DRIVER_UNKNOWN,
    REQUEST_UNKNOWN,
    CLASS_MISSING,
    CLASS_MISSPELT,
    CLASS_NOT_PROVIDED,
    TOO_MANY,
    ALTERNATIVE,
    CONSTRAINT_ALONE,
    CONSTRAINT_UNKNOWN,
    NEVER_SHARED,
    UNALIGNED,
    BY_CHANCE,
    GPU_TWICE,
    NO_MATCH,
    CAPACITY_UNKNOWN,
    CAPACITY_TOO_MUCH,
    BANDWIDTH_UNCOUNTED,
    SELECTOR,
    SELECTOR_COSTS,
    SELECTOR_FAILS,
    SELECTOR_MAY_FAIL,
    SELECTOR_NOT_JUDGED,
    ATTRIBUTE_UNKNOWN,
    OTHER_TYPE,
    CLAIM_KIND,
    CLAIM_MISSING,
    CLAIM_MISSPELT,
    CLAIM_NOT_PROVIDED,
    CLAIM_UNDECLARED,
    CLAIM_UNUSED,
    CLAIM_SOURCE,
    CLAIM_SHARED,
    ADDRESS_SHARED,
    HOST_NETWORK,
    NODE_NAME,
    IFNAME,
    IFNAME_TAKEN,
    PRIVILEGED,
    MEMLOCK,
)
"""In the order of the page."""
