"""``call``: every flag of rsc does here what it does there."""

from __future__ import annotations

import http.server
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from rsocket_trio.cli.options import spelled_out
from tests.cli.commands import PATIENCE, Result, run, serving, started
from tests.each_row import some
from tests.rows import Rows

ROUTING = ["message/x.rsocket.routing.v0", "\5facts"]
AUTHENTICATION = "message/x.rsocket.authentication.v0"
COMPOSITE = "message/x.rsocket.composite-metadata.v0"
SIMPLE = "\x80\x00\x04usersecret:x"
BEARER = "\x81token"


def entries(*more: list[str]) -> dict[str, Any]:
    return {"metadata_mime": COMPOSITE, "metadata": [ROUTING, *more]}


FACTS: list[tuple[str, dict[str, Any]]] = [
    ("", {"data_mime": "application/json", **entries()}),
    ("--request", entries()),
    ("--im REQUEST_RESPONSE", entries()),
    ("--im request-response", entries()),
    *((f"{name} hi", {"data": "hi"}) for name in ("-d", "--data", "-i", "--input")),
    ("-d @file.txt", {"data": "from a file\n"}),
    ("-d -", {"data": "from stdin\n"}),
    *((f"{name} file.txt", {"data": "from a file\n"}) for name in ("-l", "--load")),
    *((f"{name} m", entries(["application/json", "m"])) for name in ("-m", "--metadata")),
    ("-m 1 -m 2 --mmt text/css", entries(["text/css", "1"], ["text/css", "2"])),
    ("-m 1 --mmt text/css -m 2 --mmt text/csv", entries(["text/css", "1"], ["text/csv", "2"])),
    *((f"{name} text", {"data_mime": "text/plain"}) for name in ("--dmt", "--dataMimeType", "--dataFormat")),
    *(
        (f"{name} text/css -m 1", entries(["text/css", "1"]))
        for name in ("--mmt", "--metadataMimeType", "--metadataFormat")
    ),
    ("--mmt routing", {"metadata_mime": "message/x.rsocket.routing.v0", "metadata": "\5facts"}),
    *((f"{name} s", {"setup_data": "s"}) for name in ("--sd", "--setup", "--setupData")),
    *((f"{name} s", {"setup_metadata": [["application/json", "s"]]}) for name in ("--sm", "--setupMetadata")),
    ("--sm s --smmt text", {"setup_metadata": [["text/plain", "s"]]}),
    (f"--sm simple:user:secret:x --smmt {AUTHENTICATION}", {"setup_metadata": [[AUTHENTICATION, SIMPLE]]}),
    *((f"{name} user:secret:x", entries([AUTHENTICATION, SIMPLE])) for name in ("-u", "--as", "--authSimple")),
    *((f"{name} token", entries([AUTHENTICATION, BEARER])) for name in ("--ab", "--authBearer")),
    ("--keepalive 3 --lifetime 9", {"keepalive": 3, "lifetime": 9}),
    *((f"{name} X-One:1", {"x_one": "1"}) for name in ("-H", "--header", "--wsHeader", "--wsh", "--httpHeader")),
    ("-H X-One=1", {"x_one": "1"}),
    ("--dialect reactivesocket/0.2", {"dialect": "reactivesocket/0.2"}),
    ("--dialect 0.2", {"dialect": "reactivesocket/0.2"}),
    ("--lease", {"lease": True}),
    ("--log --retry --timeout 10", {}),
]


