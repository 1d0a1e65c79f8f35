"""The page of what is restored is made by what records and restores: field by field."""

from __future__ import annotations

from msgspec import Struct

from dranet.kernel.attachment.hardware import HARDWARE
from dranet.kernel.attachment.properties import PROPERTIES
from dranet.kernel.ethtool.messages import PARTS
from dranet.model.plan import AttachPlan, EthtoolState, LinkState
from tools.pages.restored import DEVICE, IDENTITY, LINK, list_restored

AID = {"fixed", "maxima", "refused"}
"""Fields of ``EthtoolState`` that a plan is made with; nobody can set them."""


def names(kind: type[Struct]) -> set[str]:
    return set(kind.__struct_fields__)


def test_each_field_of_the_record_of_a_link_has_a_row_on_the_page() -> None:
    told = {field for row in list_restored() for field in row.fields}
    assert told - {field for row in DEVICE for field in row.fields} == names(LinkState) - IDENTITY
    assert {field for row in DEVICE for field in row.fields} <= names(AttachPlan)


def test_each_part_of_ethtool_is_recorded_and_has_a_row() -> None:
    assert set(PARTS) == names(EthtoolState) - AID
    rows = [row.what for row in list_restored() if row.fields == ("ethtool",)]
    assert len(rows) == len(PARTS)
    for part in PARTS.values():
        assert any(f"`ethtool {part.option}`" in row for row in rows), part


def test_what_is_compared_at_release_has_a_row() -> None:
    assert {item.field for item in PROPERTIES} <= {field for row in LINK for field in row.fields}
    assert set(HARDWARE) <= {field for row in list_restored() for field in row.fields}
