"""Interceptors: round every call of every interaction, on both sides, however it ends; and nowhere without one."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Channel,
    ConnectionLost,
    Invalid,
    Limits,
    Outgoing,
    Payload,
    Rejected,
    Responder,
    connect_forever,
    open_connection,
)
from rsocket_trio.metadata import Entry, encode_composite
from rsocket_trio.services import Call
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle
from tests.services import interactions
from tests.services.interactions import INTERACTIONS, every_interaction, served
from tests.serving import running_server, until

OWN = "application/x.own"
ask = partial(interactions.ask, more=(b"2",))


@attrs.define
class Journal:
    """An interceptor of both sides that writes down each call, and what it saw of its end."""

    seen: list[str] = attrs.field(factory=list)
    calls: list[Call] = attrs.field(factory=list)

    async def around(self, call: Call) -> AsyncIterator[None]:
        assert call.outcome == "running"
        self.calls.append(call)
        self.seen.append(f"{call.side} enters {call.interaction}")
        try:
            yield
        except BaseException as error:
            self.seen.append(f"{call.side} {call.outcome} by {type(error).__name__}")
            raise
        else:
            self.seen.append(f"{call.side} {call.outcome}")

    @property
    def of_server(self) -> list[str]:
        return [said for said in self.seen if said.startswith("server")]

    @property
    def of_client(self) -> list[str]:
        return [said for said in self.seen if said.startswith("client")]

    def only(self, side: str) -> Call:
        """Return the one call of this side."""
        (call,) = [each for each in self.calls if each.side == side]
        return call


def of_bytes(journal: Journal | None = None) -> Responder:
    """Return a responder of bytes that serves every interaction."""
    responder = Responder()

    @responder.request_response
    async def respond(request: Payload) -> Payload:
        return request

    @responder.fire_and_forget
    async def forget(request: Payload) -> None:
        pass

    @responder.request_stream
    async def generate(request: Payload) -> AsyncIterator[bytes]:
        for number in b"1", b"2", b"3":
            yield number

    @responder.request_subscription
    async def subscribe(request: Payload, out: Outgoing) -> None:
        for number in b"1", b"2", b"3":
            await out.send(number)
        await trio.sleep_forever()

    @responder.request_channel
    async def converse(channel: Channel) -> None:
        async for item in channel:
            await channel.send(item)

    if journal is not None:
        responder.around(journal.around)
    return responder


@pytest.mark.parametrize("interaction", [*INTERACTIONS, "request_subscription"])
async def test_every_interaction_is_surrounded_on_both_sides(interaction: str) -> None:
    journal = Journal()
    dialect = "reactivesocket/0.1" if interaction == "request_subscription" else "rsocket/1.0"
    async with connected_pair(of_bytes(journal), dialect=dialect, around=[journal.around]) as pair:
        await ask(pair.client, interaction)
        await settle()

    end = "cancelled" if interaction == "request_subscription" else "completed"
    by = " by Cancelled" if end == "cancelled" else ""
    assert journal.of_client == [f"client enters {interaction}", f"client {end}"]
    assert journal.of_server == [f"server enters {interaction}", f"server {end}{by}"]
    assert journal.only("client").connection is not journal.only("server").connection


@every_interaction
async def test_both_sides_count_the_same_payloads(interaction: str) -> None:
    journal = Journal()
    async with connected_pair(of_bytes(journal), around=[journal.around]) as pair:
        await ask(pair.client, interaction, Payload(b"12345"))
        await settle()

    client, server = journal.only("client"), journal.only("server")
    counts = (client.items_sent, client.bytes_sent, client.items_received, client.bytes_received)
    assert counts == (server.items_received, server.bytes_received, server.items_sent, server.bytes_sent)
    assert (
        counts
        == {
            "request_response": (1, 5, 1, 5),
            "fire_and_forget": (1, 5, 0, 0),
            "request_stream": (1, 5, 3, 3),
            "request_channel": (2, 6, 1, 1),
        }[interaction]
    )


# Order


async def test_the_first_one_registered_is_the_outermost() -> None:
    seen: list[str] = []

    def noting(name: str) -> Callable[[Call], AsyncIterator[None]]:
        async def note(call: Call) -> AsyncIterator[None]:
            seen.append(f"{name} in")
            yield
            seen.append(f"{name} out")

        return note

    responder = of_bytes()
    responder.around(noting("server 1"))
    responder.around(noting("server 2"))
    async with connected_pair(responder, around=[noting("client 1"), noting("client 2")]) as pair:
        await pair.client.request_response()

    assert seen == [
        *("client 1 in", "client 2 in", "server 1 in", "server 2 in"),
        *("server 2 out", "server 1 out", "client 2 out", "client 1 out"),
    ]


async def test_a_context_manager_function_works_as_well() -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def ready_made(call: Call) -> AsyncIterator[None]:
        seen.append(call.side)
        yield

    class Timing:
        def __init__(self, call: Call) -> None:
            self.call = call

        async def __aenter__(self) -> None:
            seen.append(f"{self.call.side} in")

        async def __aexit__(self, *error: object) -> None:
            seen.append(f"{self.call.side} {self.call.outcome}")

    responder = of_bytes()
    responder.around(ready_made)
    responder.around(Timing)
    async with connected_pair(responder, around=[ready_made, Timing]) as pair:
        await pair.client.request_response()

    assert seen == ["client", "client in", "server", "server in", "server completed", "client completed"]


@pytest.mark.parametrize("wrong", [1, "name", None, lambda: None], ids=["number", "text", "none", "no argument"])
async def test_what_is_no_interceptor_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(TypeError, match="around"):
        async with open_connection("memory://nobody", around=[wrong]):
            pass
    if wrong is not None:
        with pytest.raises(TypeError, match="around"):
            Responder().around(wrong)


@pytest.mark.parametrize("opened", [open_connection, connect_forever])
async def test_one_interceptor_without_a_list_is_refused_by_name(opened: Any) -> None:
    async def timing(call: Call) -> AsyncIterator[None]:
        yield

    for alone in timing, Hearing():
        with pytest.raises(TypeError, match=r"^around takes interceptors in a list, not .*(timing|Hearing) alone$"):
            async with opened("memory://nobody", around=alone):
                pass


# Errors


def failing(error: Exception) -> Responder:
    """Return a responder all of whose handlers fail with ``error``, streams after one item."""
    responder = Responder()

    @responder.request_response
    async def respond(request: Payload) -> bytes:
        raise error

    @responder.request_stream
    async def generate(request: Payload) -> AsyncIterator[bytes]:
        yield b"1"
        raise error

    @responder.request_channel
    async def converse(channel: Channel) -> None:
        await channel.send(b"1")
        raise error

    return responder


@pytest.mark.parametrize("interaction", ["request_response", "request_stream", "request_channel"])
async def test_errors_pass_through_both_sides(interaction: str) -> None:
    journal = Journal()
    responder = failing(ApplicationError("sold out"))
    responder.around(journal.around)
    async with connected_pair(responder, around=[journal.around]) as pair:
        with pytest.raises(ApplicationError, match="sold out"):
            await ask(pair.client, interaction)

    for side in "client", "server":
        assert journal.seen.count(f"{side} failed by ApplicationError") == 1
        assert str(journal.only(side).error) == "sold out"


@pytest.mark.parametrize("interaction", ["request_response", "request_stream", "request_channel"])
@pytest.mark.parametrize("side", ["client", "server"])
async def test_an_interceptor_replaces_an_error(interaction: str, side: str, caplog: pytest.LogCaptureFixture) -> None:
    outer = Journal()

    async def translate(call: Call) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            raise Invalid(f"{call.side}: {error}") from error

    theirs = side == "server"
    responder = failing(LookupError("row 7") if theirs else ApplicationError("row 7"))
    responder.around(outer.around)
    if theirs:
        responder.around(translate)
    async with connected_pair(responder, around=[outer.around, *([] if theirs else [translate])]) as pair:
        with pytest.raises(Invalid, match=f"^{side}: row 7$"):
            await ask(pair.client, interaction)

    assert f"{side} failed by Invalid" in outer.seen
    assert caplog.records == [], "an error for the peer is no failure"


@pytest.mark.parametrize("interaction", ["request_response", "request_stream", "request_channel"])
@pytest.mark.parametrize("side", ["client", "server"])
async def test_an_error_that_an_interceptor_swallows_reaches_the_caller_all_the_same(
    interaction: str, side: str
) -> None:
    async def swallow(call: Call) -> AsyncIterator[None]:
        try:
            yield
        except Exception:
            pass

    responder = failing(ApplicationError("sold out"))
    if side == "server":
        responder.around(swallow)
    async with connected_pair(responder, around=[swallow] if side == "client" else []) as pair:
        with pytest.raises(ApplicationError, match="sold out"):
            await ask(pair.client, interaction)


async def _never(call: Call) -> AsyncIterator[None]:
    if call.route == "none":
        yield


async def _twice(call: Call) -> AsyncIterator[None]:
    yield
    yield


async def _refuses(call: Call) -> AsyncIterator[None]:
    if call.outcome == "running":
        raise Rejected("not on Sundays")
    yield


def _is_none(call: Call) -> Any:
    return None


FAULTY = {
    _never: "generator didn't yield",
    _twice: "generator didn't stop",
    _is_none: "interceptor _is_none returned NoneType, not an async context manager",
}


@pytest.mark.parametrize("faulty", FAULTY, ids=lambda function: function.__name__)
@every_interaction
async def test_a_faulty_interceptor_of_the_server_is_an_internal_error(
    faulty: Any, interaction: str, caplog: pytest.LogCaptureFixture
) -> None:
    outer = Journal()
    responder = of_bytes(outer)
    responder.around(faulty)
    async with connected_pair(responder) as pair:
        if interaction == "fire_and_forget":
            await ask(pair.client, interaction)
        else:
            with pytest.raises(ApplicationError, match=r"^internal error$"):
                await ask(pair.client, interaction)
        assert pair.server.faults.handler_errors == 1

    assert FAULTY[faulty] in caplog.text
    assert outer.seen[1] == f"server failed by {'TypeError' if faulty is _is_none else 'RuntimeError'}"


@pytest.mark.parametrize("faulty", FAULTY, ids=lambda function: function.__name__)
@every_interaction
async def test_a_faulty_interceptor_of_the_client_raises_to_the_caller(faulty: Any, interaction: str) -> None:
    outer = Journal()
    async with connected_pair(of_bytes(), around=[outer.around, faulty]) as pair:
        with pytest.raises((RuntimeError, TypeError), match=FAULTY[faulty]):
            await ask(pair.client, interaction)
        await settle()
        assert not [*pair.client._engine.session.open_streams()]

    assert len(outer.seen) == 2
    assert "failed" in outer.seen[1]


@every_interaction
async def test_an_interceptor_that_refuses_keeps_the_handler_from_running(
    interaction: str, caplog: pytest.LogCaptureFixture
) -> None:
    outer, inner = Journal(), Journal()
    ran: list[Payload] = []
    responder = Responder()
    responder.request_response(ran.append)
    responder.fire_and_forget(ran.append)

    @responder.request_stream
    async def generate(request: Payload) -> AsyncIterator[bytes]:
        ran.append(request)
        yield b""

    @responder.request_channel
    async def converse(channel: Channel) -> None:
        ran.append(channel.request)

    for each in outer.around, _refuses, inner.around:
        responder.around(each)
    async with connected_pair(responder) as pair:
        if interaction == "fire_and_forget":
            await ask(pair.client, interaction)
        else:
            with pytest.raises(Rejected, match="not on Sundays"):
                await ask(pair.client, interaction)

    assert ran == inner.seen == []
    assert outer.seen == [f"server enters {interaction}", "server failed by Rejected"]
    assert caplog.records == []


@every_interaction
async def test_an_interceptor_of_the_client_that_refuses_sends_nothing(interaction: str) -> None:
    async with connected_pair(of_bytes(), around=[_refuses]) as pair:
        with pytest.raises(Rejected, match="not on Sundays"):
            await ask(pair.client, interaction)
        await settle()
        assert pair.client_said.names == []


# How calls end


def never_ending(journal: Journal) -> Responder:
    """Return a responder of a request and a stream that wait for ever."""
    responder = Responder()
    responder.around(journal.around)

    @responder.request_response
    async def never(request: Payload) -> bytes:
        await trio.sleep_forever()

    @responder.request_stream
    async def numbers(request: Payload) -> AsyncIterator[bytes]:
        yield b"1"
        await trio.sleep_forever()

    return responder


async def test_a_call_that_its_caller_cancels_is_cancelled_on_both_sides(autojump_clock: MockClock) -> None:
    journal = Journal()
    async with connected_pair(never_ending(journal), around=[journal.around]) as pair:
        for interaction in "request_response", "request_stream":
            with trio.move_on_after(1):
                await ask(pair.client, interaction)
            await settle()
            assert journal.of_client == [f"client enters {interaction}", "client cancelled by Cancelled"]
            assert journal.of_server == [f"server enters {interaction}", "server cancelled by Cancelled"]
            assert [call.error for call in journal.calls] == [None, None]
            journal.seen.clear()
            journal.calls.clear()


async def test_an_error_of_the_block_that_reads_fails_the_call_of_the_client() -> None:
    journal = Journal()
    async with connected_pair(of_bytes(journal), around=[journal.around]) as pair:

        async def read() -> None:
            async with pair.client.request_stream(initial_request_n=1, refill=False):
                await settle()
                raise KeyError("mine")

        with pytest.raises(KeyError):
            await read()
        await settle()

    assert journal.of_client[-1] == "client failed by KeyError"
    assert journal.of_server[-1] == "server cancelled by Cancelled"


# Those that only hear of calls


class Hearing:
    """An observer of calls, and the same as an interceptor; ``found`` is what they learn of each call."""

    def __init__(self) -> None:
        self.found: list[tuple[object, ...]] = []

    def call_ended(self, call: Call) -> None:
        assert call.began_at <= min(call.first_item_at, trio.current_time())
        counts = (call.items_received, call.bytes_received, call.items_sent, call.bytes_sent)
        self.found.append((call.side, call.interaction, call.pattern, call.outcome, type(call.error), *counts))

    @asynccontextmanager
    async def around(self, call: Call) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.call_ended(call)


async def every_end(responder: Responder, around: Callable[[Call], Any] | Hearing) -> None:
    """Make a call of each interaction, one to no handler, and end it in each way."""
    async with connected_pair(responder, around=[around]) as pair:
        for interaction in INTERACTIONS:
            await ask(pair.client, interaction, Payload(b"12345"))
            await settle()
        with pytest.raises(Rejected):
            await pair.client.request_response(route="nowhere")
        for route in "plain", "typed", "typed.7", "fails", "fails.plain", "typed.x", "forever":
            with trio.move_on_after(1), contextlib.suppress(ApplicationError, Invalid):
                await pair.client.request_response(b"12", route=route)
            await settle()
        with trio.move_on_after(1):
            await ask(pair.client, "request_stream", route="forever")
        await settle()


async def test_what_only_hears_of_calls_learns_what_an_interceptor_does(autojump_clock: MockClock) -> None:
    def of_all_kinds() -> Responder:
        responder = of_bytes()
        responder.request_response("plain")(lambda request: request.data)

        @responder.request_response("typed")
        async def typed(number: int) -> int:
            return number

        @responder.request_response("typed.{number}")
        async def parametrised(number: int) -> int:
            return number

        @responder.request_response("fails")
        async def fail(request: Payload) -> bytes:
            raise ApplicationError("sold out")

        @responder.request_response("fails.plain")
        def fail_at_once(request: Payload) -> bytes:
            raise ApplicationError("sold out")

        @responder.request_response("forever")
        async def wait(request: Payload) -> bytes:
            await trio.sleep_forever()
            raise AssertionError

        @responder.request_stream("forever")
        async def one(request: Payload) -> AsyncIterator[bytes]:
            yield b"1"
            await trio.sleep_forever()

        return responder

    observer, interceptor, both = Hearing(), Hearing(), Hearing()
    watched, surrounded = of_all_kinds(), of_all_kinds()
    watched.around(observer)
    surrounded.around(both)
    surrounded.around(interceptor.around)
    await every_end(watched, observer)
    await every_end(surrounded, interceptor.around)
    assert observer.found == interceptor.found
    assert both.found == [heard for heard in interceptor.found if heard[0] == "server"]
    assert Counter(heard[3] for heard in observer.found if heard[0] == "server") == {
        "completed": 7,
        "failed": 4,
        "cancelled": 2,
    }


def test_an_exception_that_the_program_handles_while_it_runs_trio_is_no_error_of_a_call() -> None:
    async def serve_one() -> Hearing:
        heard, responder = Hearing(), of_bytes()
        responder.around(heard)
        async with connected_pair(responder) as pair:
            await pair.client.request_response(b"1")
        return heard

    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        heard = trio.run(serve_one)
    assert [found[3:5] for found in heard.found] == [("completed", type(None))]


@pytest.mark.parametrize("awaited", [False, True], ids=["plain", "async"])
async def test_a_call_that_ends_the_program_is_heard_of_as_failed(awaited: bool) -> None:
    heard, responder = Hearing(), Responder()
    responder.around(heard)

    def leave(request: Payload) -> bytes:
        raise SystemExit

    async def leave_later(request: Payload) -> bytes:
        raise SystemExit

    responder.request_response(leave_later if awaited else leave)
    with pytest.raises(SystemExit):
        async with connected_pair(responder) as pair:
            await pair.client.request_response()
    assert [found[3:5] for found in heard.found] == [("failed", SystemExit)]


@attrs.define
class Connected:
    """An observer that equals others, has no hash, and hears of no connection's beginning."""

    found: list[str] = attrs.field(factory=list)

    def call_ended(self, call: Call) -> None:
        self.found.append("call_ended")

    def fault(self, kind: str) -> None:
        self.found.append(kind)

    def ended(self, connection: object, cause: Exception) -> None:
        self.found.append("ended")


