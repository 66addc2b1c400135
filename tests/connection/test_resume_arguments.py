"""Which options, streams, dialects and servers a client can resume with."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from rsocket_trio import (
    ConnectionLost,
    RejectedSetup,
    Responder,
    ResumeOptions,
    RSocketError,
    Unsupported,
    open_connection,
    open_connection_over,
    serve,
)
from tests.connection.resuming import (
    DIALECTS,
    OPTIONS,
    Book,
    Network,
    each,
)
from tests.each_row import each_row


@each_row(
    ("field", "bad", "kind"),
    [
        ("store_bytes", 1023, ValueError),
        ("session_seconds", 0, ValueError),
        ("session_seconds", "60", TypeError),
        ("answer_seconds", 0, ValueError),
        ("first_delay", -0.1, ValueError),
        ("jitter", 1.1, ValueError),
        ("sessions", 0, ValueError),
        ("sessions_bytes", 0, ValueError),
        ("live_bytes", 0, ValueError),
        ("give_up_when_full", "yes", TypeError),
    ],
)
def test_options_that_cannot_be_are_refused(field: str, bad: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=field):
        ResumeOptions(**{field: bad})  # type: ignore[arg-type]


def test_delays_double_up_to_the_longest_and_are_shortened_by_chance() -> None:
    options = ResumeOptions(first_delay=0.5, longest_delay=3, jitter=0.2)
    assert [options.delay(tries, 0) for tries in (0, 1, 2, 3, 4, 10_000)] == [0.5, 1, 2, 3, 3, 3]
    assert options.delay(1, 1) == pytest.approx(0.8)
    assert options.delay(9, 0.5) == pytest.approx(2.7)
    assert ResumeOptions(first_delay=0).delay(7, 1) == 0


async def test_a_plain_stream_is_not_enough_to_resume() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    with pytest.raises(TypeError, match="function"):
        async with open_connection_over(ours, resume=OPTIONS):
            pytest.fail("the block began")
    await trio.aclose_forcefully(ours)
    await trio.aclose_forcefully(theirs)


@each_row("dialect", ["reactivesocket/0.1", "reactivesocket/0.0", "streamux/1"])
async def test_dialects_without_resumption_say_so(dialect: str) -> None:
    with pytest.raises(Unsupported, match=f"{dialect}"):
        async with open_connection_over(Network().connect, dialect=dialect, resume=OPTIONS):
            pytest.fail("the block began")
    with pytest.raises(Unsupported, match=f"{dialect}"):
        async with open_connection("tcp://127.0.0.1:1", dialect=dialect, resume=OPTIONS):
            pytest.fail("the block began")
    with pytest.raises(Unsupported, match=f"{dialect}"):
        await serve(Responder(), [Network()], dialects=[dialect], resume=OPTIONS)


async def test_a_server_of_many_dialects_resumes_where_it_can(autojump_clock: object) -> None:
    network = Network()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, Book().responder, [network], resume=OPTIONS))
        for dialect in DIALECTS:
            async with open_connection_over(network.connect, dialect=dialect, resume=OPTIONS) as client:
                assert (await client.request_response(b"x")).data == b"x"
                await network.cut()
                assert (await client.request_response(b"y")).data == b"y"
        for dialect in ("reactivesocket/0.1", "streamux/1"):
            async with open_connection_over(network.connect, dialect=dialect) as client:
                assert (await client.request_response(b"x")).data == b"x"
                assert not client.can_resume
        nursery.cancel_scope.cancel()


@each_row("bad", [True, {}, 60])
async def test_options_are_resume_options(bad: Any) -> None:
    with pytest.raises(TypeError, match="ResumeOptions"):
        async with open_connection_over(Network().connect, resume=bad):
            pytest.fail("the block began")
    with pytest.raises(TypeError, match="ResumeOptions"):
        await serve(Responder(), [Network()], resume=bad)


async def test_a_fragment_has_to_fit_into_the_store() -> None:
    small = ResumeOptions(store_bytes=1024)
    with pytest.raises(ValueError, match="store"):
        async with open_connection_over(Network().connect, resume=small, fragment_size=1025):
            pytest.fail("the block began")
    with pytest.raises(ValueError, match="store"):
        await serve(Responder(), [Network()], resume=small, fragment_size=1025)


@each
async def test_a_server_without_resumption_refuses(autojump_clock: object, dialect: str) -> None:
    network = Network()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, Responder(), [network], dialects=[dialect]))
        with pytest.raises(RSocketError) as caught:
            async with open_connection_over(network.connect, dialect=dialect, resume=OPTIONS) as client:
                await client.request_response(b"x")
        assert type(caught.value) is not ConnectionLost
        if dialect != "rsocket/2.0-draft":
            assert type(caught.value) is RejectedSetup
        del caught
        nursery.cancel_scope.cancel()
