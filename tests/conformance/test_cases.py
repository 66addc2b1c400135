"""Our own server and client pass every case of the conformance tester, over every transport of the registry."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme

from rsocket_trio import Connection, Responder, RSocketError, serve
from rsocket_trio.conformance.catalogue import NEEDS, TESTED_DIALECTS, Case, chosen, read_chapter
from rsocket_trio.conformance.play import CaseOutcome, CaseResult
from rsocket_trio.conformance.report import failure_lines
from rsocket_trio.conformance.run import Listening, Target, check_server, dial_to, run, run_clients
from rsocket_trio.transports.aeron import duty_cycle
from rsocket_trio.transports.schemes import REGISTRY, parse_uri
from tests.conformance.peers import options_of, responder_of, serving, starting
from tests.each_row import ALL_CASES, some
from tests.missing import missing_aeron, require
from tests.rows import Rows, shows
from tests.serving import running_server

CASES = [case for dialect in TESTED_DIALECTS for case in read_chapter(dialect).cases]
PATIENCE = 60.0
"""Seconds that a healthy server never takes, on a machine that is busy with other things."""
CLIENTS = 8
"""Clients at a time."""
AT_ONCE = 64
"""Connections at a time: most cases wait for silence."""
WHOLE = "ws"
"""The transport, beside ``tcp``, over which every dialect is played; ``make gate`` has all played over all."""
PART = 1 if ALL_CASES else 24
"""One case of so many is played where all of them are played over TCP as well, each time others."""
IDLE = 0.02
"""Seconds without traffic after which the clock jumps."""


def jumping() -> trio.testing.MockClock:
    """A clock on which nobody waits for the silence of cases."""
    return trio.testing.MockClock(autojump_threshold=IDLE)


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return jumping()


def cases_of(dialect: str, role: str, *, heavy: bool) -> list[Case]:
    return chosen(dialect, role=role, heavy=heavy)


def settings() -> Iterator[tuple[str, str, str]]:
    """What is played: in each role all dialects over ``WHOLE``, and one of them over each other transport."""
    dialects = sorted(TESTED_DIALECTS)
    for role in ("server", "client"):
        for number, scheme in enumerate(sorted(set(REGISTRY) - {"tcp"})):
            # Not the same dialect in both roles, nor over all transports.
            alone = dialects[(number + 3 * (role == "client")) % len(dialects)]
            for dialect in dialects if ALL_CASES or scheme == WHOLE else [alone]:
                yield role, scheme, dialect


@cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The TLS contexts of a server and of who trusts it."""
    ca = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    ca.issue_cert("127.0.0.1").configure_cert(server)
    ca.configure_trust(client)
    return server, client


@asynccontextmanager
async def served(uri: str, dialect: str, abilities: frozenset[str]) -> AsyncIterator[Target]:
    """Our server with these interactions and options."""
    server, client = contexts() if parse_uri(uri).uses_tls else (None, None)
    async with serving(dialect, abilities, uri, server) as bound:
        yield Target(dial_to(bound, client), abilities, PATIENCE, AT_ONCE)


async def results_at(role: str, dialect: str, uri: str, cases: Sequence[Case]) -> list[CaseResult]:
    """The results of cases of a dialect and a role, played at an address, each option by itself."""
    found: list[CaseResult] = []
    for options in sorted({case.options for case in cases}):
        some = [case for case in cases if case.options == options]
        found += await results_with(frozenset((*NEEDS, *options)), some, role, dialect, uri)
    return found


async def results_with(
    abilities: frozenset[str], cases: list[Case], role: str, dialect: str, uri: str
) -> list[CaseResult]:
    """The results of these cases, with the abilities that they need."""
    if role == "server":
        async with served(uri, dialect, abilities) as target:
            await check_server(target, dialect)
            return await run(cases, target)
    server, client = contexts() if parse_uri(uri).uses_tls else (None, None)
    if uri.endswith(":0"):
        return await run_clients(
            cases, Listening(uri, starting(client), abilities, PATIENCE, CLIENTS, PATIENCE, server)
        )
    found: list[CaseResult] = []

    async def play(number: int) -> None:
        listening = Listening(f"{uri}-{number}", starting(client), abilities, PATIENCE, wait=PATIENCE)
        found.extend(await run_clients(cases[number::CLIENTS], listening))

    # An address without a port takes one client at a time.
    async with trio.open_nursery() as nursery:
        for number in range(CLIENTS):
            nursery.start_soon(play, number)
    return found


HEAVY = "rsocket/1.0"
"""The dialect whose heavy cases are played; ``make gate`` has those of all."""


@shows(case.clauses for case in CASES)
@pytest.mark.parametrize("dialect", sorted(TESTED_DIALECTS))
@pytest.mark.parametrize("role", ["server", "client"])
async def test_our_side_passes(role: str, dialect: str, clock: trio.testing.MockClock) -> None:
    cases = cases_of(dialect, role, heavy=ALL_CASES or dialect == HEAVY)
    results = {result.case.id: result for result in await results_at(role, dialect, "tcp://127.0.0.1:0", cases)}
    with Rows() as row:
        for case in cases:
            with row(case.id):
                result = results[case.id]
                assert result.outcome is wanted(case, has_messages=False), "\n".join(failure_lines(result))