async def test_each_object_hears_once_of_what_it_has_methods_for_also_without_a_hash() -> None:
    one, other = Connected(), Connected()
    responder = of_bytes()
    responder.request_response("fails")(lambda request: 1 / 0)
    responder.around(one)
    responder.around(other)
    responder.on_error(lambda error, call: one.found.append(call.outcome))
    async with connected_pair(responder, around=[Connected()]) as pair:
        with pytest.raises(ApplicationError):
            await pair.client.request_response(route="fails")
    assert one.found == ["handler", "failed", "call_ended", "ended"]
    assert other.found == ["handler", "call_ended", "ended"]


class Stale(Hearing):
    async def call_ended(self, call: Call) -> None:  # type: ignore[override]
        pass


@pytest.mark.parametrize("observer", [Hearing, Stale(), SimpleNamespace(call_ended=None)], ids=["class", "async", "no"])
def test_an_observer_whose_method_is_no_plain_function_of_the_call_is_refused(observer: Any) -> None:
    with pytest.raises(TypeError, match=r"^call_ended (takes a plain function \(call\); |decorates a function)"):
        Responder().around(observer)


async def test_what_an_observer_raises_when_the_connection_is_gone_is_logged_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def call_ended(self, call: Call) -> None:
            raise ZeroDivisionError

    async with contextlib.AsyncExitStack() as late, connected_pair(of_bytes(), around=[Broken()]) as pair:
        await late.enter_async_context(pair.client.request_stream())
    [record] = caplog.records
    assert record.getMessage().startswith("a connection that is over: handler ")


