"""The command that tests other people's servers: what it prints and writes, and how it takes what goes wrong."""

from __future__ import annotations

import json
import re
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import trio
import trustme

from rsocket_trio import Payload, Responder, serve
from rsocket_trio.cli import conformance
from rsocket_trio.cli.main import main
from rsocket_trio.conformance import catalogue
from rsocket_trio.conformance.catalogue import chosen
from tests.blocks import ROOT, blocks, is_shown, opening, page
from tests.cli.commands import PATIENCE, Result
from tests.conformance.peers import responder as good_responder
from tests.conformance.peers import streamux_responder
from tests.each_row import ALL_CASES, each_row

ALL = chosen("rsocket/1.0", role="server")
SPARE = "served-a-request-with-spare-flags"
"""A case of level MUST that a server fails whose echo is wrong."""
FIELDS = "served-a-second-setup-of-another-version"
"""A case that needs nothing of the server."""
SPARE_TOLD = f"""\
fail: {SPARE}: a request with spare flags
  RS10-UNX-08 (MUST): unnamed flag bits are skipped
    Flag bits that have no name in the type of a frame are ignored when it is received.
    RSocket Protocol 1.0, Handling the Unexpected: "Flag bits not specified ..."
  at the step: <= 1 "x"
  00 00 00 01 28 60 78 21 came, expected 00 00 00 01 28 60 78
"""
Command = Callable[..., Result]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command in this process."""

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["rsocket-trio", "conformance", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, said.out, said.err)

    return run


@contextmanager
def in_a_thread(work: Callable[..., Any]) -> Iterator[str]:
    """Run a server in a thread of its own, as the command has the main one; where it listens.

    ``work`` takes ``task_status`` and reports its URI.
    """
    token: list[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = []
    uris: list[str] = []
    ready = threading.Event()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            uris.append(await nursery.start(work))
            token.append((trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            ready.set()

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield uris[0]
    finally:
        with suppress(trio.RunFinishedError):
            trio.from_thread.run_sync(token[0][1].cancel, trio_token=token[0][0])
        thread.join(PATIENCE)


def serving(responder: Responder, uri: str = "tcp://127.0.0.1:0", **options: Any) -> Callable[..., Any]:
    async def work(*, task_status: trio.TaskStatus[str]) -> None:
        async with trio.open_nursery() as nursery:
            [bound] = await nursery.start(partial(serve, responder, uri, grace=0, **options))
            task_status.started(bound)

    return work


def wrong_responder() -> Responder:
    """One whose echo is not what came, and that has nothing else."""
    responder = Responder()

    @responder.request_response
    def shout(request: Payload) -> bytes:
        return request.data + b"!"

    return responder


def accepting(handle: Callable[[trio.SocketStream], Any]) -> Callable[..., Any]:
    """A server of bytes; it ends with its first connection that says so by ``False``."""

    async def work(*, task_status: trio.TaskStatus[str]) -> None:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}")
        async with trio.open_nursery() as nursery:

            async def one(stream: trio.SocketStream) -> None:
                async with stream:
                    if await handle(stream) is False:
                        nursery.cancel_scope.cancel()

            nursery.start_soon(partial(trio.serve_listeners, one, [listener]))
        await listener.aclose()

    return work


@pytest.fixture
def good() -> Iterator[str]:
    """The URI of a server that passes every case."""
    with in_a_thread(serving(good_responder(), dialects=["rsocket/1.0"])) as uri:
        yield uri


@pytest.fixture
def wrong() -> Iterator[str]:
    """The URI of one whose echo is wrong."""
    with in_a_thread(serving(wrong_responder())) as uri:
        yield uri


@pytest.fixture(scope="module")
def nobody() -> str:
    """The URI of a port where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{held.getsockname()[1]}"


# Results


def test_a_good_server_gives_the_table_and_0(command: Command, good: str) -> None:
    done = command(good, "--patience", 60)

    assert (done.code, done.stderr) == (0, "")
    head, *rows, last, cost = done.stdout.splitlines()
    assert head.split() == ["pass", "allowed", "deviation", "fail", "not", "applicable"]
    left_out = sum(bool(case.options) for case in ALL)
    assert last.split() == ["all", str(len(ALL) - left_out), "0", "0", str(left_out)]
    assert re.fullmatch(rf"{len(ALL)} cases in \d+\.\d s", cost)
    assert {row.split()[0] for row in rows} == {case.clauses[0].rpartition("-")[0] for case in ALL}


