"""An answer without data, as a handler without a result and other implementations send it, is ``None``."""

from __future__ import annotations

from typing import Any, Optional

import attrs
import pytest

from rsocket_trio import Payload, Responder, current_connection
from rsocket_trio.codecs import DEFAULT_CODECS, find_codec
from rsocket_trio.services import DecodeError
from tests.connection.pairs import connected_pair

MIMES = ("application/json", "application/cbor", "application/msgpack")


@attrs.frozen
class Receipt:
    id: str


def responder_of_nothing() -> Responder:
    responder = Responder()

    @responder.request_response("nothing")
    def nothing(request: Payload) -> bytes:
        return b""

    @responder.request_response("null")
    def null(request: Payload) -> bytes:
        return find_codec(DEFAULT_CODECS, str(current_connection().setup.data_mime)).encode(None)

    @responder.request_response("receipts.{id}")
    async def find(id: str) -> Receipt | None:
        return None

    return responder


@pytest.mark.parametrize("mime", ["text/plain", *MIMES])
async def test_an_empty_answer_is_none_where_the_type_admits_it_and_refused_or_a_text_elsewhere(mime: str) -> None:
    kinds: tuple[Any, ...] = (type(None), Receipt | None, Optional[int], str | None)  # noqa: UP045
    async with connected_pair(responder_of_nothing(), data_mime=mime) as pair:
        for kind in kinds:
            assert await pair.client.request_response(route="nothing", reply=kind) is None
        assert await pair.client.request_response(route="nothing", reply=str) == ""
        for kind in (Receipt, int, list[None], dict[str, None]):
            with pytest.raises(DecodeError):
                await pair.client.request_response(route="nothing", reply=kind)


@pytest.mark.parametrize("mime", MIMES)
async def test_none_is_an_empty_answer_and_the_null_of_a_codec_is_none_as_well(mime: str) -> None:
    reply: Any = Receipt | None
    async with connected_pair(responder_of_nothing(), data_mime=mime) as pair:
        assert (await pair.client.request_response(route="receipts.7")).data == b""
        assert await pair.client.request_response(route="receipts.7", reply=reply) is None
        assert await pair.client.request_response(route="null", reply=reply) is None
