"""The examples run, and the chat keeps what it promises: as a demo, and as processes with people at their ends."""

from __future__ import annotations

import re
import runpy
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from rsocket_trio import (
    Channel,
    Connection,
    Rejected,
    StreamuxOptions,
    open_connection,
)
from tests.programs import PATIENCE, Running, program, run_program
from tests.serving import running_server

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
CHAT = EXAMPLES / "chat.py"
TYPED = EXAMPLES / "chat_typed.py"
BOTH_CHATS = pytest.mark.parametrize("chat", [CHAT, TYPED], ids=lambda path: path.stem)
WAYS = [("/quit", CHAT), ("Ctrl-D", TYPED), ("Ctrl-C", CHAT), ("SIGTERM", TYPED)]
STOPS = [(signal.SIGINT, CHAT), (signal.SIGTERM, TYPED)]
MAILBOX = 16
"""Lines that the chat keeps for a member who does not read."""

# fmt: off
EXPECTED = {
    "client.py": ["greet: hello, Ada", "greet: whom shall I greet? (code 0x301)", "count: 2", "echo: twice", "ping:"],
    "backpressure.py": ["at most 9 ahead: True", "asked for 2: 1 2", "asked for 3: 3 4 5", "the server produced 6"],
    "lease.py": ["guest: 5 requests needed", "friend: 5 requests needed"],
    "tls.py": ["tls: you are ada@example.org", "wss: you are ada@example.org"],
    "call_back.py": ["the server asks: really apples?", "ordered apples, wrapped, before noon", "nothing ordered"],
    "reconnect.py": ["hello, Ada", "news: all", "the news have stopped", "connected: False", "hello, Ada again"],
    "replay.py": ["staged second: ", '"promoted":true,"rows":2', '"promoted":false,"rows":0', "1: pears", "2: plums"],
    "files.py": ["ping: ", "downloaded 64 MiB", "half way: 32 MiB", "notes: stored 12 bytes", "'../film' is no name"],
}
# fmt: on
EXPECTED["orders.py"] = [
    "ada bought 10 ACME for 120.00, order 1",
    "refused: 5000 are too many, 1000 is the limit",
    "refused: no such symbol: 'NONE'",
    "invalid: $.amount: expected int, got str",
    "the price is 12.0\nthe price is 12.5\nthe price is 13.0",
    "offered 11.0: refused\noffered 12.5: refused\noffered 13.5: accepted",
    "the audit took too long",
    "bob: not allowed",
    "carol bought 1 ACME for 13.00, order 2",
    "without credentials: not allowed",
    "1 orders.audit cancelled",
    "1 orders.negotiate completed",
    "2 orders.place completed",
    "4 orders.place failed",
]

TRANSCRIPT = [
    "ada   | * ada joined lobby, clock ",
    "bob   | * ada joined lobby, clock ",
    " is refused: the name 'ada' is taken",
    "ada   > hello, everybody",
    "ada   | ada: hello, everybody",
    "bob   | ada: hello, everybody",
    "carol | ada: hello, everybody",
    "bob   = delivered to carol",
    "carol | bob to you: psst, only you see this",
    "bob   = nobody here is called 'dave'",
    "ada   = ada in lobby, bob in lobby, carol in lobby",
    "bob   | * carol left for kitchen",
    "carol | * carol joined kitchen",
    "ada   = kitchen (1), lobby (2)",
    "ada   = carol's clock: ",
    "ada and bob have seen all 40",  # 400 in the typed one, whose members have the usual credit
    "carol | ada: line 1 ...",
    "carol | * you did not keep up and missed ",
    "carol | bob: welcome back",
    "bob   > /quit",
    "ada   | * bob left",
    "carol | * bob left",
    "carol | * ada left",
]


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        *EXPECTED,
        *("chat.py", "chat_typed.py", "server.py", "spark_pipeline.py"),
    }


@pytest.mark.parametrize("name", EXPECTED)
async def test_an_example_does_what_it_says_and_ends(name: str) -> None:
    done = await run_program(EXAMPLES / name)

    assert (done.code, done.stderr) == (0, "")
    assert_in_order(EXPECTED[name], done.stdout)
    if name == "files.py":
        assert done.stdout.count("server: film was not wanted to its end\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        *("get ../secret", "get /etc/passwd", "get sub", "get .hidden", "get absent", "get "),
        *("put ../stolen", "put /tmp/stolen", "put .stolen", "put ", "put a\0b", "dance film", ""),
        "put " + 300 * "x",
    ],
)
async def test_the_file_server_keeps_to_its_folder(line: str, tmp_path: Path) -> None:
    folder = tmp_path / "served"
    (folder / "sub").mkdir(parents=True)
    for name in ("film", ".hidden", "sub/inner", "../secret"):
        (folder / name).write_text("not for everybody")
    before = names_under(tmp_path)
    async with file_server(folder) as connection:
        assert (await asked(connection, line + "\n", b"content"))[:1] == b"-"

        assert names_under(tmp_path) == before
        assert await asked(connection, "get film\n") == b"+not for everybody"
        assert await asked(connection, "get sub/inner\n") == b"+not for everybody"