@pytest.mark.timeout(900 if ALL_CASES else 150)  # over Aeron not all time jumps
@pytest.mark.clause("RS00-HDR-02", "RS01-HDR-01", "RS02-FRM-02", "RS10-FRM-02", "DET-09")
@pytest.mark.parametrize(("role", "scheme", "dialect"), list(settings()))
async def test_our_side_passes_over_every_transport(
    role: str, scheme: str, dialect: str, tmp_path: Path, clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scheme == "aeron":
        require(missing_aeron())
        # Its rests end by the clock that jumps: short ones would hold that to the pace of real time.
        for name, seconds in (("MAX_REST_SECONDS", 2.0), ("GROWTH", 10.0), ("TICK", 1.0)):
            monkeypatch.setattr(duty_cycle, name, seconds)
    uris = {
        "unix": f"unix://{tmp_path / 's'}",
        "memory": f"memory://{role}-{dialect.replace('/', '-')}",
        "aeron": "aeron:udp?term-length=16m|endpoint=127.0.0.1:0",  # some frames are of 1 MiB
    }
    cases = cases_of(dialect, role, heavy=False)[len(scheme + dialect) % PART :: PART]
    results = await results_at(role, dialect, uris.get(scheme, f"{scheme}://127.0.0.1:0"), cases)
    has_messages = REGISTRY[scheme].upgrade is not None or scheme in ("memory", "aeron")
    broken = [result for result in results if result.outcome is not wanted(result.case, has_messages=has_messages)]
    assert [failure_lines(result) for result in broken] == []


def wanted(case: Case, *, has_messages: bool) -> CaseOutcome:
    """The outcome of a case over a transport with or without messages."""
    lacks = case.streams_only if has_messages else case.messages_only
    return CaseOutcome.NOT_APPLICABLE if lacks else CaseOutcome.PASS


@pytest.mark.clause("DET-02", "DET-03", "DET-04", "DET-05", "DET-06")
@pytest.mark.parametrize("dialect", sorted(TESTED_DIALECTS))
async def test_a_port_for_all_dialects_passes_the_cases_of_each(dialect: str, clock: trio.testing.MockClock) -> None:
    cases = [case for case in cases_of(dialect, "server", heavy=False) if not set(case.options) - {"dialects"}]
    abilities = frozenset((*NEEDS, "dialects"))
    cases = [case for number, case in enumerate(cases) if "dialects" in case.options or number % PART == 0]
    results = await results_with(abilities, cases, "server", dialect, "tcp://127.0.0.1:0")
    passing = (CaseOutcome.PASS, CaseOutcome.NOT_APPLICABLE)
    assert [failure_lines(result) for result in results if result.outcome not in passing] == []


FRAGMENT_SIZE = 64
"""The smallest fragments that there are."""


@pytest.mark.clause("RS10-FRAG-01", "RS10-FRAG-02", "RS10-FRAG-03", "RS10-FRAG-06", "RS02-FRAG-01", "RS02-FRAG-02")
@pytest.mark.clause("RS01-FRAG-01", "RS01-FRAG-03", "RS00-FRAG-01")
@pytest.mark.parametrize("dialect", sorted(set(TESTED_DIALECTS) - {"streamux/1"}))
async def test_our_server_passes_with_small_fragments_and_requests_of_its_own(
    dialect: str, clock: trio.testing.MockClock
) -> None:
    cases = [case for case in cases_of(dialect, "server", heavy=False) if not case.options]
    begins = ("ids-", "fragments-")
    cases = [case for number, case in enumerate(cases) if number % PART == 0 or case.id.startswith(begins)]
    abilities = frozenset(NEEDS)
    made = responder_of(dialect, abilities)

    async def ask(connection: Connection) -> None:
        with suppress(RSocketError):
            await connection.request_response(b"who are you?" * 10)

    async with trio.open_nursery() as nursery:

        @made.setup
        async def begin(setup: object, connection: Connection) -> None:
            nursery.start_soon(ask, connection)

        options = options_of(dialect, "server", abilities)
        serves = partial(serve, made, "tcp://127.0.0.1:0", dialects=[dialect], fragment_size=FRAGMENT_SIZE, **options)
        [bound] = await nursery.start(serves)
        results = await run(cases, Target(dial_to(bound), abilities, PATIENCE, AT_ONCE))
        nursery.cancel_scope.cancel()
    assert [failure_lines(result) for result in results if result.outcome is not CaseOutcome.PASS] == []


@pytest.mark.parametrize("abilities", [frozenset[str](), frozenset({"echo"})], ids=["none", "echo"])
@pytest.mark.parametrize("dialect", [name for name in TESTED_DIALECTS if not read_chapter(name).notation.negotiates])
async def test_a_server_passes_the_cases_that_need_no_more_than_it_has(
    dialect: str, abilities: frozenset[str], clock: trio.testing.MockClock
) -> None:
    responder = Responder()
    if abilities:
        responder.request_response(lambda request: request)
    async with running_server(responder, dialects=[dialect]) as uri:
        results = await run(some(chosen(dialect, role="server"), 20), Target(dial_to(uri), abilities, 60, 64))

    broken = [result for result in results if result.outcome in (CaseOutcome.FAIL, CaseOutcome.DEVIATION)]
    assert [failure_lines(result) for result in broken] == []
