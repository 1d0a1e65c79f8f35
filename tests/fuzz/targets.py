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
from tests.desk.fabric import test_any_slices
from tests.inventory import test_virtual_functions
from tests.ipam import test_cni, test_result
from tests.kernel import test_lldp_lldpd, test_lldp_message
from tests.model import test_address_pool, test_network_config
from tests.providers import test_webhook_devices
from tests.providers.cloud import test_metadata
from tests.support.lldp_switch import build_frame
from tests.view import test_ipam_file

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


def _parse_lldp(data: bytes) -> None:
    test_lldp_message.check(build_frame(data))


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
    "provided-config": _feed(test_config.test_whatever_a_provider_wants_is_decoded_or_refused_with_its_name),
    "plan": _feed(test_plan_properties.test_a_valid_config_gives_a_plan_in_legal_order),
    "plan-for-another-link": _feed(
        test_plan_properties.test_a_config_for_another_link_gives_a_plan_or_names_the_field
    ),
    "dhcp": _parse_dhcp,
    "lldp": _parse_lldp,
    "lldpd": _feed(test_lldp_lldpd.test_any_document_is_read_or_refused),
    "nri-frames": _parse_nri_frames,
    "http": _parse_http,
    "cloud": _feed(
        test_metadata.test_no_answer_breaks_the_parsers_and_what_they_find_fits_a_slice_or_is_named
    ),
    "webhook-attributes": _feed(test_webhook_devices.test_any_attributes_fit_a_slice_or_are_named),
    "cni-plugin": _feed(test_cni.test_whatever_a_plugin_prints_is_an_answer_or_one_printable_line),
    "ipam-result": _feed(test_result.test_any_result_is_an_answer_or_an_error),
    "ipam-file": _feed(test_ipam_file.test_any_value_is_an_entry_or_a_problem),
    "address-pool": _feed(test_address_pool.test_any_value_is_a_pool_or_a_problem),
    "virtual-functions": _feed(test_virtual_functions.test_any_document_is_taken_or_its_problems_are_named),
    "fabric": _feed(test_any_slices.test_any_slices_are_shown_in_every_form),
}
