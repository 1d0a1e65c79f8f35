"""The HTTP reader against well-formed, odd and hostile bytes."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dranet.errors import ProtocolError
from dranet.http1 import MAX_HEAD_BYTES, encode_request, parse_head, read_body, read_head

MAX_BODY = 1000


def read(raw: bytes) -> tuple[int, bytes, bool]:
    """Status, body and keep-alive of the response in ``raw``, followed by the end of the connection."""

    async def run() -> tuple[int, bytes, bool]:
        reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES)
        reader.feed_data(raw)
        reader.feed_eof()
        head = await read_head(reader)
        return head.status, await read_body(reader, head, MAX_BODY), head.keep_alive

    return asyncio.run(run())


def test_a_body_with_a_content_length_is_read_exactly() -> None:
    assert read(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, next") == (200, b"hello", True)


def test_a_chunked_body_is_put_together_and_extensions_and_trailers_are_skipped() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"5;x=y\r\nhello\r\nA\r\n, world ok\r\n0\r\nX-T: 1\r\n\r\n"
    assert read(head + body) == (200, b"hello, world ok", True)


def test_a_body_without_framing_lasts_until_the_connection_ends_and_ends_it() -> None:
    assert read(b"HTTP/1.1 200 OK\r\n\r\neverything") == (200, b"everything", False)


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_body_has_none_whatever_the_headers_say(status: int) -> None:
    assert read(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status) == (status, b"", True)


def test_informational_answers_are_skipped() -> None:
    informational = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n"
    assert read(informational + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") == (200, b"", True)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive", True),
    ],
)
def test_a_connection_is_kept_as_rfc_9112_has_it(head: bytes, expected: bool) -> None:
    assert parse_head(head).keep_alive is expected


def test_repeated_headers_are_joined_and_names_are_lower_case() -> None:
    assert parse_head(b"HTTP/1.1 200\r\nWarning: a\r\nWARNING:  b ").headers == {"warning": "a, b"}


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 99 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad name: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!!",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3E9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_or_over_a_limit_is_a_protocol_error(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    ],
)
def test_a_connection_that_ends_early_is_an_eof_error(raw: bytes) -> None:
    with pytest.raises(EOFError):
        read(raw)


def test_two_equal_content_lengths_are_one() -> None:
    assert read(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok") == (200, b"ok", True)


_FRAGMENTS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.0 500 Oh\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"\r\n",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"ffffffffffffff\r\n",
        b"\n",
        b"\r",
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(_FRAGMENTS, st.binary(max_size=40)), max_size=12).map(b"".join))
def test_hostile_bytes_are_an_answer_or_a_named_error_and_nothing_else(raw: bytes) -> None:
    try:
        status, body, _ = read(raw)
    except (ProtocolError, EOFError):
        return
    assert 200 <= status <= 599
    assert len(body) <= MAX_BODY


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8))
def test_any_cut_into_chunks_gives_the_same_body(pieces: list[bytes]) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    assert read(raw)[1] == b"".join(pieces)


def test_a_request_is_framed_by_its_body() -> None:
    assert encode_request("PUT", "/x?y=z", "h:1", {"Accept": "a"}, b"{}") == (
        b"PUT /x?y=z HTTP/1.1\r\nHost: h:1\r\nAccept: a\r\nContent-Length: 2\r\n\r\n{}"
    )


@pytest.mark.parametrize("target", ["/x\r\nEvil: 1", "/x\nEvil: 1"])
def test_a_line_break_cannot_get_into_a_request(target: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        encode_request("GET", target, "h", {})
