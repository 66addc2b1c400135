"""What a dialect can't say of a payload is refused before a byte is sent, and answers that can't be said are errors."""

from __future__ import annotations

import pytest

from rsocket_trio import ApplicationError, Payload, Responder, Unsupported
from tests.connection.pairs import connected_pair
from tests.each_row import each_row

MIMED = Payload(b"x", data_mime="a/b")
TYPED = Payload(b"x", b"m", metadata_type=7)


@each_row(
    ("dialect", "payload"),
    [
        ("rsocket/1.0", MIMED),
        ("rsocket/1.0", TYPED),
        ("reactivesocket/0.1", MIMED),
        ("reactivesocket/0.0", MIMED),
        ("rsocket/2.0-draft", TYPED),
    ],
)
async def test_a_payload_that_the_dialect_cannot_say_is_unsupported(dialect: str, payload: Payload) -> None:
    async with connected_pair(Responder(), dialect=dialect) as pair:
        before = len(pair.client_said)
        with pytest.raises(Unsupported):
            await pair.client.request_response(payload)
        with pytest.raises(Unsupported):
            await pair.client.fire_and_forget(payload)
        assert pair.client.status == "open"
        assert len(pair.client_said) == before


async def test_an_answer_that_the_dialect_cannot_say_is_an_internal_error_and_the_connection_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    responder = Responder()

    @responder.request_response("plain")
    def plain(request: Payload) -> Payload:
        return MIMED

    @responder.request_response("pooled")
    async def pooled(request: Payload) -> Payload:
        return MIMED

    async with connected_pair(responder) as pair:
        for route in ("plain", "pooled"):
            with pytest.raises(ApplicationError, match="internal error"):
                await pair.client.request_response(route=route)
        assert pair.client.status == pair.server.status == "open"
