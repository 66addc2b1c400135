"""The pattern of a call: the route that the application wrote, on both sides, also of calls that are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import attrs
import pytest

from rsocket_trio import Channel, Invalid, Outgoing, Payload, Rejected, Responder
from rsocket_trio.metadata import DEADLINE, Entry, encode_composite
from rsocket_trio.services import Bearer, Call, Service, Stream, current_call, fire_and_forget, request_response
from rsocket_trio.services import request_stream as declared_stream
from tests.connection.pairs import connected_pair, settle
from tests.services.interactions import INTERACTIONS, ask


@attrs.define
class Calls:
    """An interceptor of both sides that keeps the calls, with their ends."""

    all: list[Call] = attrs.field(factory=list)

    async def around(self, call: Call) -> AsyncIterator[None]:
        self.all.append(call)
        yield

    @property
    def seen(self) -> list[tuple[str | None, str | None, str]]:
        """Route, pattern and outcome of each."""
        return [(call.route, call.pattern, call.outcome) for call in self.all]


def serving(*routes: str | None) -> tuple[Responder, Calls]:
    """Return a responder of bytes that serves every interaction on these routes, and the calls that it serves."""
    responder, calls = Responder(), Calls()
    responder.around(calls.around)
    for route in routes:

        async def generate(request: Payload) -> AsyncIterator[bytes]:
            yield b"item"

        async def converse(channel: Channel) -> None:
            await channel.send(b"item")

        responder.request_response(route)(lambda request: b"answer")
        responder.fire_and_forget(route)(lambda request: None)
        responder.request_stream(route)(generate)
        responder.request_channel(route)(converse)
    return responder, calls


async def test_every_call_has_the_route_of_its_handler_as_it_was_registered() -> None:
    responder, calls = serving("orders.{id}", "now", "a.{{b}}", "**", None)
    sent = {"orders.17": "orders.{id}", "now": "now", "a.{b}": "a.{{b}}", "else.where": "**", None: ""}
    async with connected_pair(responder) as pair:
        for interaction in INTERACTIONS:
            for route in sent:
                await ask(pair.client, interaction, route=route)

    assert calls.seen == [(route, pattern, "completed") for _ in INTERACTIONS for route, pattern in sent.items()]


async def test_typed_and_pushed_handlers_and_those_of_included_responders_have_a_pattern() -> None:
    responder, calls = serving()
    part = Responder()

    @part.request_response("find.{name}")
    async def find(name: str) -> str:
        return str(current_call().pattern)

    @part.request_stream("push.{name}")
    async def push(request: Payload, out: Outgoing) -> None:
        await out.send(str(current_call().pattern))

    responder.include(part, "shop.")
    async with connected_pair(responder) as pair:
        assert await ask(pair.client, "request_response", route="shop.find.a") == ["shop.find.{name}"]
        assert await ask(pair.client, "request_stream", route="shop.push.a") == ["shop.push.{name}"]

    assert [call.pattern for call in calls.all] == ["shop.find.{name}", "shop.push.{name}"]


async def test_requests_that_no_handler_serves_are_failed_calls_without_a_pattern() -> None:
    responder, calls = serving("known")
    async with connected_pair(responder) as pair:
        for interaction in INTERACTIONS:
            for route in "unknown", None:
                if interaction == "fire_and_forget":
                    await ask(pair.client, interaction, route=route)
                    continue
                text = (
                    f"no {interaction} handler for route 'unknown'"
                    if route
                    else f"no default handler for {interaction}"
                )
                with pytest.raises(Rejected, match=f"^{text}$"):
                    await ask(pair.client, interaction, route=route)
        assert pair.server.faults.dropped == 2
        assert pair.server.faults.handler_errors == 0
        # A refused channel takes no items beyond the first.
        assert all(credit <= 1 for credit in pair.server_said.credit)

    assert calls.seen == [(route, None, "failed") for _ in INTERACTIONS for route in ("unknown", None)]
    assert {type(call.error) for call in calls.all} == {Rejected}
    assert [call.interaction for call in calls.all] == [each for each in INTERACTIONS for _ in range(2)]


async def test_malformed_metadata_fails_a_call_without_route_pattern_and_entries() -> None:
    responder, calls = serving(None)
    async with connected_pair(responder) as pair:
        with pytest.raises(Invalid, match=r"^metadata: "):
            await pair.client.request_response(Payload(b"12", b"\x7f malformed"))
        await pair.client.fire_and_forget(Payload(b"12", b"\x7f malformed"))
        await settle()
        assert pair.server.faults.dropped == 1

    assert calls.seen == [(None, None, "failed")] * 2
    assert {type(call.error) for call in calls.all} == {Invalid}
    assert [(call.entries, call.bytes_received) for call in calls.all] == [([], 13)] * 2


async def test_a_refused_call_fails_with_the_pattern_of_its_handler() -> None:
    responder, calls = serving("deadline.{x}")

    @responder.authenticate
    def user_of(credentials: Any, where: Any) -> str | None:
        return "ada" if credentials.token == "good" else None

    @responder.request_response("mine.{x}", requires=lambda user, call: False)
    def mine(request: Payload) -> bytes:
        return b""

    @responder.request_response("typed.{x}")
    async def typed(x: int) -> int:
        return x

    malformed = encode_composite([Entry(DEADLINE, b"")])
    async with connected_pair(responder) as pair:
        rows: list[tuple[type[Exception], Any]] = [
            (Rejected, {"route": "mine.1", "auth": Bearer("good")}),
            (Rejected, {"route": "mine.2", "auth": Bearer("bad")}),
            (Rejected, {"route": "nowhere", "auth": Bearer("bad")}),
            (Invalid, {"route": "typed.x"}),
            (Invalid, {"route": "deadline.1", "payload": Payload(b"", malformed)}),
        ]
        for refusal, options in rows:
            with pytest.raises(refusal):
                await pair.client.request_response(**options)

    patterns = ["mine.{x}", "mine.{x}", None, "typed.{x}", "deadline.{x}"]
    assert [(call.pattern, call.outcome) for call in calls.all] == [(pattern, "failed") for pattern in patterns]
    assert [call.user for call in calls.all] == ["ada", None, None, None, None]


async def test_functions_of_on_error_get_the_pattern() -> None:
    responder = Responder()
    seen: list[tuple[str, str | None]] = []

    @responder.on_error
    def report(error: Exception, call: Call) -> None:
        seen.append((call.interaction, call.pattern))

    def fail(argument: object) -> bytes:
        raise RuntimeError("broken")

    def push(metadata: bytes) -> None:
        fail(metadata)

    for route in "plain", "of.{name}", "**", None:
        responder.request_response(route)(fail)
    responder.metadata_push(push)
    async with connected_pair(responder) as pair:
        for sent in "plain", "of.ada", "x", None:
            with pytest.raises(Exception, match=r"^internal error$"):
                await pair.client.request_response(route=sent)
        await pair.client.metadata_push(b"x")
        await settle()

    assert seen == [*[("request_response", each) for each in ("plain", "of.{name}", "**", "")], ("metadata_push", None)]


# The requester's side


class Orders(Service, Protocol, route="orders"):
    @request_response
    async def place(self, order: str) -> str: ...
    @request_response("{number}.state")
    async def state(self, number: int) -> str: ...
    @declared_stream("ticks.{symbol}")
    def ticks(self, symbol: str) -> Stream[str]: ...
    @fire_and_forget
    async def note(self, text: str) -> None: ...


class Book:
    async def place(self, order: str) -> str:
        return order

    async def state(self, number: int) -> str:
        return "open"

    @declared_stream
    async def ticks(self, symbol: str) -> AsyncIterator[str]:
        yield symbol

    async def note(self, text: str) -> None:
        return


async def use(orders: Any) -> None:
    """Call every method."""
    assert await orders.place("x") == "x"
    assert await orders.state(17) == "open"
    async with orders.ticks("ACME") as ticks:
        assert [tick async for tick in ticks] == ["ACME"]
    await orders.note("hello")


OF_CONTRACT = [
    ("orders.place", "orders.place"),
    ("orders.17.state", "orders.{number}.state"),
    ("orders.ticks.ACME", "orders.ticks.{symbol}"),
    ("orders.note", "orders.note"),
]


async def test_calls_of_a_contract_have_its_routes_on_both_sides_and_others_none_at_the_requester() -> None:
    responder, served = serving("{number}.other")
    responder.serve_as(Orders, Book())
    made = Calls()
    async with connected_pair(responder, around=[made.around]) as pair:
        await use(pair.client.remote(Orders))
        await pair.client.request_response(route="17.other")
        await settle()

    assert [(call.route, call.pattern) for call in made.all] == [*OF_CONTRACT, ("17.other", None)]
    assert [type(call.route) for call in made.all] == [str] * 5
    assert [call.pattern for call in served.all] == [*[pattern for _, pattern in OF_CONTRACT], "{number}.other"]
