"""The items of a simulated run: numbered, also where chunks tell no borders."""

from __future__ import annotations

from typing import Self

from qa.simulation.plans import Call
from rsocket_trio import Channel

HEAD = 4
"""Bytes of a call's number, in front of its first item, and of an item's length, where chunks are no items."""


def head(call: Call) -> bytes:
    return call.number.to_bytes(HEAD, "big")


def framed(item: bytes) -> bytes:
    return len(item).to_bytes(HEAD, "big") + item


class Items:
    """The items in chunks whose borders mean nothing. ``data`` is what came of them before."""

    def __init__(self, channel: Channel, data: bytes = b"") -> None:
        self._channel = channel
        self._data = data

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while True:
            size = HEAD + int.from_bytes(self._data[:HEAD], "big")
            if HEAD <= size <= len(self._data):
                item, self._data = self._data[HEAD:size], self._data[size:]
                return item
            try:
                self._data += (await anext(self._channel)).data
            except StopAsyncIteration:
                if self._data:
                    raise AssertionError(f"{len(self._data)} bytes of an item at the good end") from None
                raise
