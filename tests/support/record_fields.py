"""The fields of every class that a claim's record is made of: what a record of ``RECORD_VERSION`` looks like.

``python -m tests.support.record_fields`` writes them down anew. See tests/data/records/README.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

from msgspec import Struct

from dranet.model.plan import RECORD_VERSION, PreparedClaim

RECORDS = Path(__file__).parents[1] / "data" / "records"
FIELDS = RECORDS / f"fields-of-version-{RECORD_VERSION}.json"


def find_fields(kind: Any, found: dict[str, list[str]]) -> dict[str, list[str]]:
    """The names of the fields of every class that a type is made of."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        if kind.__name__ in found:
            return found
        tag = kind.__struct_config__.tag_field
        found[kind.__name__] = [*kind.__struct_fields__, *([tag] if tag else [])]
        for hint in get_type_hints(kind).values():
            find_fields(hint, found)
    for argument in get_args(kind):
        find_fields(argument, found)
    return found


if __name__ == "__main__":
    FIELDS.write_text(json.dumps(find_fields(PreparedClaim, {}), indent=1) + "\n", encoding="utf-8")
