"""Requests that are forwarded to another server: all interactions, their credit, their errors and their ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Channel,
    Connection,
    ConnectionLost,
    Credentials,
    Limits,
    Outgoing,
    Payload,
    Rejected,
    RejectedSetup,
    Responder,
    connect_forever,
    forwarding,
    open_connection,
    open_pool,
    serve,
)
from rsocket_trio.client.forwarding import translated_errors
from rsocket_trio.metadata import COMPOSITE_METADATA, ROUTING, Entry, encode_composite
from rsocket_trio.services import Simple
from tests.connection.pairs import settle

FAR, NEAR = "memory://far", "memory://near"


class FarSide:
    """What is behind a forwarder; ``seen`` is what it was asked, ``sent`` the items that its streams have sent."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.sent = 0
        self.cancelled = trio.Event()
        self.responder = responder = Responder()

        @responder.request_response("echo")
        async def echo(request: Payload) -> Payload:
            self.seen.append(request)
            return request

        @responder.request_response
        async def bare(request: Payload) -> bytes:
            return b"bare"

        @responder.request_response("fail")
        async def fail(request: Payload) -> bytes:
            raise ApplicationError("no", code=0x400)

        @responder.request_response("slow")
        async def slow(request: Payload) -> bytes:
            try:
                await trio.sleep(10)
            except trio.Cancelled:
                self.cancelled.set()
                raise
            return b"late"

        @responder.fire_and_forget("note")
        async def note(request: Payload) -> None:
            self.seen.append(request.data)

        @responder.metadata_push
        def pushed(metadata: bytes) -> None:
            self.seen.append(metadata)

        @responder.request_stream("numbers")
        async def numbers(request: Payload) -> AsyncIterator[bytes]:
            try:
                for number in range(int(request.text)):
                    self.sent += 1
                    yield b"%d" % number
            except trio.Cancelled:
                self.cancelled.set()
                raise

        @responder.request_channel("echo", initial_request_n=2, refill=False)
        async def talk(channel: Channel) -> None:
            async for item in channel:
                self.seen.append(item.data)
                await channel.send(b"re " + item.data)
            await channel.send(b"bye")

        @responder.request_channel("first", initial_request_n=1, refill=False)
        async def first(channel: Channel) -> None:
            await channel.send(await anext(channel))
            channel._stop_receiving()
            await channel.send(b"no more")
            await trio.sleep(1)

        @responder.request_channel("some", initial_request_n=100)
        async def some(channel: Channel) -> None:
            for _ in range(5):
                await anext(channel)
            channel._stop_receiving()
            for number in range(3):
                await trio.sleep(1)
                await channel.send(b"%d" % number)

    async def serve(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        """Serve it until it is cancelled."""
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(serve, self.responder, FAR)
                task_status.started(scope)


@asynccontextmanager
async def forwarded(
    change: Callable[[Responder], None] | None = None,
    *,
    prefix: str = "",
    route: str | None = None,
    near: Mapping[str, Any] = {},
    **options: Any,
) -> AsyncIterator[FarSide]:
    """Provide what is behind a forwarder at ``NEAR``; ``change`` changes the forwarder's own responder.

    ``near`` are options of its server, the others those of its connection.
    """
    far, front = FarSide(), Responder()
    if change is not None:
        change(front)
    far_options = {name: options.pop(name) for name in [*options] if name != "credentials"}
    async with trio.open_nursery() as nursery:
        await nursery.start(far.serve)
        async with open_connection(FAR, **far_options) as connection:
            front.include(forwarding(connection, route=route, **options), prefix)
            await nursery.start(partial(serve, front, NEAR, **near))
            yield far
            nursery.cancel_scope.cancel()


# The five interactions


async def test_a_request_passes_with_its_metadata(autojump_clock: MockClock) -> None:
    async with forwarded() as far, open_connection(NEAR) as client:
        answer = await client.request_response(b"x", route="echo", metadata=[("application/x.mine", "m")])
        assert answer == far.seen[0]
        assert (answer.data, b"x.mine" in (answer.metadata or b"")) == (b"x", True)
        await client.fire_and_forget(b"f", route="note")
        await client.metadata_push(b"m")
        await settle()
    assert set(far.seen[1:]) == {b"f", b"m"}


async def test_an_error_passes_with_its_code_and_data(autojump_clock: MockClock) -> None:
    async with forwarded(), open_connection(NEAR) as client:
        with pytest.raises(ApplicationError, match="no") as caught:
            await client.request_response(route="fail")
        assert caught.value.code == 0x400
        with pytest.raises(Rejected, match="nowhere"):
            await client.request_response(route="nowhere")
        async with client.request_stream(route="nowhere") as items:
            with pytest.raises(Rejected, match="nowhere"):
                await anext(items)


@pytest.mark.parametrize("credit", [1, 8, 256])
async def test_what_the_client_grants_is_asked_of_the_far_side_and_no_more(
    credit: int, autojump_clock: MockClock
) -> None:
    async with forwarded() as far, open_connection(NEAR) as client:
        opening = client.request_stream("1000", route="numbers", initial_request_n=credit, refill=False)
        async with opening as items:
            for number in range(1000):
                if number and number % credit == 0:
                    await settle()
                    # An async generator runs on to its next item before that is asked for.
                    assert far.sent <= number + 1
                    items.request_n(credit)
                assert (await anext(items)).text == str(number)
            assert [item async for item in items] == []


async def test_credit_that_comes_while_the_far_side_is_silent_is_asked_for_at_once(autojump_clock: MockClock) -> None:
    rooms: list[int] = []

    async with forwarded() as far, open_connection(NEAR) as client:

        @far.responder.request_stream("rooms")
        async def wait(request: Payload, out: Outgoing) -> None:
            for beyond in (0, 10, 20):
                rooms.append(await out.wait_room(beyond))
            await out.send(b"enough")

        async with client.request_stream(route="rooms", initial_request_n=10, refill=False) as items:
            for _ in range(2):
                await settle()
                items.request_n(10)
            assert (await anext(items)).text == "enough"
    assert rooms == [10, 20, 30]


async def test_both_halves_of_a_channel_end_by_themselves(autojump_clock: MockClock) -> None:
    async with forwarded() as far, open_connection(NEAR) as client:
        async with client.request_channel(route="echo") as channel:
            await channel.send(b"1")
            await channel.send(b"2")
            with trio.move_on_after(1) as scope:
                await channel.wait_room()
            assert scope.cancelled_caught  # the far side asked for two, and nobody else asks for more
            await channel.send_eof()
            assert [item.text async for item in channel] == ["re 1", "re 2", "bye"]
        assert far.seen == [b"1", b"2"]

        async with client.request_channel(route="first") as channel:
            await channel.send(b"1")
            assert (await anext(channel)).text == "1"
            await channel.wait_send_closed()  # the far side wants no more, and sends on
            assert [item.text async for item in channel] == ["no more"]


async def test_a_far_side_that_wants_no_more_goes_on_answering(autojump_clock: MockClock) -> None:
    async def send(channel: Channel) -> None:
        with suppress(Canceled):
            while True:
                await channel.send_many([b"more"] * 3)

    async with forwarded(), open_connection(NEAR) as client:
        for _ in range(5):  # the far side stops while items for it are on their way
            async with client.request_channel(route="some") as channel, trio.open_nursery() as nursery:
                nursery.start_soon(send, channel)
                assert [item.text async for item in channel] == ["0", "1", "2"]


async def test_a_client_that_leaves_cancels_the_far_handler(autojump_clock: MockClock) -> None:
    async with forwarded() as far, open_connection(NEAR) as client:
        async with client.request_stream("1000", route="numbers", initial_request_n=2, refill=False) as items:
            await anext(items)
        await far.cancelled.wait()


@pytest.mark.parametrize("ends", ["call", "connection"])
async def test_a_request_whose_caller_or_client_goes_is_cancelled_at_the_far_side(
    ends: str, autojump_clock: MockClock
) -> None:
    async with forwarded() as far, open_connection(NEAR) as client:

        async def ask() -> None:
            with suppress(ConnectionLost), trio.move_on_after(1 if ends == "call" else 20):
                await client.request_response(route="slow")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(1)
            if ends == "connection":
                client._engine.lose(ConnectionLost("by the test"))
            with trio.fail_after(1):
                await far.cancelled.wait()


async def test_requests_wait_for_the_far_side_without_a_task_each(autojump_clock: MockClock) -> None:
    async with forwarded(), open_connection(NEAR) as client, trio.open_nursery() as nursery:
        before = trio.lowlevel.current_statistics().tasks_living
        for _ in range(100):
            nursery.start_soon(partial(client.request_response, route="slow"))
        await trio.sleep(1)
        # Those of the callers, of the far side's handlers, and a few that send.
        assert trio.lowlevel.current_statistics().tasks_living - before < 250
        nursery.cancel_scope.cancel()


async def test_answers_wait_for_room_to_the_client(autojump_clock: MockClock) -> None:
    answer = bytes(1000)
    limits = Limits(outbox_size=2500)
    async with forwarded(near={"limits": limits}), open_connection(NEAR) as client, trio.open_nursery() as nursery:
        answers: list[Payload] = []

        async def ask() -> None:
            answers.append(await client.request_response(answer, route="echo"))

        for _ in range(100):
            nursery.start_soon(ask)
    assert [each.data for each in answers] == [answer] * 100


# Which requests


async def test_routes_of_the_responder_come_first(autojump_clock: MockClock) -> None:
    def change(front: Responder) -> None:
        @front.request_response("echo")
        async def own(request: Payload) -> bytes:
            return b"own"

    async with forwarded(change, route="echo") as far, open_connection(NEAR) as client:
        assert (await client.request_response(route="echo")).data == b"own"
        assert (await client.request_response(b"x")).data == b"x"  # under the route of the forwarder
        assert len(far.seen) == 1


async def test_behind_a_prefix_only_such_routes_are_forwarded(autojump_clock: MockClock) -> None:
    async with forwarded(prefix="sl."), open_connection(NEAR) as client:
        for route in (None, "echo"):
            with pytest.raises(Rejected):
                await client.request_response(route=route)
        with pytest.raises(Rejected, match=r"sl\.ow"):
            await client.request_response(route="sl.ow")  # of the far side


# The SETUP, and pushed metadata


async def test_a_client_with_other_data_is_refused(autojump_clock: MockClock) -> None:
    async with forwarded(data_mime="application/json"):
        with pytest.raises(RejectedSetup, match=r"application/octet-stream.*application/json"):
            async with open_connection(NEAR) as client:
                await client.request_response(route="echo")
        async with open_connection(NEAR, data_mime="application/json") as client:
            assert (await client.request_response(b"{}", route="echo")).data == b"{}"


async def test_other_data_is_rejected_where_the_far_side_came_after_the_client(autojump_clock: MockClock) -> None:
    far, front = FarSide(), Responder()
    async with trio.open_nursery() as nursery:
        async with connect_forever(FAR, data_mime="application/json") as behind:
            front.include(forwarding(behind))
            await nursery.start(serve, front, NEAR)
            async with open_connection(NEAR, data_mime="text/plain") as client:
                await settle()
                await nursery.start(far.serve)
                await behind.connected()
                with pytest.raises(Rejected, match=r"'text/plain'.*'application/json'"):
                    await client.request_response(route="echo")
        nursery.cancel_scope.cancel()


async def test_the_check_runs_before_the_setup_handler_of_the_application(autojump_clock: MockClock) -> None:
    admitted: list[str | int] = []

    def change(front: Responder) -> None:
        @front.setup
        async def admit(setup: Any, connection: Connection) -> None:
            admitted.append(setup.data_mime)

    async with forwarded(change):
        with pytest.raises(RejectedSetup):
            async with open_connection(NEAR, data_mime="text/plain") as client:
                await client.request_response(route="echo")
        async with open_connection(NEAR) as client:
            await client.request_response(route="echo")
    assert admitted == ["application/octet-stream"]


async def test_pushed_metadata_is_the_responders_where_it_has_a_handler(autojump_clock: MockClock) -> None:
    pushed: list[bytes] = []

    def change(front: Responder) -> None:
        front.metadata_push(pushed.append)

    async with forwarded(change) as far, open_connection(NEAR) as client:
        await client.metadata_push(b"m")
        await settle()
    assert (pushed, far.seen) == ([b"m"], [])


@pytest.mark.parametrize(
    ("own", "credentials", "passes"), [(False, False, True), (True, False, False), (True, True, True)]
)
async def test_credentials_pass_unless_the_responder_takes_them(
    own: bool, credentials: bool, passes: bool, autojump_clock: MockClock
) -> None:
    def change(front: Responder) -> None:
        if own:

            @front.authenticate
            async def user(credentials: Credentials, connection: object) -> str:
                return "user"

    async with forwarded(change, credentials=credentials) as far, open_connection(NEAR) as client:
        await client.request_response(route="echo", auth=Simple("user", "secret"))
    assert (b"secret" in far.seen[0].metadata) == passes


async def test_a_request_without_credentials_passes_where_they_do(autojump_clock: MockClock) -> None:
    def change(front: Responder) -> None:
        front.authenticate(lambda credentials, where: "user")

    async with forwarded(change, credentials=True), open_connection(NEAR, auth=Simple("user", "secret")) as client:
        assert (await client.request_response(route="echo")).data == b""
        entries = encode_composite([Entry("text/plain", b"no route")])
        assert (await client.request_response(Payload(b"", entries))).data == b"bare"


# Dialects and MIME types that differ


async def test_metadata_of_one_entry_and_composite_metadata_become_each_other(autojump_clock: MockClock) -> None:
    for near, behind in ((ROUTING, COMPOSITE_METADATA), (COMPOSITE_METADATA, ROUTING)):
        async with forwarded(metadata_mime=behind) as far, open_connection(NEAR, metadata_mime=near) as client:
            assert (await client.request_response(b"x", route="echo")).data == b"x"
            assert far.seen[0].data == b"x"


async def test_metadata_that_the_far_side_has_no_place_for_is_refused(autojump_clock: MockClock) -> None:
    async with forwarded(metadata_mime=ROUTING), open_connection(NEAR) as client:
        with pytest.raises(Rejected, match=r"metadata of type 'application/x\.mine'"):
            await client.request_response(route="echo", metadata=[("application/x.mine", "m")])


@pytest.mark.parametrize("dialect", ["reactivesocket/0.0", "reactivesocket/0.1", "reactivesocket/0.2", "streamux/1"])
async def test_clients_of_every_dialect_are_forwarded(dialect: str, autojump_clock: MockClock) -> None:
    async with forwarded(), open_connection(NEAR, dialect=dialect) as client:
        assert (await client.request_response(b"x")).data == b"bare"


async def test_what_the_far_dialect_lacks_is_refused_with_the_reason(autojump_clock: MockClock) -> None:
    async with forwarded(dialect="streamux/1"), open_connection(NEAR) as client:
        assert (await client.request_response(b"x")).data == b"bare"
        with pytest.raises(Rejected, match=r"metadata of type .*: no metadata is taken"):
            await client.request_response(b"x", route="echo")
    async with (
        forwarded(),
        open_connection(NEAR, dialect="reactivesocket/0.1") as client,
        client.request_subscription() as items,
    ):
        with pytest.raises(Rejected, match=r"rsocket/1\.0 has no"):
            await anext(items)


async def test_an_answer_that_the_clients_dialect_cannot_carry_fails_that_request_alone(
    autojump_clock: MockClock,
) -> None:
    async with forwarded(dialect="reactivesocket/0.0") as far, open_connection(NEAR) as client:

        @far.responder.request_response("typed")
        def typed(request: Payload) -> Payload:
            return Payload(b"x", b"m", metadata_type=5)

        with pytest.raises(ApplicationError, match=r"rsocket/1\.0 has no metadata types"):
            await client.request_response(route="typed")
        assert (await client.request_response(b"x", route="echo")).data == b"x"


# The far side goes


async def test_a_far_side_that_is_lost_meanwhile_fails_the_request_and_one_that_is_gone_rejects_it(
    autojump_clock: MockClock,
) -> None:
    far, front = FarSide(), Responder()
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(far.serve)
        async with connect_forever(FAR, wait=False) as behind:
            front.include(forwarding(behind))
            await nursery.start(serve, front, NEAR)
            async with open_connection(NEAR) as client:
                await behind.connected()

                async def lose() -> None:
                    await trio.sleep(1)
                    connection = behind.connection
                    assert connection is not None
                    connection._engine.link.abandon()

                nursery.start_soon(lose)
                with pytest.raises(ApplicationError, match="the far side was lost"):
                    await client.request_response(route="slow")
                scope.cancel()
                await trio.sleep(1)
                with pytest.raises(Rejected, match="the far side can't be reached"):
                    await client.request_response(route="echo")
                async with client.request_stream("1", route="numbers") as items:
                    with pytest.raises(Rejected, match="the far side can't be reached"):
                        await anext(items)
        nursery.cancel_scope.cancel()


async def test_a_loss_that_both_directions_hear_of_is_one_error() -> None:
    with pytest.raises(ApplicationError, match="the far side was lost"), translated_errors():
        raise ExceptionGroup("both", [ConnectionLost("up"), ConnectionLost("down")])


async def test_what_one_server_rejects_is_forwarded_to_another(autojump_clock: MockClock) -> None:
    far, front = FarSide(), Responder()
    async with trio.open_nursery() as nursery:
        await nursery.start(far.serve)
        await nursery.start(serve, Responder(), "memory://empty")
        async with open_pool([FAR, "memory://empty"]) as pool:
            front.include(forwarding(pool))
            await nursery.start(serve, front, NEAR)
            async with open_connection(NEAR) as client:
                for _ in range(20):  # which begin at either server
                    assert (await client.request_response(b"x", route="echo")).data == b"x"
                    async with client.request_channel(route="echo") as channel:
                        await channel.send(b"1")
                        await channel.send(b"2")
                        await channel.send_eof()
                        assert [item.text async for item in channel] == ["re 1", "re 2", "bye"]
        nursery.cancel_scope.cancel()


async def test_an_error_in_the_middle_of_a_channel_passes_with_its_code(autojump_clock: MockClock) -> None:
    async with forwarded() as far, open_connection(NEAR) as client:

        @far.responder.request_channel("breaks")
        async def breaks(channel: Channel) -> None:
            await channel.send(await anext(channel))
            raise ApplicationError("no", code=0x400)

        async with client.request_channel(route="breaks") as channel:
            await channel.send(b"1")
            assert (await anext(channel)).text == "1"
            with pytest.raises(ApplicationError, match="no") as raised:
                await anext(channel)
    assert raised.value.code == 0x400


async def test_only_what_makes_requests_is_forwarded_to() -> None:
    with pytest.raises(TypeError, match="forwarding takes a connection or a pool, not str"):
        forwarding("tcp://a:1")  # type: ignore[arg-type]