async def test_who_hears_of_a_request_of_the_client_finds_the_entries_of_its_payload() -> None:
    found: list[list[Entry]] = []
    hearing = SimpleNamespace(call_ended=lambda call: found.append(call.entries))
    async with connected_pair(of_bytes(), around=[hearing]) as pair:
        await pair.client.request_response(Payload(b"1", encode_composite([Entry(OWN, b"23")])))
        await pair.client.request_response(b"1")
    assert found == [[Entry(OWN, b"23")], []]


async def test_calls_that_nothing_has_begun_when_the_connection_is_lost_are_heard_of_as_cancelled() -> None:
    heard, responder = Hearing(), Responder()
    responder.around(heard)

    @responder.request_response
    async def wait(request: Payload) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    requests = [raw.setup(), *(raw.ask(stream_id) for stream_id in range(1, 201, 2))]
    async with running_server(responder, "tcp://127.0.0.1:0") as uri:
        stream = await trio.open_tcp_stream("127.0.0.1", int(uri.rpartition(":")[2]))
        await stream.send_all(raw.prefixed(*requests))
        await stream.aclose()
        await until(lambda: len(heard.found) >= 100)
    assert [found[3] for found in heard.found] == 100 * ["cancelled"]


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "cancelled"])
async def test_an_answer_that_waits_for_room_is_counted_when_it_leaves(is_read: bool) -> None:
    heard, responder = Hearing(), Responder()
    responder.around(heard)
    responder.request_response("inline")(lambda request: bytes(1000))

    @responder.request_response("awaited")
    async def respond(request: Payload) -> bytes:
        return bytes(1000)

    async with connected_pair(responder, limits=Limits(outbox_size=1500)) as pair, trio.open_nursery() as nursery:
        pair.server_wire.hold()
        for route in "inline", "inline", "inline", "inline", "awaited":
            nursery.start_soon(partial(pair.client.request_response, route=route))
            await settle()
        at_once = len(heard.found)
        if not is_read:
            nursery.cancel_scope.cancel()
            await settle()
        pair.server_wire.release()
    assert at_once <= 3
    late = {(found[3], *found[-2:]) for found in heard.found[at_once:]}
    assert late == {("completed", 1, 1000) if is_read else ("cancelled", 0, 0)}
    assert len(heard.found) == 5