def test_a_wrong_server_gives_the_clause_and_the_bytes_and_1(command: Command, wrong: str) -> None:
    done = command(wrong, "--clause", SPARE, "--clause", FIELDS)

    assert (done.code, done.stderr) == (1, "rsocket-trio: 1 of 2 cases failed\n")
    assert done.stdout.startswith(SPARE_TOLD)
    assert (
        '\n  sent     REQUEST_RESPONSE stream 1: data "x", other flags 0x7f\n'
        '  received PAYLOAD stream 1: next, complete, data "x!"\n'
    ) in done.stdout
    assert done.stdout.splitlines()[-2].split() == ["all", "1", "0", "1", "0"]


def test_an_error_that_the_peer_explains_stands_on_top(command: Command) -> None:
    responder = Responder()
    responder.request_response("here")(lambda request: request.data)
    with in_a_thread(serving(responder)) as uri:
        lost = command(uri, "--clause", SPARE)

    assert lost.code == 1
    assert "\n  the peer said: ERROR stream 1: REJECTED (0x202)" in lost.stdout


def test_a_server_is_tested_over_tls(command: Command, tmp_path: Path) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with in_a_thread(serving(good_responder(), "wss://127.0.0.1:0", ssl_context=server)) as uri:
        trusted = command(uri, "--clause", FIELDS, "--trust-cert", tmp_path / "ca.pem", "-H", "X-One: 1")
        untrusted = command(uri, "--clause", FIELDS)

    assert (trusted.code, trusted.stderr) == (0, "")
    assert (untrusted.code, untrusted.stdout) == (3, "")
    assert "certificate verify failed" in untrusted.stderr


# Choosing


def test_list_names_the_cases(command: Command) -> None:
    done = command("--list")
    lines = done.stdout.splitlines()

    assert (done.code, done.stderr, len(lines)) == (0, "", len(chosen("rsocket/1.0", role="server", heavy=True)))
    assert f"{SPARE}  MUST  a request with spare flags" in lines


def test_explain_shows_the_steps_and_the_clauses(command: Command) -> None:
    done = command("--explain", SPARE)

    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == (
        f"{SPARE}: a request with spare flags\n"
        "rsocket/1.0, server, MUST\n"
        "RS10-UNX-08 (MUST): unnamed flag bits are skipped\n"
        "  Flag bits that have no name in the type of a frame are ignored when it is received.\n"
        '  RSocket Protocol 1.0, Handling the Unexpected: "Flag bits not specified ..."\n'
        "needs: echo\n"
        "  > setup\n"
        "  > hex 00000001 107f 78\n"
        '  <= 1 "x"\n'
        "  alive\n"
    )


# Reports


def test_json_tells_every_case(command: Command, wrong: str, tmp_path: Path) -> None:
    done = command(wrong, "--clause", SPARE, "--clause", FIELDS, "--report", tmp_path / "x.json")
    report = json.loads((tmp_path / "x.json").read_text())

    assert done.code == 1
    assert (report["target"], report["dialect"], report["role"]) == (wrong, "rsocket/1.0", "server")
    assert report["counts"] == {"pass": 1, "allowed deviation": 0, "fail": 1, "not applicable": 0}
    found = {case["id"]: case for case in report["cases"]}
    assert found[FIELDS]["outcome"] == "pass"
    assert found[SPARE]["clauses"] == ["RS10-UNX-08"]
    [source] = found[SPARE]["sources"]
    assert (source["document"], source["heading"]) == ("RSocket Protocol 1.0", "Handling the Unexpected")
    assert (source["words"], source["gist"]) == ("Flag bits not specified", "unnamed flag bits are skipped")
    assert found[SPARE]["frames"][-2:] == [
        '< PAYLOAD stream 1: next, complete, data "x!"',
        "    00 00 00 01 28 60 78 21",
    ]


def test_the_bytes_are_shown_on_demand(command: Command, wrong: str) -> None:
    done = command(wrong, "--clause", SPARE, "--hex")

    assert (
        '\n  received PAYLOAD stream 1: next, complete, data "x!"\n             00 00 00 01 28 60 78 21\n'
    ) in done.stdout


def test_failures_of_the_baseline_do_not_count(command: Command, good: str, wrong: str, tmp_path: Path) -> None:
    command(wrong, "--clause", SPARE, "--report", tmp_path / "old.json")
    command(good, "--clause", SPARE, "--report", tmp_path / "clean.json")

    options = "--clause", SPARE, "--baseline"
    known = command(wrong, *options, tmp_path / "old.json", "--report", tmp_path / "known.xml")
    new = command(wrong, *options, tmp_path / "clean.json")

    assert (known.code, known.stderr) == (0, "")
    first, *rest = known.stdout.splitlines()
    assert first == f"fail, as in the baseline: {SPARE}: a request with spare flags"
    assert "fail: " not in known.stdout
    assert all(line.split()[0] in {"pass", "RS10-UNX", "all", "1"} for line in rest)
    suite = ET.parse(tmp_path / "known.xml").getroot()
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
    assert suite.findall("testcase/failure") == []
    assert new.code == 1
    assert new.stdout.startswith(SPARE_TOLD)