@asynccontextmanager
async def file_server(folder: Path) -> AsyncIterator[Connection]:
    """A connection to the server of the example, which serves this folder."""
    example = runpy.run_path(str(EXAMPLES / "files.py"))
    options = StreamuxOptions(qa=True, encode_error=example["as_answer"])
    async with running_server(example["file_server"](folder), streamux=options) as uri:
        with trio.fail_after(PATIENCE):
            async with open_connection(uri, dialect="streamux/1") as connection:
                yield connection


def names_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


async def asked(connection: Connection, *request: str | bytes) -> bytes:
    """The answer to these chunks."""
    first, *others = request
    async with connection.request_channel(first) as channel:
        for chunk in others:
            await channel.send(chunk)
        await channel.send_eof()
        return b"".join([chunk.data async for chunk in channel])


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
async def test_importing_an_example_does_nothing(file: Path) -> None:
    done = await run_program("-c", f"import runpy; runpy.run_path({str(file)!r})")

    assert (done.code, done.stdout, done.stderr) == (0, "", "")


async def test_the_client_example_talks_to_the_server_example() -> None:
    async with started(EXAMPLES / "server.py", "tcp://127.0.0.1:0", "ws://127.0.0.1:0/rsocket") as server:
        uris = [(await server.reads("listening ")).split()[1] for _ in range(2)]
        for uri in uris:
            done = await run_program(EXAMPLES / "client.py", uri)
            assert (done.code, done.stderr) == (0, "")
            await server.reads("log: the client was here")
        server.process.send_signal(signal.SIGINT)

        assert await server.process.wait() == 0


# The demo


@BOTH_CHATS
async def test_the_demo_shows_a_conversation_and_ends_each_time_in_the_same_way(chat: Path) -> None:
    first, second = [await run_program(chat) for _ in range(2)]

    assert (first.code, first.stderr) == (second.code, second.stderr) == (0, "")
    assert_in_order(TRANSCRIPT, first.stdout)
    assert without_accidents(first.stdout) == without_accidents(second.stdout)


async def test_the_command_line_runs_the_same_demo() -> None:
    done = await run_program("-c", "from rsocket_trio.cli.main import commands; commands.main(['demo'])")

    assert (done.code, done.stderr) == (0, "")
    assert_in_order(TRANSCRIPT, done.stdout)


def without_accidents(transcript: str) -> str:
    """Ports and clocks are nobody's merit."""
    return re.sub(r":\d+", ":", transcript)


def assert_in_order(parts: list[str], text: str) -> None:
    """Each part is in the text, behind the one before."""
    rest = text
    for part in parts:
        _, found, rest = rest.partition(part)
        assert found, f"{part!r} is missing, or out of order, in:\n{text}"


# The chat, as people use it


class Program(Running):
    """A running program: what it prints, line by line, and a keyboard for it."""

    async def types(self, line: str) -> None:
        await self.write(line.encode() + b"\n")

    async def reads(self, wanted: str) -> str:
        """The next line that has this in it."""
        passed = []
        while line := await self.line():
            passed.append(line)
            if wanted in line:
                return line
        raise AssertionError(f"{wanted!r} did not come; what came: {passed}; it ended with {await self.end()}")


@asynccontextmanager
async def started(*words: object) -> AsyncIterator[Program]:
    async with program(*words) as running:
        yield Program(running.process)


@asynccontextmanager
async def chat_server(chat: Path = CHAT) -> AsyncIterator[tuple[Program, str, str]]:
    """A chat server, and the URIs that it said."""
    async with started(chat, "server", "--listen", "tcp://127.0.0.1:0", "ws://127.0.0.1:0/chat") as server:
        tcp, ws = [(await server.reads("listening ")).split()[1] for _ in range(2)]
        yield server, tcp, ws


@asynccontextmanager
async def two_members(chat: Path) -> AsyncIterator[tuple[Program, Program, Program]]:
    """A server with ada, who came over WebSocket, and bob, who came over TCP."""
    async with (
        chat_server(chat) as (server, tcp, ws),
        started(chat, "client", "ada", ws) as ada,
        joined_program(ada, "ada"),
        started(chat, "client", "bob", tcp) as bob,
        joined_program(bob, "bob"),
    ):
        await ada.reads("* bob joined lobby, clock ")
        yield server, ada, bob


@asynccontextmanager
async def joined_program(member: Program, name: str) -> AsyncIterator[None]:
    assert re.fullmatch(rf"\* {name} joined lobby, clock \d\d:\d\d [+-]\d{{4}}", await member.reads(f"* {name} joined"))
    yield


@asynccontextmanager
async def member(uri: str, name: str, initial_request_n: int = 256) -> AsyncIterator[tuple[Connection, Channel]]:
    """A member who uses the bare protocol, and has no clock."""
    async with (
        open_connection(uri, setup=name) as connection,
        connection.request_channel("lobby", route="chat", initial_request_n=initial_request_n) as channel,
    ):
        with trio.fail_after(PATIENCE):
            assert (await anext(channel)).text == f"* {name} joined lobby, clock unknown"
        yield connection, channel


