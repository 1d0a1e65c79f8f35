"""Ask a cloud's metadata service: plain HTTP to a link-local address. Its answers are hostile until checked.

One exchange has a time limit as a whole and a size limit. A redirect is not followed, and no proxy is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import dranet
from dranet.decoding import decode
from dranet.errors import ProtocolError, ProviderError, Reason
from dranet.http1 import MAX_HEAD_BYTES, ResponseHead, encode_request, exchange_once

ADDRESS = "169.254.169.254"
"""Every cloud here uses it, except Alibaba's."""
EXCHANGE_SECONDS = 2.0
"""The service answers from the same host; the documentation of each cloud calls a second slow."""
MAX_BODY_BYTES = 256 << 10
_NOT_FOUND = 404
_PARALLEL = 8
"""The services limit how many requests they take at once."""

_T = TypeVar("_T")


async def read_all(reads: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """All at once, in their order. When one fails the others end: the next turn must not meet them."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read) for read in reads]
    except* ProviderError as errors:
        failures = errors.exceptions
    else:
        return [task.result() for task in tasks]
    raise failures[0]


class MetadataClient:
    """Every method raises :class:`ProviderError` and nothing else."""

    def __init__(self, address: str = ADDRESS, port: int = 80) -> None:
        self._address = address
        self._port = port
        self._turn = asyncio.Semaphore(_PARALLEL)

    async def open_session(self, header: str) -> Mapping[str, str]:
        """The headers of the requests that follow, with a token that is good for a minute."""
        token = await self._read("/latest/api/token", {f"{header}-ttl-seconds": "60"}, "PUT")
        if not (token.isascii() and token.isprintable()):
            raise self._refuse("/latest/api/token", "its answer is no token")
        return {header: token}

    async def read_text(self, path: str, headers: Mapping[str, str]) -> str:
        """The body of an answer with status 200, without white space around it."""
        return await self._read(path, headers, "GET")

    async def read_optional(self, path: str, headers: Mapping[str, str]) -> str:
        """Empty where the service does not have it."""
        return await self._read(path, headers, "GET", is_optional=True)

    async def read_json(self, path: str, headers: Mapping[str, str]) -> Any:
        text = await self.read_text(path, headers)
        try:
            return decode(text, object)  # also refuses half a surrogate pair, which no file can take
        except (ValueError, RecursionError) as error:
            raise self._refuse(path, f"its answer is not JSON: {error}") from error

    async def read_object(self, path: str, headers: Mapping[str, str]) -> Mapping[str, Any]:
        answer = await self.read_json(path, headers)
        if not isinstance(answer, dict):
            raise self._refuse(path, "its answer must be a JSON object")
        return answer

    async def _read(
        self, path: str, headers: Mapping[str, str], method: str, *, is_optional: bool = False
    ) -> str:
        try:
            async with self._turn, asyncio.timeout(EXCHANGE_SECONDS):
                head, body = await self._exchange(path, headers, method)
        except TimeoutError as error:
            raise self._fail(path, f"no whole answer within {EXCHANGE_SECONDS:g} s") from error
        except ProtocolError as error:
            raise self._refuse(path, f"its answer cannot be used: {error.message}") from error
        except (OSError, EOFError) as error:
            raise self._fail(path, str(error) or type(error).__name__) from error
        if is_optional and head.status == _NOT_FOUND:
            return ""
        if head.status != 200:
            raise self._fail(path, f"status {head.status}")
        try:
            return body.decode().strip()
        except UnicodeDecodeError as error:
            raise self._refuse(path, "its answer is not UTF-8") from error

    async def _exchange(
        self, path: str, headers: Mapping[str, str], method: str
    ) -> tuple[ResponseHead, bytes]:
        common = {"User-Agent": f"dranet/{dranet.__version__}", "Connection": "close"}
        body = b"" if method == "PUT" else None
        request = encode_request(method, path, self._address, {**common, **headers}, body)
        reader, writer = await asyncio.open_connection(self._address, self._port, limit=MAX_HEAD_BYTES)
        return await exchange_once(reader, writer, request, MAX_BODY_BYTES)

    def _fail(self, path: str, cause: str) -> ProviderError:
        return ProviderError(f"metadata service {self._address}: {path}: {cause}")

    def _refuse(self, path: str, cause: str) -> ProviderError:
        return ProviderError(
            f"metadata service {self._address}: {path}: {cause}",
            reason=Reason.PROVIDER_ANSWER_INVALID,
            retryable=False,
        )
