"""How much waits to be written: a ping behind the last of it is answered when the peer has read it all."""

from __future__ import annotations

from trio.testing import MockClock

from rsocket_trio import Payload, Responder
from rsocket_trio.testing import connected_pair


async def test_what_waits_is_counted_and_is_read_by_the_answer_of_a_ping_behind_it(autojump_clock: MockClock) -> None:
    responder = Responder()
    got: list[int] = []
    responder.fire_and_forget("log")(lambda request: got.append(len(request.data)))

    async with connected_pair(responder) as (client, _):
        assert client.unsent == 0
        for _ in range(3):
            await client.fire_and_forget(Payload(bytes(500_000)), route="log")
        assert client.unsent > 500_000
        while client.unsent:
            await client.ping()
        await client.ping()

        assert got == [500_000] * 3
