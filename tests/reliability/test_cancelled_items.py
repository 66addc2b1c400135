"""A stream that its requester left is not served any more, not even what waits to be written."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from rsocket_trio import Outgoing, Payload, Responder
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle


async def test_items_that_wait_for_a_requester_who_left_are_not_sent(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_stream
    async def items(request: Payload, out: Outgoing) -> None:
        for _ in range(5):
            await out.send(bytes(60_000))
        await trio.sleep_forever()

    async with connected_pair(responder) as pair:
        async with pair.client.request_stream() as items_there:
            pair.server_wire.hold()
            await settle()
            begun = pair.server_said.count(raw.PAYLOAD)
            assert begun < 5
            items_there._discard()
        await settle()
        assert pair.client_said.count(raw.CANCEL) == 1
        pair.server_wire.release()
        await settle()

        assert pair.server_said.count(raw.PAYLOAD) == begun
        assert pair.server._engine.session.outbox.size == 0
