"""The JSON of requests to sources and sinks, checked before anything is done."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from rsocket_trio.errors import Invalid, readable
from rsocket_trio.payload import Payload
from rsocket_trio.replay.errors import CorruptLog, DamagedPartition, NotWritten
from rsocket_trio.replay.log import OpenedByBlock

T = TypeVar("T")

LARGEST: Final = 2**63 - 1
"""The largest position, batch or number of rows."""
MAX_SINK_CHARACTERS: Final = 256
"""Characters of a sink's name, and of a query's id."""
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of a write that left nothing behind."""
MAX_REQUEST_BYTES = 2**20
"""Bytes of a request at most: that is a commit of some 15,000 attempts."""

Whole = Annotated[int, Meta(ge=0, le=LARGEST)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_SINK_CHARACTERS)]


class WriteEntry(msgspec.Struct, frozen=True):
    """The write that an element belongs to, by its metadata."""

    partition: Whole = 0


def decoded(data: bytes, kind: type[T]) -> T:
    """Return a request from JSON; an empty one has all defaults. Raise ``Invalid``."""
    if len(data) > MAX_REQUEST_BYTES:
        raise Invalid(f"a request of {len(data)} bytes: the limit is {MAX_REQUEST_BYTES}")
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"the request is not right: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Invalid(f"the request is no JSON: {readable(data[:100])}") from None


@asynccontextmanager
async def serving(log: OpenedByBlock) -> AsyncIterator[None]:
    """Open a log or a ledger for a request, and translate errors: those that a peer gets name no file."""
    try:
        await log.open()
        try:
            yield
        except ValueError as error:
            raise Invalid(str(error)) from error
    except OSError as error:
        what = "nothing was written" if error.errno in NO_ROOM else "the log can't be used"
        reason = errno.errorcode.get(error.errno or 0, "unknown error")
        raise NotWritten(f"{what}: {reason}, {error.strerror or error}") from error
    except CorruptLog as error:
        where = "the log is damaged"
        if error.position is not None:
            where = f"partition {error.partition} is damaged at position {error.position}"
        raise DamagedPartition(f"{where}: {error.reason}") from error


def command(
    log: OpenedByBlock, kind: type[T], function: Callable[[T], Awaitable[object]]
) -> Callable[[Payload], Awaitable[bytes]]:
    """Return the handler of a route of ``log`` whose requests are decoded as a ``kind``, and answered with JSON.

    What ``function`` refuses by a ``ValueError`` is sent as Invalid. ``None`` is answered with nothing.
    """

    async def answer(request: Payload) -> bytes:
        async with serving(log):
            content = await function(decoded(request.data, kind))
            return b"" if content is None else msgspec.json.encode(content)

    return answer
