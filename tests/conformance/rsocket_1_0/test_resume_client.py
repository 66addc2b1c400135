"""What a client asks when it resumes, and what it sends again: 1.0 and 0.2."""

from __future__ import annotations

import pytest

from rsocket_trio import (
    Keepalive,
)
from tests.conformance.raw import (
    Wire,
    both,
    cancel,
    complete,
    forget,
    keepalive,
    payload,
    request_n,
    settle,
    stream,
)
from tests.conformance.resuming import (
    client,
    resume_ok,
    with_options,
)

clause = pytest.mark.clause


@both
@clause("RS10-RSM-11", "RS02-RSM-11", "RS02-RSM-04", "RS10-RSM-03", "RS02-RES-01", "RS10-RES-01", "RS02-RES-03")
async def test_a_client_resumes_with_its_token_and_its_positions(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as side:
        assert len(side.token) == 16
        await side.connection.fire_and_forget(b"lost")
        peer = await side.resumed(got=0, sent=0)
        await peer.expect(forget(1, b"lost"))
        await peer.send(forget(2, b"a request of ours"))
        await settle()
        peer = await side.resumed(got=23, sent=10)
        await side.connection.fire_and_forget(b"new")
        await peer.expect(forget(3, b"new"))
        peer = await side.lost()
        assert (await peer.receive()).flags == 0  # it may not be ignored


@both
@clause("RS10-RSM-23", "RS02-RSM-22")
async def test_tokens_cannot_be_guessed(autojump_clock: object, wire: Wire) -> None:
    tokens = set()
    for _ in range(20):
        async with client(wire) as side:
            tokens.add(side.token)
    assert {len(token) for token in tokens} == {16}
    assert len(tokens) == 20
    for place in range(16):
        assert len({token[place] for token in tokens}) > 5


@both
@clause("RS10-RSM-10", "RS10-RSM-12", "RS02-RSM-10")
async def test_a_client_says_nothing_but_resume_until_it_is_answered(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, keepalive=Keepalive(0.5, 2), options=with_options(answer_seconds=60)) as side:
        await side.connection.fire_and_forget(b"before")
        peer = await side.asked(got=0)
        await side.connection.fire_and_forget(b"meanwhile")
        await peer.expect_silence(30)
        await peer.send(resume_ok(0))
        await peer.expect(forget(1, b"before"), forget(3, b"meanwhile"))


@both
@clause("RS10-RSM-14", "RS10-RSM-15", "RS02-RSM-13", "RS02-RSM-14", "RS02-SID-07")
@pytest.mark.parametrize("got", [0, 1, 2, 3])
async def test_a_client_sends_again_exactly_what_is_missing(autojump_clock: object, wire: Wire, got: int) -> None:
    frames = [forget(1, b"1"), forget(3, b"22"), forget(5, b"333")]
    async with client(wire) as side:
        for text in (b"1", b"22", b"333"):
            await side.connection.fire_and_forget(text)
        await side.peer.expect(*frames)
        peer = await side.resumed(got=0, sent=sum(map(len, frames[:got])))
        await peer.expect(*frames[got:])
        await side.connection.fire_and_forget(b"next")
        await peer.expect(forget(7, b"next"))


@both
@clause("RS10-RSM-15", "RS02-RSM-14", "RS02-RSM-06")
async def test_credit_and_cancels_are_sent_again(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as side:
        async with side.connection.request_stream(b"s", initial_request_n=2, refill=False) as items:
            await side.peer.expect(stream(1, 2, b"s"))
            items.request_n(5)
            await side.peer.expect(request_n(1, 5))
        await side.peer.expect(cancel(1))
        peer = await side.resumed(got=0, sent=11)
        await peer.expect(request_n(1, 5), cancel(1))


@both
@clause("RS10-RSM-15", "RS02-RSM-13", "RS10-RSM-24")
async def test_a_stream_goes_on_where_it_was_whatever_the_server_sends_again(
    autojump_clock: object, wire: Wire
) -> None:
    async with client(wire) as side, side.connection.request_stream(b"s", initial_request_n=9) as items:
        await side.peer.expect(stream(1, 9, b"s"))
        await side.peer.send(payload(1, b"0"), payload(1, b"1"))
        await side.peer.send_bytes(b"\x00\x00\x07" + payload(1, b"2")[:3])
        await settle()
        peer = await side.resumed(got=14, sent=11)
        await peer.send(payload(1, b"2"), complete(1))
        assert [item.data async for item in items] == [b"0", b"1", b"2"]


@both
@clause("RS10-RSM-22", "RS02-RSM-21", "RS10-RSM-11")
async def test_a_client_does_not_keep_what_a_keepalive_confirms(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, keepalive=Keepalive(1, 100)) as side:
        for text in (b"1", b"22", b"333"):
            await side.connection.fire_and_forget(text)
        await side.peer.expect(forget(1, b"1"), forget(3, b"22"), forget(5, b"333"))
        await side.peer.send(forget(2, b"x"))
        await side.peer.expect(keepalive(position=7))
        await side.peer.send(keepalive(respond=False, position=7))
        for position in (8, 3, 1000):  # inside a frame, old, never reached
            await side.peer.send(keepalive(respond=True, position=position))
            await side.peer.expect(keepalive(respond=False, position=7))
        peer = await side.resumed(got=7, first=7, sent=15)
        await peer.expect(forget(5, b"333"))
