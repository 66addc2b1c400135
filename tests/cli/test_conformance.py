"""The command that tests other people's servers: what it prints and writes, and how it takes what goes wrong."""

from __future__ import annotations

import json
import re
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import trustme

from rsocket_trio import Payload, Responder
from rsocket_trio.cli import conformance
from rsocket_trio.cli.main import main
from rsocket_trio.conformance import catalogue
from rsocket_trio.conformance.catalogue import chosen
from tests.blocks import ROOT, blocks, is_shown, opening, page
from tests.cli.commands import Result
from tests.conformance.peers import responder as good_responder
from tests.conformance.peers import streamux_responder
from tests.each_row import ALL_CASES, each_row
from tests.threads import serving

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


def wrong_responder() -> Responder:
    """One whose echo is not what came, and that has nothing else."""
    responder = Responder()

    @responder.request_response
    def shout(request: Payload) -> bytes:
        return request.data + b"!"

    return responder


@pytest.fixture
def good() -> Iterator[str]:
    """The URI of a server that passes every case."""
    with serving(good_responder(), dialects=["rsocket/1.0"]) as uri:
        yield uri


@pytest.fixture
def wrong() -> Iterator[str]:
    """The URI of one whose echo is wrong."""
    with serving(wrong_responder()) as uri:
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
    with serving(responder) as uri:
        lost = command(uri, "--clause", SPARE)

    assert lost.code == 1
    assert "\n  the peer said: ERROR stream 1: REJECTED (0x202)" in lost.stdout


def test_a_server_is_tested_over_tls(command: Command, tmp_path: Path) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serving(good_responder(), "wss://127.0.0.1:0", ssl_context=server) as uri:
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
    ("asked", "other"),
    [
        ("rsocket/1.0", "reactivesocket/0.0"),
        ("streamux/1", "rsocket/1.0"),
    ],
)
def test_a_server_that_speaks_another_dialect_is_named(command: Command, asked: str, other: str) -> None:
    with serving(good_responder(), dialects=[other]) as uri:
        done = command(uri, "--patience", 2, "--dialect", asked)

    assert (done.code, done.stdout) == (3, "")
    assert done.stderr == f"rsocket-trio: {uri}: the server speaks {other}, not {asked}\n"


def test_a_handshake_that_is_never_answered_ends(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = command(f"ws://127.0.0.1:{silent.getsockname()[1]}", "--patience", 0.3)

    assert (done.code, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "the connection was not there after 0.3 s" in done.stderr


# The page


def test_the_commands_of_the_page_work(
    command: Command, good: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.conformance.peers import main; main()"
    )
    ran = 0
    with serving(streamux_responder(), dialects=["streamux/1"]) as streamux:
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

    assert all(f"| `{name}` |" in text for name in (*catalogue.NEEDS, *catalogue.OPTIONS, *catalogue.TERMS["asks"]))
    named = {option for parameter in conformance.command.params for option in parameter.opts if option[:2] == "--"}
    shared = {"--trust-cert", "--allow-untrusted", "--cert", "--key", "--header"}
    assert {option for option in named - shared if option not in text} == set()
