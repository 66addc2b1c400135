"""Channels of a contract: each form of implementation serves each form of declaration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest

from rsocket_trio import Responder
from rsocket_trio.services import Receiving, Service, TypedChannel, request_channel
from tests.connection.pairs import connected_pair


class Returns(Service, Protocol, route="sums"):
    @request_channel("from.{start}")
    def sums(self, start: int) -> TypedChannel[str, int]: ...


class Takes(Service, Protocol, route="sums"):
    @request_channel("from.{start}")
    async def sums(self, numbers: TypedChannel[int, str], start: int) -> None: ...


class Yields(Service, Protocol, route="sums"):
    @request_channel("from.{start}")
    def sums(self, numbers: Receiving[int], start: int) -> AsyncIterator[str]: ...


class Sends:
    @request_channel
    async def sums(self, channel: TypedChannel[int, str], start: int) -> None:
        async for number in channel:
            start += number
            await channel.send(str(start))


class Generates:
    @request_channel
    async def sums(self, numbers: Receiving[int], start: int) -> AsyncIterator[str]:
        async for number in numbers:
            start += number
            yield str(start)


@pytest.mark.parametrize("implementation", [Sends(), Generates()], ids=["sends", "yields"])
@pytest.mark.parametrize("contract", [Returns, Takes, Yields])
async def test_a_channel_is_served_by_a_function_that_sends_and_by_one_that_yields(
    contract: Any, implementation: Any
) -> None:
    responder = Responder()
    responder.serve_as(contract, implementation)
    async with connected_pair(responder) as pair, pair.client.remote(contract).sums(10) as channel:
        for number in (1, 2, 3):
            await channel.send(number)
        await channel.send_eof()

        assert [item async for item in channel] == ["11", "13", "16"]
    assert pair.server.faults.handler_errors == 0


class Bytes(Service, Protocol, route="bytes"):
    @request_channel
    def reversed(self) -> TypedChannel[bytes, bytes]: ...
    @request_channel
    def sizes(self) -> TypedChannel[int, bytes]: ...


class Reverses:
    @request_channel
    async def reversed(self, channel: TypedChannel[bytes, bytes]) -> None:
        async for data in channel:
            await channel.send(data[::-1])

    @request_channel
    async def sizes(self, items: Receiving[bytes]) -> AsyncIterator[int]:
        async for data in items:
            yield len(data)


async def test_bytes_are_items_as_they_are_beside_items_that_are_encoded() -> None:
    responder = Responder()
    responder.serve_as(Bytes, Reverses())
    async with connected_pair(responder) as pair:
        remote = pair.client.remote(Bytes)
        async with remote.reversed() as channel:
            await channel.send(b"\x00\xff{")
            assert await anext(aiter(channel)) == b"{\xff\x00"
        async with remote.sizes() as sizes:
            await sizes.send(bytes(7))
            assert await anext(aiter(sizes)) == 7