# How long the block lasts


async def test_cancel_goes_out_at_once_although_an_interceptor_waits_at_its_end(autojump_clock: MockClock) -> None:
    cancelled_at: list[float] = []
    responder = Responder()

    @responder.request_stream
    async def never(request: Payload) -> AsyncIterator[bytes]:
        try:
            yield b"1"
            await trio.sleep_forever()
        finally:
            cancelled_at.append(trio.current_time())

    @responder.request_response
    async def nothing(request: Payload) -> bytes:
        try:
            await trio.sleep_forever()
        finally:
            cancelled_at.append(trio.current_time())

    async def lingering(call: Call) -> AsyncIterator[None]:
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(60)

    async with connected_pair(responder, around=[lingering]) as pair:
        start = trio.current_time()
        async with pair.client.request_stream() as items:
            await anext(items)
        assert trio.current_time() == start + 60
        with trio.move_on_after(1):
            await pair.client.request_response()
        assert trio.current_time() == start + 121

    assert cancelled_at == [start, start + 61]


async def test_an_interceptor_may_wait_before_the_call_and_be_cancelled_there(autojump_clock: MockClock) -> None:
    outer = Journal()

    async def waits(call: Call) -> AsyncIterator[None]:
        await trio.sleep(10)
        yield

    async with connected_pair(of_bytes(), around=[outer.around, waits]) as pair:
        for interaction in INTERACTIONS:
            with trio.move_on_after(9) as scope:
                await ask(pair.client, interaction)
            assert scope.cancelled_caught
            assert outer.seen == [f"client enters {interaction}", "client cancelled by Cancelled"]
            outer.seen.clear()
        assert {*pair.client_said.names} == {"KEEPALIVE"}
        assert await ask(pair.client, "request_stream") == ["1", "2", "3"]


