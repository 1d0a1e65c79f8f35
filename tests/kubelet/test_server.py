"""What a server logs where an answer does not get through, and where a method has a bug."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import grpc.aio
import pytest

from dranet.kubelet.sockets import UnixServer

pytestmark = pytest.mark.socket

DEADLINE = 30.0


async def answer_what_cannot_be_sent(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    """Core refuses such metadata each time, and gRPC logs it like a caller that is gone, which is a matter of
    luck."""
    context.set_trailing_metadata((("no such\nname", ""),))
    return b""


async def have_a_bug(_: bytes, __: object) -> bytes:
    raise ZeroDivisionError("oops")


METHODS = {"Unsent": answer_what_cannot_be_sent, "Bug": have_a_bug}


async def call(kubelet_root: Path, method: str) -> None:
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(behaviour, bytes, bytes)
        for name, behaviour in METHODS.items()
    }
    path = kubelet_root / "dra.sock"
    server = UnixServer(path, [grpc.method_handlers_generic_handler("test.Test", handlers)], grace_seconds=0)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/test.Test/{method}", bytes, bytes)(b"", timeout=DEADLINE)
    finally:
        await server.stop()


async def test_an_answer_that_cannot_be_sent_is_one_line_and_no_traceback(
    kubelet_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await call(kubelet_root, "Unsent")
    (record,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert record.getMessage().startswith("an answer was not sent, the caller may have hung up: ")
    assert "/test.Test/Unsent" in record.getMessage()
    assert record.exc_info is None


async def test_a_bug_in_a_method_keeps_its_traceback(
    kubelet_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await call(kubelet_root, "Bug")
    (record,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)
