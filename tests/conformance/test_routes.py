"""A server that finds its handlers by name is asked by route; one without handlers is not asked at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from itertools import count, islice

import pytest
import trio
import trio.testing

from rsocket_trio import Channel, Payload, Responder, serve
from rsocket_trio.conformance.catalogue import NEEDS, TESTED_DIALECTS, chosen, read_chapter
from rsocket_trio.conformance.play import CaseOutcome
from rsocket_trio.conformance.report import told
from rsocket_trio.conformance.routes import Routes
from rsocket_trio.conformance.run import Target, check_server, dial_to, run
from rsocket_trio.metadata import BearerAuthentication
from tests.each_row import each_row, some

PATHS = {"echo": "a.echo", "count": "a.count", "talk": "a.talk", "silent": "a.silent"}
NOTATION = read_chapter("rsocket/1.0").notation
SETUP = NOTATION.frame("setup").value
SPARE = "served-a-request-with-spare-flags"
COMPOSITE = "message/x.rsocket.composite-metadata.v0"
ROUTING = "message/x.rsocket.routing.v0"


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0.01)


@pytest.mark.parametrize(
    ("mime", "metadata"),
    [
        (COMPOSITE, "fe 000003 02 652f"),
        (ROUTING, "02 652f"),
        ("text/plain", "652f"),
    ],
)
def test_a_request_carries_its_route_as_the_mime_type_says(mime: str, metadata: str) -> None:
    routes = Routes({"echo": "e/", "count": "e/"}, mime)
    entry = bytes.fromhex(metadata)
    head = len(entry).to_bytes(3, "big") + entry

    for frame, fields in (
        ('ask 1 "x"', "00000001 1100"),
        ('ask_more 1 "x"', "00000001 1180"),
        ('stream 3 9 "x"', "00000003 1900 00000009"),
    ):
        assert routes.written(NOTATION.frame(frame).value, SETUP) == bytes.fromhex(fields) + head + b"x"


@pytest.mark.parametrize(
    "frame", ['channel 1 9 "x"', 'ask_described 1 "m" "x"', 'forget 1 "x"', "hex 00000001 18", "hex 00", "cancel 1"]
)
def test_frames_without_a_route_stay_as_they_are(frame: str) -> None:
    value = NOTATION.frame(frame).value

    assert Routes({"echo": "e", "count": "c"}).written(value, SETUP) == value


def test_the_usual_setup_has_the_mime_types_and_another_one_its_own() -> None:
    routes = Routes({}, "a/b", "c/d")
    other = NOTATION.frame('setup_with 1 2 "e/f" "g/h" ""').value

    assert routes.written(SETUP, SETUP) == SETUP[:18] + b"\x03a/b\x03c/d"
    assert routes.written(other, SETUP) == other


def test_a_request_that_is_never_answered_goes_where_the_echo_does_unless_it_has_a_route() -> None:
    frame = NOTATION.frame('ask 1 "silent"').value

    assert b"one" in Routes({"echo": "one"}).written(frame, SETUP)
    assert b"two" in Routes({"echo": "one", "silent": "two"}).written(frame, SETUP)


TOKEN = BearerAuthentication("sesame")
ENTRY = b"\xfc\x00\x00\x07\x81sesame"


@each_row(
    ("frame", "written"),
    [
        ('ask 1 "x"', "00000001 1100 000012 fe 000003 02 652f fc 000007 81 736573616d65 78"),
        ('stream 3 9 "x"', "00000003 1900 00000009 00000b fc 000007 81 736573616d65 78"),
        ('ask_described 1 "m" "x"', "00000001 1100 000001 6d 78"),
        ("cancel 1", "00000001 2400"),
    ],
)
def test_credentials_stand_behind_the_route_of_a_request(frame: str, written: str) -> None:
    routes = Routes({"echo": "e/"}, credentials=TOKEN)

    assert routes.written(NOTATION.frame(frame).value, SETUP) == bytes.fromhex(written)


def test_the_usual_setup_has_the_credentials() -> None:
    head = SETUP[:4] + b"\x05\x00" + SETUP[6:18] + bytes([len(COMPOSITE)]) + COMPOSITE.encode()

    written = Routes({}, data_mime="a/b", credentials=TOKEN).written(SETUP, SETUP)

    assert written == head + b"\x03a/b" + b"\x00\x00\x0b" + ENTRY


def guarded() -> Responder:
    """One that asks for credentials, and has every interaction by route."""
    made = Responder(auth_required=True)
    made.authenticate(lambda credentials, where: "ann" if credentials == TOKEN else None)
    made.include(routed())
    return made


async def test_a_server_that_asks_for_credentials_passes_the_cases_that_apply(clock: trio.testing.MockClock) -> None:
    cases = some(chosen("rsocket/1.0", role="server"), 100)
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, guarded(), "tcp://127.0.0.1:0", dialects=["rsocket/1.0"]))
        target = Target(dial_to(uri), frozenset(NEEDS), 60, 64, Routes(PATHS, credentials=TOKEN))
        await check_server(target, "rsocket/1.0")
        results = await run(cases, target)
        stranger = Target(dial_to(uri), frozenset(NEEDS), 60, 64, Routes(PATHS))
        [refused] = await run(chosen("rsocket/1.0", role="server", patterns=(SPARE,)), stranger)
        nursery.cancel_scope.cancel()

    broken = [result for result in results if result.outcome in (CaseOutcome.FAIL, CaseOutcome.DEVIATION)]
    assert [told(result) for result in broken] == []
    assert refused.outcome is CaseOutcome.FAIL
    apply = [result for result in results if result.outcome is CaseOutcome.PASS]
    assert len(apply) > 0.5 * len([case for case in cases if not case.options])


async def test_nothing_that_is_told_has_the_credentials_also_where_the_server_sends_them_back() -> None:
    cases = chosen("rsocket/1.0", role="server", patterns=(SPARE,))
    echo = Responder()  # takes no credentials, so that they are in what it sends back
    echo.request_response(lambda request: request)
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, echo, "tcp://127.0.0.1:0", dialects=["rsocket/1.0"]))
        target = Target(dial_to(uri), frozenset(NEEDS), 60, 64, Routes({}, credentials=TOKEN))
        results = await run(cases, target)
        nursery.cancel_scope.cancel()

    said = "\n".join(line for result in results for line in told(result))
    assert [result.outcome for result in results] == [CaseOutcome.FAIL]
    assert "2a 2a 2a 2a 2a 2a 2a" in said
    assert b"sesame".hex(" ") not in said


def routed() -> Responder:
    """One that has every interaction by route, and none without."""
    made = Responder()

    @made.request_response(PATHS["echo"])
    async def echo(request: Payload) -> bytes:
        return request.data

    @made.request_response(PATHS["silent"])
    async def silent(request: Payload) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    @made.request_stream(PATHS["count"])
    async def numbers(request: Payload) -> AsyncIterator[bytes]:
        for number in islice(count(), int(request.data) if request.data else None):
            yield b"%d" % number

    @made.request_channel(PATHS["talk"])
    async def talk(channel: Channel) -> None:
        await channel.send(channel.request.data)
        async for item in channel:
            await channel.send(item)

    return made


@pytest.mark.parametrize("mime", [COMPOSITE, ROUTING])
async def test_a_server_with_routes_alone_passes_the_cases_that_apply(mime: str, clock: trio.testing.MockClock) -> None:
    cases = some(chosen("rsocket/1.0", role="server"), 75)
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, routed(), "tcp://127.0.0.1:0", dialects=["rsocket/1.0"]))
        target = Target(dial_to(uri), frozenset(NEEDS), 60, 64, Routes(PATHS, mime))
        await check_server(target, "rsocket/1.0")
        results = await run(cases, target)
        nursery.cancel_scope.cancel()

    broken = [result for result in results if result.outcome in (CaseOutcome.FAIL, CaseOutcome.DEVIATION)]
    assert [told(result) for result in broken] == []
    apply = [result for result in results if result.outcome is CaseOutcome.PASS]
    assert len(apply) > 0.8 * len([case for case in cases if not case.options])


@pytest.mark.parametrize("abilities", [frozenset[str](), frozenset({"echo"})], ids=["none", "echo"])
@pytest.mark.parametrize("dialect", [name for name in TESTED_DIALECTS if not read_chapter(name).notation.negotiates])
async def test_a_server_passes_the_cases_that_need_no_more_than_it_has(
    dialect: str, abilities: frozenset[str], clock: trio.testing.MockClock
) -> None:
    responder = Responder()
    if abilities:
        responder.request_response(lambda request: request)
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, responder, "tcp://127.0.0.1:0", dialects=[dialect]))
        results = await run(some(chosen(dialect, role="server"), 20), Target(dial_to(uri), abilities, 60, 64))
        nursery.cancel_scope.cancel()

    broken = [result for result in results if result.outcome in (CaseOutcome.FAIL, CaseOutcome.DEVIATION)]
    assert [told(result) for result in broken] == []