# What they know and change


async def test_entries_that_are_written_before_the_yield_arrive() -> None:
    arrived: list[tuple[str, bytes]] = []
    responder = of_bytes()

    @responder.around
    async def read(call: Call) -> AsyncIterator[None]:
        arrived.extend((call.interaction, entry.content) for entry in call.entries if entry.mime == OWN)
        yield

    async def write(call: Call) -> AsyncIterator[None]:
        call.entries.append(Entry(OWN, call.interaction.encode()))
        yield
        call.entries.append(Entry(OWN, b"too late"))

    async with connected_pair(responder, around=[write]) as pair:
        for interaction in INTERACTIONS:
            await ask(pair.client, interaction)

    assert arrived == [(interaction, interaction.encode()) for interaction in INTERACTIONS]


async def test_an_interceptor_of_the_client_can_change_the_route() -> None:
    responder = Responder()
    responder.request_response("v2.price")(lambda request: b"7")

    async def newer(call: Call) -> AsyncIterator[None]:
        assert call.route == "price"
        call.route = f"v2.{call.route}"
        yield

    async with connected_pair(responder, around=[newer]) as pair:
        assert (await pair.client.request_response(route="price")).text == "7"


async def test_what_is_written_about_a_call_shows_no_payload() -> None:
    journal = Journal()
    async with connected_pair(of_bytes(journal)) as pair:
        await pair.client.request_response(b"hush")

    assert repr(journal.only("server")) == "<Call request_response None of the server, completed>"


