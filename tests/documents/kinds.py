"""What each block of the documents is, and so how it is judged.

Every block is one of these. What nothing here can run or judge says so before its fence, by
``<!-- not run here: REASON -->``, with a reason of a closed list.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import yaml

from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import fields_of
from dranet.settings import Settings
from tests.documents.blocks import REPOSITORY, Block
from tests.documents.commands import programs
from tools.pages.examples import PAGES as FILLED_PAGES


class Kind(StrEnum):
    """By what is done with it."""

    SESSION = "a session of `dranet`: run, and what it prints is compared"
    COMMANDS = "commands: run, rendered or judged, by program"
    MANIFEST = "manifests: judged by published schemas, `dranet validate` and the admission policies"
    PARAMETERS = "parameters of a claim: decoded as in Prepare"
    VALUES = "values of the chart: rendered by Helm"
    SETTINGS = "settings of the driver: read as it does"
    EXPRESSION = "an expression: compiled"
    QUERY = "a query, or alert rules: read by Prometheus' own parser"
    SCRAPING = "a configuration of Prometheus: read by `promtool`"
    DATA = "data of a format: read"
    HELD = "held by a test of its own"
    OUTPUT = "what a program says, a file holds, or a drawing (`text`): nothing to type"
    NOT_RUN = "not run here, with a reason"


class Reason(StrEnum):
    """Why a block is not run here."""

    CLUSTER = "needs a cluster"
    ENGINE = "needs a container engine"
    FOREIGN = "needs a program of others"
    EXCERPT = "an excerpt"


OWN_TESTS: Mapping[tuple[str, str], str] = {
    ("README.md", "text"): "tests/whole_driver/test_scenarios.py",
    ("docs/networking/address-pools.md", "text"): "tests/kernel/test_dhcpv6_in_a_pod.py",
    (
        "docs/guides/admission.md",
        "text",
    ): "tests/tools/manifests/admission/test_policies_in_the_api_server.py",
    ("docs/guides/devices.md", "yaml"): "tests/inventory/test_page.py",
    ("docs/guides/devices.md", "cel"): "tests/inventory/test_page.py",
    ("docs/guides/metadata.md", "python"): "tests/driver/test_metadata.py",
    ("docs/guides/metadata.md", "sh"): "tests/driver/test_metadata.py",
    ("docs/guides/migrate-from-dranet.md", "yaml"): "tests/examples/test_migration_page.py",
    ("docs/guides/nccl.md", "sh"): "tests/claims/test_nccl_page.py",
    ("docs/guides/nccl.md", "ini"): "tests/claims/test_nccl_page.py",
    ("docs/operations/monitoring.md", "sh"): "tests/tools/monitoring/test_monitoring_page.py",
    ("docs/reference/nccl-files.md", "xml"): "tests/claims/test_nccl_page.py",
}
"""Page and language -> the test that compares each such block with what the product does."""

JUDGED_PROGRAMS = frozenset({"dranet", "make", "helm", "kubectl", ".venv/bin/python", ".venv/bin/dranet"})
HARMLESS_PROGRAMS = frozenset({"jq", "cd", "curl", "ip", "git", "grep", "head", "ls"})
"""Their words are not judged, and the block is what the others of it are."""

_DATA = frozenset({"json", "toml", "xml", "python", "ini"})
_VALUES = frozenset(yaml.safe_load((REPOSITORY / "charts/dranet/values.yaml").read_text()))
_SETTINGS = frozenset(Settings.__struct_fields__)
_PARAMETERS = {name for field in fields_of(NetworkConfig).values() for name in (field.name, field.attribute)}


def classify(block: Block) -> Kind | None:
    """None where nobody has said what it is."""
    if block.mark:
        return Kind.NOT_RUN if block.mark in set(Reason) else None
    if (block.page, block.language) in OWN_TESTS:
        return Kind.HELD
    match block.language:
        case "":
            return _classify_commands(block)
        case "yaml":
            return _classify_yaml(block)
        case "cel":
            return Kind.EXPRESSION
        case "promql":
            return Kind.QUERY
        case "text":
            return Kind.OUTPUT
    return Kind.DATA if block.language in _DATA else None


def _classify_commands(block: Block) -> Kind | None:
    if block.text.startswith("$ dranet testbed run "):
        return Kind.HELD  # tests/whole_driver/test_scenarios.py
    if block.text.startswith("$ "):
        filled = block.page.removeprefix("docs/") in FILLED_PAGES
        return Kind.SESSION if filled and block.text.startswith("$ dranet ") else None
    called = programs(block.text)
    known = called and called <= JUDGED_PROGRAMS | HARMLESS_PROGRAMS
    return Kind.COMMANDS if known and called & JUDGED_PROGRAMS else None


def _classify_yaml(block: Block) -> Kind | None:
    if list_rules(block):
        return Kind.QUERY
    documents = read_documents(block)
    if all({"apiVersion", "kind"} <= document.keys() for document in documents):
        return Kind.MANIFEST
    if any("scrape_configs" in document for document in documents):
        return Kind.SCRAPING
    if all(document.keys() == {"selectors"} for document in documents):
        return Kind.EXPRESSION
    if all(document.keys() <= _PARAMETERS for document in documents):
        return Kind.PARAMETERS
    if all(document.keys() <= _VALUES for document in documents):
        return Kind.VALUES
    if all(document.keys() <= _SETTINGS for document in documents):
        return Kind.SETTINGS
    return None


def list_rules(block: Block) -> list[dict[str, Any]]:
    """Alert and recording rules, where the block is a list of them."""
    rules = yaml.safe_load(block.text) if block.language == "yaml" and block.text.startswith("- ") else []
    return rules if all("expr" in rule for rule in rules) else []


def read_documents(block: Block) -> list[dict[str, Any]]:
    """The objects of a block of YAML; a list of something is none."""
    try:
        documents = [document for document in yaml.safe_load_all(block.text) if document is not None]
    except yaml.YAMLError:
        return [{"not": "YAML"}]
    return [document if isinstance(document, dict) else {"a": "list"} for document in documents]
