"""Deadlines that travel: a requester writes the time that is left to a call, and its responder keeps to it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from rsocket_trio.connection.sender import TOO_LATE
from rsocket_trio.errors import Canceled, Invalid, RemoteProtocolError
from rsocket_trio.metadata.composite import Entry
from rsocket_trio.metadata.deadline import decode_deadline, encode_deadline
from rsocket_trio.metadata.mime import DEADLINE

T = TypeVar("T")


def with_time_left(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries of a request with the time that Trio's scopes leave to it; without any they are unchanged."""
    left = trio.current_effective_deadline() - trio.current_time()
    if math.isinf(left):
        return entries
    others = [entry for entry in entries if entry.mime != DEADLINE]
    return [*others, Entry(DEADLINE, encode_deadline(max(0.0, left)))]


def deadline_of(entry: Entry) -> float:
    """Return when the time of a call is over that came with this entry. Raise ``Invalid`` for a malformed one."""
    try:
        return trio.current_time() + decode_deadline(entry.content)
    except RemoteProtocolError as error:
        raise Invalid(f"metadata: {error}") from None


async def within(deadline: float, serve: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``serve``. Raise ``Canceled`` if there is none in time: the caller has gone on then."""
    if trio.current_time() >= deadline:
        raise Canceled(TOO_LATE)
    with trio.CancelScope(deadline=deadline):
        result = await serve()
        if trio.current_time() < deadline:
            return result
    raise Canceled(TOO_LATE)
