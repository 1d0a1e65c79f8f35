"""What is fuzzed: property tests, which hypothesis lets a fuzzer feed with bytes, and parsers of raw bytes.

A property test brings its own idea of valid and of wrong, so that the two ways of searching, at random and
by coverage, look for the same promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from dranet.cluster.messages import parse_object
from dranet.errors import ProtocolError
from dranet.http1 import read_body, read_head
from dranet.kernel.dhcp import message, wire
from dranet.wire import FrameDecoder, MuxDecoder
from tests.claims import test_config, test_plan_properties
from tests.model import test_network_config

Target = Callable[[bytes], object]


class _Handle(Protocol):
    fuzz_one_input: Target


class _PropertyTest(Protocol):
    hypothesis: _Handle


def _feed(test: Callable[..., None]) -> Target:
    """A property test as a function of bytes."""
    return cast("_PropertyTest", test).hypothesis.fuzz_one_input


def _parse_dhcp(data: bytes) -> None:
    for parse in (message.parse, wire.parse_frame):
        try:
            parse(data)
        except ProtocolError:
            continue


def _parse_nri_frames(data: bytes) -> None:
    frames = FrameDecoder()
    try:
        for chunk in MuxDecoder().feed(data):
            frames.feed(chunk.data)
    except ProtocolError:
        return


def _parse_http(data: bytes) -> None:
    """An answer of the API server; whole, as more never comes."""
    asyncio.run(_read_answer(data))


async def _read_answer(data: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    try:
        head = await read_head(reader)
        parse_object(await read_body(reader, head, 1 << 16))
    except (ProtocolError, EOFError):
        return


TARGETS: Mapping[str, Target] = {
    "config": _feed(test_network_config.test_any_json_is_either_a_valid_config_or_a_validation_error),
    "claim": _feed(test_config.test_any_json_is_a_config_or_an_error_with_a_field_path_in_every_line),
    "plan": _feed(test_plan_properties.test_a_valid_config_gives_a_plan_in_legal_order),
    "plan-for-another-link": _feed(
        test_plan_properties.test_a_config_for_another_link_gives_a_plan_or_names_the_field
    ),
    "dhcp": _parse_dhcp,
    "nri-frames": _parse_nri_frames,
    "http": _parse_http,
}
