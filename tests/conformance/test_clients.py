"""The tester as a server: it starts clients by a command, and ends what it has started."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import evolve

from rsocket_trio.conformance.catalogue import NEEDS, Case, chosen
from rsocket_trio.conformance.play import CaseOutcome
from rsocket_trio.conformance.run import Listening, command, lack, run_clients
from tests.blocks import ROOT
from tests.cli.commands import Result, run, started
from tests.conformance.peers import client, starting
from tests.serving import until

CLIENT = ["--", sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); "]
OURS = [*CLIENT[:-1], CLIENT[-1] + "from tests.conformance.peers import main; main()"]
ONE_OF_EACH = (
    "connected-connection-error",
    "asking-an-unknown-type-with-i",
    "streaming-cancel-of-the-responder-of-a-stream",
    "conversing-request-n-for-0-items-on-the-client-s-channel",
)
TCP = "tcp://127.0.0.1:0"


def cases(*ids: str, dialect: str = "rsocket/1.0") -> list[Case]:
    return chosen(dialect, role="client", patterns=ids)


async def held(*arguments: str, listen: str = TCP) -> Result:
    return await run("conformance", "--role", "client", "--listen", listen, *arguments)


async def test_a_command_is_started_for_each_case(tmp_path: Path) -> None:
    ids = [word for name in ONE_OF_EACH for word in ("--clause", name)]
    result = await held(*ids, "--report", f"{tmp_path / 'r.json'}", *OURS)

    assert (result.code, result.stderr) == (0, "")
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["role"], report["counts"]["pass"]) == ("client", 4)


async def test_the_cases_of_an_old_dialect_are_played_too() -> None:
    result = await held("--dialect", "0.1", "--clause", "RS01-UNX-08", *OURS)

    assert (result.code, result.stderr) == (0, "")


async def test_a_client_that_falls_silent_fails_its_case_and_the_bytes_are_shown(tmp_path: Path) -> None:
    silent = tmp_path / "silent.py"
    silent.write_text(
        "import os, socket, sys\n"
        "host, port = os.environ['RSOCKET_URI'].removeprefix('tcp://').split(':')\n"
        "peer = socket.create_connection((host, int(port)))\n"
        "peer.sendall(bytes.fromhex('000014 00000000 0400 0001 0000 00004e20 00015f90 0000'.replace(' ', ''))[:-2])\n"
        "peer.sendall(b'\\0\\0')\n"
        "sys.stdin.read() or peer.recv(99999) and peer.recv(1)\n"
    )
    result = await held("--patience", "0.5", "--clause", "connected-setup", "--", sys.executable, str(silent))

    assert result.code == 1
    assert "nothing came in 0.5 s" in result.stdout


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("sys.exit('no such module')", "the client ended before it connected: exit code 1, no such module"),
        ("", "the client ended before it connected: exit code 0"),
        ("import signal; signal.pause()", "no client connected to tcp://127.0.0.1:"),
    ],
)
async def test_a_client_that_does_not_come_is_told_in_one_line(program: str, told: str) -> None:
    result = await held("--wait", "1" if "pause" in program else "30", *CLIENT[:-1], CLIENT[-1] + program)

    assert (result.code, result.stdout) == (3, "")
    assert result.stderr.startswith(f"rsocket-trio: {told}")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("000007474554202f2048", "sent no SETUP of rsocket/1.0; it said 00 00 07 47 45 54 20 2f 20 48"),
        ("474554202f20485454502f312e310d0a", "speaks HTTP/1.1, not plain rsocket/1.0"),
        ("1603010200010001fc0303", "speaks TLS, not plain rsocket/1.0"),
        ("", "sent no SETUP of rsocket/1.0 and said nothing"),
    ],
)
async def test_a_client_that_speaks_no_rsocket_is_shown(said: str, told: str) -> None:
    program = (
        "import os, socket; from urllib.parse import urlsplit; uri = urlsplit(os.environ['RSOCKET_URI'])\n"
        "peer = socket.create_connection((uri.hostname, uri.port))\n"
        f"peer.sendall(bytes.fromhex({said!r})); peer.recv(1)"
    )
    result = await held("--patience", "1", *CLIENT[:-1], program)

    assert result.code == 3
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("listen", "told"),
    [("ws://127.0.0.1:0", "ws: the peer did no WebSocket handshake"), ("h2://127.0.0.1:0", "h2: HTTP/2: ")],
)
async def test_a_client_of_another_transport_is_told_at_once(listen: str, told: str) -> None:
    program = (
        "import os, socket, time; from urllib.parse import urlsplit; uri = urlsplit(os.environ['RSOCKET_URI'])\n"
        "peer = socket.create_connection((uri.hostname, uri.port))\n"
        "peer.sendall(bytes(40))\nwhile peer.recv(1000): pass\npeer.close(); time.sleep(1000)"
    )
    result = await held(*CLIENT[:-1], program, listen=listen)

    assert (result.code, result.stdout) == (3, "")
    assert result.stderr.startswith(f"rsocket-trio: the client does not speak {told}")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--listen", TCP, "--", "no-such-command"], 3, "no-such-command: No such file or directory"),
        ([], 2, "--role client needs --listen"),
        (["--listen", "tls://127.0.0.1:0", "--", "x"], 2, "clients are tested over tcp, ws and unix"),
        (["--listen", TCP], 2, "--role client needs --listen and a command"),
    ],
)
async def test_what_can_not_be_run_is_told(arguments: list[str], code: int, told: str) -> None:
    result = await run("conformance", "--role", "client", *arguments)

    assert result.code == code
    assert told in result.stderr


async def test_a_port_in_use_is_told() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        uri = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        result = await held(*OURS, listen=uri)
    assert (result.code, result.stdout) == (3, "")
    assert result.stderr == f"rsocket-trio: cannot listen on {uri}: address already in use\n"


async def test_a_process_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    start = command(["/bin/sh", "-c", f"sleep 600 & echo $! $$ >{pids}; wait"])
    with trio.fail_after(30):
        async with start(TCP, "rsocket/1.0", "nothing", ()):
            await until(lambda: len(written(pids)) == 2)
        await until(lambda: not any(map(is_running, written(pids))))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_signal_ends_the_client_with_the_tester(number: int, code: int, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = (
        f"import os, pathlib, signal; pathlib.Path({str(pid)!r}).write_text(str(os.getpid()) + chr(10)); signal.pause()"
    )
    with trio.fail_after(30):
        async with started("conformance", "--role", "client", "--listen", TCP, *CLIENT[:-1], program) as running:
            await until(lambda: len(written(pid)) == 1)
            running.process.send_signal(number)
            assert (await running.end())[0] == code
        await until(lambda: not any(map(is_running, written(pid))))


def written(path: Path) -> list[int]:
    """The process ids in a file whose line is whole."""
    text = path.read_text() if path.exists() else ""
    return [int(word) for word in text.split()] if text.endswith("\n") else []


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # An orphan that nobody waited for yet.
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


async def test_a_second_connection_of_a_client_is_closed(autojump_clock: object) -> None:
    ours = starting()

    @asynccontextmanager
    async def twice(
        uri: str, dialect: str, asks: str, options: Sequence[str]
    ) -> AsyncIterator[Callable[[], Awaitable[str]]]:
        async with ours(uri, dialect, asks, options) as ended, trio.open_nursery() as nursery:
            await trio.sleep(1)
            nursery.start_soon(client, uri, dialect, "channel", ())
            yield ended
            nursery.cancel_scope.cancel()

    listening = Listening("memory://twice", twice, frozenset(NEEDS))
    results = await run_clients(cases(*ONE_OF_EACH), listening)

    assert [result.outcome for result in results] == [CaseOutcome.PASS] * len(ONE_OF_EACH)


async def test_a_case_that_needs_what_a_client_lacks_is_left_out() -> None:
    found = cases("RS01-UNX-08", dialect="reactivesocket/0.1")
    results = await run_clients(found, Listening(TCP, starting(), frozenset()))

    assert [result.outcome for result in results] == [CaseOutcome.NOT_APPLICABLE]


def test_a_case_applies_to_a_peer_that_has_all_it_needs_and_nothing_that_it_must_lack() -> None:
    [one] = cases("connected-connection-error")
    one = evolve(one, needs=("echo", "resume"), lacks=("leases",))

    assert one.options == ("resume",)
    assert lack(one, frozenset({"echo", "resume"})) is None
    for abilities, why in [({"echo"}, "has no resume"), ({"echo", "resume", "leases"}, "has leases")]:
        result = lack(one, frozenset(abilities))
        assert result is not None
        assert (result.outcome, result.why) == (CaseOutcome.NOT_APPLICABLE, f"the peer {why}")


async def test_a_client_that_is_started_hears_of_its_options() -> None:
    async with command(["/bin/sh", "-c", "echo $RSOCKET_WITH; exit 3"])(
        TCP, "rsocket/1.0", "nothing", ("resume", "leases")
    ) as end_of:
        assert await end_of() == "exit code 3, resume,leases"
