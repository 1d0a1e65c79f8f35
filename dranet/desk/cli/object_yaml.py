"""How YAML becomes JSON for Kubernetes' objects: dates stay text, and a key may be given once."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

_Loader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class TextLoader(_Loader):  # type: ignore[misc]
    """The safe loader, as the API's own reader has it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice!r} is there twice", node.start_mark
            )
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


# To the API's own reader these letters are booleans, to this library they are text.
_LETTERS = re.compile(r"^[yYnN]$")
_BOOLEAN = "tag:yaml.org,2002:bool"

TextLoader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in _Loader.yaml_implicit_resolvers.items()
}
TextLoader.bool_values = {**_Loader.bool_values, "y": True, "n": False}
TextLoader.add_implicit_resolver(_BOOLEAN, _LETTERS, list("yYnN"))