@BOTH_CHATS
async def test_two_people_talk_and_ask_for_things(chat: Path) -> None:
    async with two_members(chat) as (_, ada, bob):
        await ada.types("hello bob")
        assert await bob.reads("hello") == "ada: hello bob"
        assert await ada.reads("hello") == "ada: hello bob"
        await bob.types("/msg ada psst")
        assert await ada.reads("psst") == "bob to you: psst"
        assert await bob.reads("delivered") == "delivered to ada"
        await bob.types("/join kitchen")
        await ada.reads("* bob left for kitchen")
        await bob.reads("you are in kitchen")
        await ada.types("/users")
        await ada.reads("ada in lobby, bob in kitchen")
        await ada.types("/rooms")
        await ada.reads("kitchen (1), lobby (1)")
        await ada.types("/time bob")
        assert re.search(r"bob's clock: \d\d:\d\d", await ada.reads("clock"))
        await ada.types("/time")
        await ada.reads("the server's clock: ")
        await ada.types("/dance")
        await ada.reads("/msg NAME text, /users")


@pytest.mark.parametrize(("way", "chat"), WAYS, ids=lambda value: getattr(value, "stem", value))
async def test_who_leaves_in_good_order_is_gone_at_once(chat: Path, way: str) -> None:
    async with two_members(chat) as (_, ada, bob):
        if way == "/quit":
            await bob.types(way)
        elif way == "Ctrl-D":
            await bob.close("stdin")
        else:
            bob.process.send_signal(signal.SIGINT if way == "Ctrl-C" else signal.SIGTERM)
        await ada.reads("* bob left")

        assert await bob.end() == (0, "")


@BOTH_CHATS
async def test_who_is_killed_is_gone_at_once(chat: Path) -> None:
    async with two_members(chat) as (_, ada, bob):
        bob.process.kill()
        await ada.reads("* bob left")


@pytest.mark.parametrize(("name", "complaint"), [("ada", "the name 'ada' is taken"), ("a b", "'a b' is no name")])
async def test_a_name_that_is_taken_or_none_is_refused_in_one_line(name: str, complaint: str) -> None:
    async with chat_server() as (_, tcp, _), member(tcp, "ada"):
        done = await run_program(CHAT, "client", name, tcp)

    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"chat: {complaint}")
    assert done.stderr.count("\n") == 1


@BOTH_CHATS
async def test_the_members_say_in_one_line_that_the_server_has_died(chat: Path) -> None:
    async with two_members(chat) as (server, ada, bob):
        server.process.kill()
        for one in (ada, bob):
            code, complaint = await one.end()
            assert (code, complaint.count("\n")) == (1, 0)
            assert complaint.startswith("chat: ")
        assert await server.process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(("how", "chat"), STOPS, ids=lambda value: getattr(value, "stem", value))
async def test_a_server_that_stops_ends_its_members_in_good_order(chat: Path, how: signal.Signals) -> None:
    async with two_members(chat) as (server, ada, bob):
        server.process.send_signal(how)
        for one in (ada, bob):
            assert await one.end() == (0, "chat: the server has closed the chat")
        assert await server.end() == (0, "")


async def test_who_does_not_read_slows_nobody_and_is_told_what_was_missed() -> None:
    credit, said = 4, 100
    async with (
        chat_server() as (_, tcp, ws),
        member(ws, "slow", initial_request_n=credit) as (_, slow),
        member(tcp, "quick") as (connection, quick),
    ):
        assert (await anext(slow)).text == "* quick joined lobby, clock unknown"
        for number in range(said):
            await quick.send(f"line {number}")
            assert (await anext(quick)).text == f"quick: line {number}"
        with pytest.raises(Rejected, match="slow does not keep up"):
            await connection.request_response("slow are you there?", route="msg")

        kept = credit + 1 + MAILBOX  # one waits for credit outside of the mailbox
        for number in range(kept):
            assert (await anext(slow)).text == f"quick: line {number}"
        # One more that he missed: the private message.
        missed = said - kept + 1
        assert (await anext(slow)).text == f"* you did not keep up and missed {missed} lines"
        await quick.send("welcome back")
        assert (await anext(slow)).text == "quick: welcome back"


async def test_what_would_harm_a_terminal_or_a_mailbox_is_not_passed_on() -> None:
    async with chat_server() as (_, tcp, _), member(tcp, "ada") as (_, channel):
        await channel.send(b"\x1b[2J\xff")
        assert (await anext(channel)).text == "ada: \N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}"
        await channel.send("x" * 100_000)
        assert (await anext(channel)).text == "* not said: 100000 characters, limit 1000"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["dance"], 2),
        (["client", "ada", "nonsense"], 2),
        (["server", "--listen", "gopher://127.0.0.1:0"], 2),
        (["client", "ada", "tcp://127.0.0.1:1"], 1),
    ],
)
async def test_wrong_arguments_get_one_line(arguments: list[str], code: int) -> None:
    done = await run_program(CHAT, *arguments)

    assert (done.code, done.stdout) == (code, "")
    assert done.stderr.startswith("chat: ")
    assert done.stderr.count("\n") == 1