async def test_a_flag_reaches_the_server(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("from a file\n")
    async with serving("ws://127.0.0.1:0/") as served:
        with Rows() as row:
            for flags, expected in some(FACTS, 20):
                with row(flags):
                    words = [*flags.split(), served.uri, "-r", "facts"]
                    check_facts(await run("call", *words, stdin=b"from stdin\n", cwd=tmp_path), expected)


def check_facts(result: Result, expected: dict[str, Any]) -> None:
    """The server has seen what is expected, among other things."""
    assert (result.code, result.stderr) == (0, "")
    facts = json.loads(result.stdout)
    assert {key: facts[key] for key in expected} == expected


SHOWN: list[tuple[str, str]] = [
    ("--stream -r count -d 3", "0\n1\n2\n"),
    ("--im REQUEST_STREAM -r count -d 3", "0\n1\n2\n"),
    ("--stream -r count --take 2", "0\n1\n"),
    ("--stream -r count --take 2 --limitRate 1", "0\n1\n"),
    ("--stream -r count -d 2 --requestn 1", "0\n1\n"),
    ("--stream -r count -d 2 --delayElements 1", "0\n1\n"),
    ("--channel -r echo -d a -d b", "opened with a\nb\n"),
    ("--channel -r echo -d a -d b --empty-opening", "a\nb\n"),
    ("--channel -r echo -d -", "opened with one\ntwo\n"),
    ("--im REQUEST_CHANNEL -r echo -d - --take 1", "opened with one\n"),
    ("--channel -r echo", ""),
    ("--stream -q -r count", ""),
    ("--quiet -r echo -d x", ""),
]


async def test_a_flag_decides_what_is_shown() -> None:
    async with serving() as served:
        with Rows() as row:
            for flags, shown in SHOWN:
                with row(flags):
                    result = await run("call", served.uri, *flags.split(), stdin=b"one\ntwo\n")
                    assert (result.code, result.stdout, result.stderr) == (0, shown, "")


@pytest.mark.parametrize(
    ("flags", "arrived"),
    [
        ("--fnf -r log -d x", b"x"),
        ("--im FIRE_AND_FORGET -d x", b"x"),
        ("--metadataPush -m x", b"x"),
        ("--im METADATA_PUSH -m x", b"x"),
        ("--metadataPush -r x -m y", b"\xfe\x00\x00\x02\x01x\x85\x00\x00\x01y"),
    ],
)
async def test_what_is_never_answered_arrives(flags: str, arrived: bytes) -> None:
    async with serving() as served:
        result = await run("call", served.uri, *flags.split())

        assert (result.code, result.stdout, result.stderr) == (0, "", "")
        with trio.fail_after(PATIENCE):
            await served.arrived.wait()
        assert served.got == [arrived]


FROM_FILE: list[tuple[str, str, dict[str, Any]]] = [
    ("", "", {"data": ""}),
    ("data: hi", "", {"data": "hi"}),
    ("data: hi", "-d there", {"data": "there"}),
    ("data: [hi]", "-l file.txt", {"data": "from a file\n"}),
    ("input: 1.10", "", {"data": "1.10"}),
    ("data: yes", "", {"data": "yes"}),
    ("data: '@file.txt'", "", {"data": "from a file\n"}),
    ("data: --lease", "", {"data": "--lease", "lease": False}),
    ("{metadata: [a, b], mmt: [text/css, text/csv]}", "", entries(["text/css", "a"], ["text/csv", "b"])),
    ("metadata: [a, b]", "-m c --mmt text/css", entries(["text/css", "c"])),
    ("authSimple: user:secret:x", "", entries([AUTHENTICATION, SIMPLE])),
    ("authSimple: user:other", "--authBearer token", entries([AUTHENTICATION, BEARER])),
    ("lease: true", "", {"lease": True}),
    ("lease: false", "", {"lease": False}),
    ("dialect: 0.2", "", {"dialect": "reactivesocket/0.2"}),
    ("im: REQUEST_STREAM", "--request", {}),
    ("stream: true", "--im REQUEST_RESPONSE", {}),
    ("stream: false", "", {}),
    ("retry:\nlog: warning\ntimeout: 10", "", {}),
    ("retry: false\nlog: true", "--log error", {}),
    ("keepalive: 3\nlifetime: 9.5", "--lifetime 9", {"keepalive": 3, "lifetime": 9}),
    ("wsh: ['X-One: 1', 'X-Two: 2']", "", {"x_one": "1"}),
]


async def test_options_come_from_a_file_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("from a file\n")
    async with serving("ws://127.0.0.1:0/") as served:
        with Rows() as row:
            for written, flags, expected in some(FROM_FILE, 11):
                with row(f"{written} {flags}"):
                    (tmp_path / "opts.yml").write_text(written)
                    words = [served.uri, "-r", "facts", "--optsFile", "opts.yml", *flags.split()]
                    check_facts(await run("call", *words, cwd=tmp_path), expected)


@pytest.mark.parametrize(
    ("switch", "shown"),
    [("empty-opening: true", "a\n"), ("first-opens: false", "a\n"), ("empty-opening: no", "opened")],
)
async def test_a_switch_of_a_file_goes_both_ways(switch: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "opts.yml").write_text(f"channel: true\nroute: echo\ndata: a\n{switch}\n")
    async with serving() as served:
        result = await run("call", served.uri, "--optsFile=opts.yml", cwd=tmp_path)

    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.startswith(shown)


WRONG_FILES: list[tuple[bytes, str]] = [
    (b"route: x\nrout: x", "opts.yml, line 2: 'rout' is no option that a file may set"),
    (b"d: x", "line 1: 'd' is no option that a file may set"),
    (b"help: true", "'help' is no option that a file may set"),
    (b"completion: bash", "'completion' is no option that a file may set"),
    (b"optsFile: other.yml", "'optsFile' is no option that a file may set"),
    (b"[a]: x", "a key that is no text is no option"),
    (b"data: x\ndata: y", "line 2: data stands there twice"),
    (b"route: [x, y]", "route takes one value"),
    (b"data: [x, [y]]", "data takes a list of plain values"),
    (b"data: [x, null]", "data takes a list of plain values"),
    (b"data: {x: y}", "data takes a list of plain values"),
    (b"route:", "route needs a value"),
    (b"lease: please", "lease is a flag: true or false"),
    (b"lease: [true]", "lease takes one value"),
    (b"take: many", "invalid value for '--take'"),
    (b"resume: often", "invalid value for '--resume'"),
    (b"- route", "opts.yml: not a mapping of options to values"),
    (b"route", "opts.yml: not a mapping of options to values"),
    (b"route: x\ndata: [x", "opts.yml, line 2: no YAML: "),
    (b"a: 1\n---\nb: 2", "opts.yml, line 2: no YAML: "),
    (b"\xff", "opts.yml: no YAML: "),
    (b"data: \x00", "opts.yml: no YAML: "),
    (b"[" * 5000, "opts.yml: no YAML: "),
    (b"data: &a [*a]", "data takes a list of plain values"),
]


async def test_a_file_that_makes_no_sense_is_told_in_one_line(tmp_path: Path) -> None:
    with Rows() as row:
        for written, said in some(WRONG_FILES, 8):
            with row(written[:30]):
                (tmp_path / "opts.yml").write_bytes(written)
                result = await run("call", "tcp://127.0.0.1:1", "--optsFile", "opts.yml", cwd=tmp_path)
                check_one_line(result, 2, said)


def check_one_line(result: Result, code: int, said: str) -> None:
    """The command said nothing but one line on stderr, with this in it."""
    assert said in result.stderr
    assert (result.code, result.stdout, result.stderr.count("\n")) == (code, "", 1)


@pytest.mark.parametrize(("path", "why"), [("none.yml", "No such file or directory"), (".", "Is a directory")])
async def test_a_file_that_cannot_be_read_is_told_in_one_line(path: str, why: str, tmp_path: Path) -> None:
    result = await run("call", "tcp://127.0.0.1:1", "--optsFile", path, cwd=tmp_path)

    check_one_line(result, 2, f"--optsFile: cannot read {path}: {why}")


async def test_help_does_not_need_the_file() -> None:
    result = await run("call", "--optsFile", "none.yml", "--help")

    assert (result.code, result.stderr) == (0, "")


async def test_metadata_alone_is_sent_as_it_is() -> None:
    async with serving("ws://127.0.0.1:0/") as served:
        result = await run("call", served.uri, "-m", "plain", "--debug", "--hex")

    assert "metadata_mime application/json" in result.stderr
    assert "000005" + b"plain".hex() in result.stderr


async def test_debug_shows_a_line_for_each_frame() -> None:
    async with serving() as served:
        result = await run("call", served.uri, "-r", "echo", "-d", "a\nb", "--debug")

    setup, request, answer = result.stderr.splitlines()
    assert setup.startswith("-> SETUP, stream 0, major 1, minor 0, keepalive_interval 20, max_lifetime 90, ")
    assert request == "-> REQUEST_RESPONSE, stream 1, metadata of 9 bytes, 'a\\nb'"
    assert answer == "<- PAYLOAD, stream 1, metadata of 9 bytes, 'a\\nb', next, complete"


@pytest.mark.parametrize("flag", ["-w", "--wiretap"])
async def test_a_wiretap_shows_the_bytes_of_each_frame(flag: str) -> None:
    async with serving() as served:
        result = await run("call", served.uri, "-d", "hallo", flag)

    assert "-> 000000  00 00 00 01 10 00 68 61 6c 6c 6f                 ......hallo" in result.stderr.splitlines()
    assert "<- 000000  00 00 00 01 28 60 68 61 6c 6c 6f                 ....(`hallo" in result.stderr.splitlines()


async def test_a_stack_trace_comes_before_the_line() -> None:
    result = await run("call", "tcp://127.0.0.1:1", "--stacktrace")

    lines = result.stderr.splitlines()
    assert any("Traceback" in line for line in lines)
    assert lines[-1] == "ConnectionLost: tcp://127.0.0.1:1: connection refused"


async def test_retrying_waits_for_a_server_to_come(tmp_path: Path) -> None:
    uri = f"unix://{tmp_path}/socket"
    async with started("call", uri, "-r", "echo", "-d", "x", "--retry", "--log") as command:
        assert "trying again, 10 times at most" in await command.line("stderr")
        async with serving(uri):
            assert await command.line() == "x"
            assert (await command.end())[0] == 0


async def test_retrying_ends_with_the_reason() -> None:
    result = await run("call", "tcp://127.0.0.1:1", "--retry", "1")

    assert (result.code, result.stderr) == (3, "ConnectionLost: tcp://127.0.0.1:1: connection refused\n")


@pytest.fixture
def url() -> Iterator[str]:
    """Where a web server has one page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/page" else 404)
            self.end_headers()
            self.wfile.write(b"from the web")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/page"
        server.shutdown()
        thread.join()


async def test_data_is_loaded_from_a_url(url: str) -> None:
    async with serving() as served:
        loaded = await run("call", served.uri, "-r", "echo", "--load", url)
        absent = await run("call", served.uri, "-r", "echo", "--load", f"{url}/not")

    assert (loaded.code, loaded.stdout) == (0, "from the web\n")
    assert (absent.code, absent.stdout) == (1, "")
    assert absent.stderr == f"rsocket-trio: cannot read {url}/not: HTTP Error 404: Not Found\n"


WRONG = [
    (4, "RejectedSetup: resumption is not offered here", "--resume"),
    (4, "RejectedSetup: resumption is not offered here", "--resume 30"),
    (2, "'--resume': 0.0 is not in the range x>0", "--resume 0"),
    (2, "one of REQUEST_RESPONSE, REQUEST_STREAM", "--im REQUEST_NOTHING"),
    (2, "no such option", "--zipkinUrl x"),
    (2, "a push needs metadata", "--metadataPush"),
    (2, "data cannot go with it", "--metadataPush -m a -d b"),
    (1, "cannot read nowhere.txt: No such file or directory", "-d @nowhere.txt"),
    (1, "cannot read nowhere.txt: No such file or directory", "--load nowhere.txt"),
    (5, "Rejected: no request_stream handler for route 'x'", "--stream -r x"),
]


async def test_what_cannot_be_done_is_one_line() -> None:
    async with serving() as served:
        with Rows() as row:
            for code, said, flags in WRONG:
                with row(flags):
                    check_one_line(await run("call", *flags.split(), served.uri), code, said)


def test_an_optional_value_is_not_taken_from_the_next_word() -> None:
    for given, meant in [
        ("--retry tcp://h:1", "--retry=10 tcp://h:1"),
        ("tcp://h:1 --retry", "tcp://h:1 --retry=10"),
        ("--retry 3 tcp://h:1", "--retry 3 tcp://h:1"),
        ("--resume 2.5 tcp://h:1", "--resume 2.5 tcp://h:1"),
        ("--log debug --resume -d x", "--log debug --resume=60 -d x"),
        ("--log -- --retry", "--log=info -- --retry"),
    ]:
        assert spelled_out(given.split()) == meant.split()


async def test_ctrl_c_cancels_the_request() -> None:
    async with serving() as served, started("call", served.uri, "-r", "never", "--debug") as command:
        await served.arrived.wait()
        command.process.send_signal(signal.SIGINT)
        code, stderr = await command.end()

    assert code == 130
    assert stderr.splitlines()[-1] == "-> CANCEL, stream 1"