@pytest.mark.parametrize("dialect", ["rsocket/1.0", "reactivesocket/0.2", "rsocket/2.0-draft", "streamux/1"])
async def test_interceptors_work_in_every_dialect(dialect: str) -> None:
    journal = Journal()
    async with (
        served(of_bytes(journal)) as uri,
        open_connection(uri, dialect=dialect, around=[journal.around]) as client,
    ):
        assert (await client.request_response(b"1")).text == "1"
        assert "2" in await ask(client, "request_channel")

    for side, saw in (("client", journal.of_client), ("server", journal.of_server)):
        assert saw == [
            *(f"{side} enters request_response", f"{side} completed"),
            *(f"{side} enters request_channel", f"{side} completed"),
        ]


async def test_metadata_of_the_caller_that_is_malformed_is_a_value_error() -> None:
    journal = Journal()
    async with connected_pair(of_bytes(), around=[journal.around]) as pair:
        with pytest.raises(ValueError, match="metadata of the request: "):
            await pair.client.request_response(Payload(b"", b"\x7f"))
        with pytest.raises(ValueError, match="metadata of the request: "):
            pair.client.request_stream(Payload(b"", b"\x7f"))

    assert journal.seen == []


# In a storm


@pytest.mark.parametrize("seed", range(6))
async def test_every_interceptor_that_is_entered_is_left_once_whatever_happens(
    seed: int, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls of all interactions are cancelled, fail, time out, and lose their connection at random moments."""
    random = Random(seed)
    entered: Counter[str] = Counter()
    left: Counter[str] = Counter()
    calls: list[Call] = []

    async def storm(call: Call) -> AsyncIterator[None]:
        entered[call.side] += 1
        calls.append(call)
        try:
            await trio.sleep(random.choice([0, 0, 0.01]))
            if random.random() < 0.1:
                raise Rejected("by chance")
            yield
        except ApplicationError as error:
            raise Invalid("replaced") from error
        finally:
            left[call.side] += 1
            if random.random() < 0.3:
                await trio.sleep(0.01)

    async def moment() -> None:
        await trio.sleep(random.choice([0, 0.01, 0.02]))
        if random.random() < 0.1:
            raise ApplicationError("by chance")

    responder = Responder()

    @responder.request_response
    async def respond(request: Payload) -> Payload:
        await moment()
        return request

    @responder.fire_and_forget
    async def forget(request: Payload) -> None:
        await moment()

    @responder.request_stream
    async def stream(request: Payload) -> AsyncIterator[bytes]:
        for _ in range(3):
            await moment()
            yield b""

    @responder.request_channel
    async def channel(channel: Channel) -> None:
        async for item in channel:
            await moment()
            await channel.send(item)

    responder.around(storm)
    responder.around(storm)
    async with connected_pair(responder, around=[storm, storm], deadlines=True) as pair:

        async def one(interaction: str) -> None:
            await trio.sleep(random.random() / 10)
            with (
                contextlib.suppress(Rejected, Invalid, Canceled, ConnectionLost, LookupError),
                trio.move_on_after(random.choice([0.01, 0.02, 0.05, math.inf])),
            ):
                await ask(pair.client, interaction)

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(one, INTERACTIONS[number % 4])
            if seed % 2:
                await trio.sleep(0.06)
                await trio.aclose_forcefully(pair.client_wire._stream)
        await trio.sleep(1)
        assert pair.server.faults.handler_errors == 0

    assert entered == left
    assert min(entered.values()) > 20
    assert {call.outcome for call in calls} == {"completed", "failed", "cancelled"}
    assert caplog.records == [] or seed % 2