# Bad input


@each_row(
    ("arguments", "said"),
    [
        ([], "0 words, the URI of one server is expected"),
        (["--explain", "nothing"], "no case or clause of rsocket/1.0 for a server fits 'nothing': --list names them"),
        (["tcp://h:1", "--report", "x.txt"], "x.txt: the ending says what to write: .json, .xml"),
        (["tcp://h:1", "--baseline", "old.json"], "old.json: the report of a run of reactivesocket/0.2, not of"),
    ],
)
def test_wrong_arguments_are_one_line_and_2(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "nonsense.json").write_bytes(b"\xff{")
    (tmp_path / "other.json").write_text('{"cases": 7}')
    (tmp_path / "old.json").write_text('{"dialect": "reactivesocket/0.2", "role": "server", "cases": []}')
    done = command(*arguments)

    assert (done.code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr


def test_a_report_that_does_not_fit_on_the_disk_is_said(command: Command, good: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").symlink_to("/dev/full")
    done = command(good, "--clause", FIELDS, "--report", tmp_path / "x.json", "--report", tmp_path / "y.xml")

    assert (done.code, done.stderr) == (1, f"rsocket-trio: {tmp_path / 'x.json'}: No space left on device\n")
    assert done.stdout.splitlines()[-2].split()[:2] == ["all", "1"]
    assert ET.parse(tmp_path / "y.xml").getroot().get("tests") == "1"


def test_a_command_of_any_bytes_fits_the_reports(command: Command, tmp_path: Path) -> None:
    paths = [tmp_path / f"x{ending}" for ending in (".json", ".xml")]
    reports = [word for path in paths for word in ("--report", path)]
    client = (sys.executable, "-c", "from tests.conformance.peers import main; main()", "\x01<\udcff")
    done = command(
        *("--role", "client", "--listen", "tcp://127.0.0.1:0", "--clause", "connected-setup", *reports, "--", *client)
    )

    assert done.code == 0
    assert ET.parse(paths[1]).getroot().get("name", "").endswith(r"\x01<\udcff")
    assert json.loads(paths[0].read_text())["target"].endswith(r"\x01<\udcff")


def test_a_server_that_is_not_there_is_3(command: Command, nobody: str) -> None:
    done = command(nobody)

    assert (done.code, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith(f"ConnectionLost: {nobody}: ")


@pytest.mark.parametrize(
    ("served", "asked", "answered"),
    [
        ("tls", "tcp", "TLS answered: try tls://"),
        ("tls", "ws", "TLS answered: try tls://"),
        ("tcp", "tls", "RSocket without TLS answered: try tcp://"),
        ("tcp", "ws", "RSocket without TLS answered: try tcp://"),
        ("ws", "tcp", "'HTTP/1.1 400 Bad Request': try ws://"),
        ("ws", "wss", "'HTTP/1.1 400 Bad Request': try ws://"),
        ("h2", "tcp", "HTTP/2 without TLS answered: try h2://"),
    ],
)
def test_the_transport_of_a_server_is_named(command: Command, served: str, asked: str, answered: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    tls = {"ssl_context": context} if served in {"tls", "wss"} else {}
    with in_a_thread(serving(good_responder(), f"{served}://127.0.0.1:0", **tls)) as uri:
        wrong = uri.replace(served, asked)
        done = command(wrong, "--patience", 60)

    assert (done.code, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert answered in done.stderr


async def want_a_whole_head(stream: trio.SocketStream) -> None:
    received = b""
    async for chunk in stream:
        received += chunk
        if received.endswith(b"\r\n\r\n"):
            await stream.send_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


def test_a_path_that_is_not_there_is_no_wrong_transport(command: Command) -> None:
    with in_a_thread(accepting(want_a_whole_head)) as uri:
        done = command(uri.replace("tcp", "ws"))

    assert done.code == 3
    assert "the server answered HTTP 404 to the WebSocket handshake" in done.stderr


@pytest.mark.parametrize(
    ("asked", "other"),
    [
        ("rsocket/1.0", "reactivesocket/0.0"),
        ("streamux/1", "rsocket/1.0"),
    ],
)
def test_a_server_that_speaks_another_dialect_is_named(command: Command, asked: str, other: str) -> None:
    with in_a_thread(serving(good_responder(), dialects=[other])) as uri:
        done = command(uri, "--patience", 2, "--dialect", asked)

    assert (done.code, done.stdout) == (3, "")
    assert done.stderr == f"rsocket-trio: {uri}: the server speaks {other}, not {asked}\n"


async def greet(stream: trio.SocketStream) -> None:
    await stream.send_all(b"220 mail.example.org\r\n")
    async for _ in stream:
        pass


async def say_nothing(stream: trio.SocketStream) -> None:
    async for _ in stream:
        pass


@pytest.mark.parametrize(
    ("handle", "said"),
    [(greet, "it said 32 32 30 20 6d 61 69 6c 2e"), (say_nothing, "and said nothing")],
    ids=["nonsense", "silence"],
)
def test_a_server_of_something_else_is_told_in_time(command: Command, handle: Any, said: str) -> None:
    with in_a_thread(accepting(handle)) as uri:
        done = command(uri, "--patience", 0.3)

    assert (done.code, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert f"{uri}: the server took no SETUP of rsocket/1.0" in done.stderr
    assert said in done.stderr


def test_a_handshake_that_is_never_answered_ends(command: Command) -> None:
    with in_a_thread(accepting(say_nothing)) as uri:
        done = command(uri.replace("tcp", "ws"), "--patience", 0.3)

    assert (done.code, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "the connection was not there after 0.3 s" in done.stderr


def keepalive_answers(count: int, *, then: Callable[[trio.SocketStream], Any]) -> Callable[[trio.SocketStream], Any]:
    """Answer the check of so many connections as a server should, and do something else on the later ones."""
    seen = iter(range(count))

    async def handle(stream: trio.SocketStream) -> Any:
        if next(seen, None) is None:
            return await then(stream)
        received = b""
        async for chunk in stream:
            received += chunk
            while len(received) >= 3 and len(received) >= (end := 3 + int.from_bytes(received[:3], "big")):
                frame, received = received[3:end], received[end:]
                if frame[4:6] == b"\x0c\x80":
                    answer = frame[:4] + b"\x0c\0" + frame[6:]
                    await stream.send_all(len(answer).to_bytes(3, "big") + answer)
        return None

    return handle


async def die(stream: trio.SocketStream) -> bool:
    return False


def test_a_server_that_dies_amid_the_run_fails_its_cases(command: Command) -> None:
    with in_a_thread(accepting(keepalive_answers(1, then=die))) as uri:
        done = command(uri, "--clause", "RS10-UNX-1*", "--at-once", 1, "--patience", 1, "--with", "resume")

    total = len(chosen("rsocket/1.0", role="server", patterns=("RS10-UNX-1*",)))
    assert done.code == 1
    told = re.fullmatch(
        rf"rsocket-trio: {total} of {total} cases failed; for (\d+) of them the server can't be reached any more\n",
        done.stderr,
    )
    assert told is not None
    assert 0 < int(told[1]) < total  # a connection or two may still be accepted as it dies


def test_a_server_that_hangs_amid_the_run_fails_its_cases(command: Command) -> None:
    with in_a_thread(accepting(keepalive_answers(1, then=say_nothing))) as uri:
        done = command(uri, "--clause", FIELDS, "--patience", 0.3)

    assert (done.code, done.stderr) == (1, "rsocket-trio: 1 of 1 cases failed\n")
    assert "nothing came in 0.3 s" in done.stdout


# The page


def test_the_commands_of_the_page_work(
    command: Command, good: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.conformance.peers import main; main()"
    )
    ran = 0
    with in_a_thread(serving(streamux_responder(), dialects=["streamux/1"])) as streamux:
        text = page("docs/howto/conformance.md")
        for block in blocks(text):
            if block.language != "console" or block.text == opening(text).session:  # tests/test_docs.py runs that one
                continue
            typed, _, shown = block.text.partition("\n")
            words = typed.removeprefix("$ rsocket-trio conformance ").split()
            fails = shown.endswith(" failed\n")
            here = {"tcp://127.0.0.1:7878": wrong if fails else good, "tcp://127.0.0.1:7879": streamux}
            if (ran or not ALL_CASES) and not {"--clause", "--list", "--explain"} & set(words):
                # All cases run for the first of these commands, which in short another test has run.
                words += ["--clause", "served-*" if "streamux" in words else FIELDS]
            done = command(*[{**here, "python": sys.executable}.get(word, word) for word in words])
            assert done.code == int(fails), typed
            if shown:
                assert is_shown(done.stdout + done.stderr, shown), typed
            ran += 1
    assert ran >= 5


def test_the_page_names_what_a_server_needs_and_every_option() -> None:
    text = page("docs/howto/conformance.md")

    assert all(f"| `{name}` |" in text for name in (*catalogue.NEEDS, *catalogue.OPTIONS, *catalogue.TERMS.asks))
    named = {option for parameter in conformance.command.params for option in parameter.opts if option[:2] == "--"}
    shared = {"--trust-cert", "--allow-untrusted", "--cert", "--key", "--header"}
    assert {option for option in named - shared if option not in text} == set()
