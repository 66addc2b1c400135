"""The command as a whole: help, versions, completion, wrong words, and the commands that read hex."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import signal
import subprocess
from collections.abc import Iterator

import click

from rsocket_trio import Responder
from rsocket_trio.cli.exit_codes import MEANINGS
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.main import COMMANDS, commands
from rsocket_trio.connection.protocols import ALL, SHORT
from rsocket_trio.rsocket.dialect import DIALECTS
from tests.cli.commands import COMMAND, hosting, run, started
from tests.each_row import ALL_CASES, each_row
from tests.rows import Rows

CANCEL = "000000052400"


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Yield the command itself and those in it, each with its words."""
    yield "", commands
    for name in COMMANDS:
        command = commands.get_command(click.Context(commands), name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", each) for inner, each in command.commands.items())


def test_every_help_ends_with_examples_and_exit_codes() -> None:
    with Rows() as row:
        for words, command in all_commands():
            with row(words):
                assert isinstance(command, Command)
                context = click.Context(command, info_name="rsocket-trio")
                _, _, end = command.get_help(context).partition("\n\nExamples:\n")
                examples, _, codes = end.partition("\n\nExit codes:\n")
                assert [line.strip() for line in examples.splitlines()] == [
                    f"rsocket-trio {example}" for example in command.examples
                ]
                assert [int(line.split()[0]) for line in codes.splitlines() if line[2].isdigit()] == [
                    code for code in MEANINGS if code in command.codes
                ]
                assert {0, 1, 2, 130, 143} <= command.codes.keys()


def test_every_example_is_one_of_the_command_and_has_options_that_it_knows() -> None:
    with Rows() as row:
        for words, command in all_commands():
            for example in command.examples if isinstance(command, Command) else ():
                with row(example):
                    typed = shlex.split(example.partition(" <")[0].removesuffix(" --help"))
                    if not words:
                        assert typed[0] in COMMANDS
                        continue
                    assert typed[: len(words.split())] == words.split() or isinstance(command, click.Group)
                    if isinstance(command, click.Group):
                        continue
                    context = click.Context(command, ignore_unknown_options=False)
                    command.make_parser(context).parse_args(typed[len(words.split()) :])


WRONG = [
    ("nonsense", "rsocket-trio: no such command 'nonsense' ("),
    ("--nonsense", "rsocket-trio: no such option '--nonsense' ("),
    ("frames decode --dialect streamux/1", f"the known ones are {', '.join(DIALECTS)}"),
    ("request tcp://h:1 --dialect 1", f"{', '.join(ALL)}, in short {', '.join(SHORT)}"),
    ("detect more", "rsocket-trio detect: got unexpected extra argument (more)"),
    ("strem", "rsocket-trio: no such command 'strem': did you mean 'stream'?"),
    ("Request", "rsocket-trio: no such command 'Request': did you mean 'request'?"),
    ("frames decod", "rsocket-trio frames: no such command 'decod': did you mean 'decode'?"),
    ("request tcp://h:1 --rout x", "rsocket-trio request: no such option '--rout': did you mean '--route'?"),
    ("request tcp://h:1 --dialect rsoket/1.0", ", streamux: did you mean 'rsocket/1.0'?"),
    *((f"request tcp://h:1 --connect-timeout={text}", "connect") for text in ("0", "-1", "nan", "soon")),
]


async def test_help_and_version_come_from_a_process() -> None:
    version = importlib.metadata.version("rsocket-trio")
    with Rows() as row:
        for words, beginning in (("-h", "Usage: rsocket-trio "), ("-v", f"rsocket-trio {version}\n")):
            with row(words):
                result = await run(words)
                assert (result.code, result.stderr) == (0, "")
                assert result.stdout.startswith(beginning)


async def test_wrong_words_are_one_line() -> None:
    with Rows() as row:
        for arguments, said in WRONG:
            with row(arguments):
                result = await run(*arguments.split())
                assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
                assert said in result.stderr


async def test_a_line_is_answered_before_the_next_one_comes() -> None:
    async with started("frames", "decode") as command:
        for stream_id in (1, 2):
            await command.write(b"%08x2400\n" % stream_id)
            assert json.loads(await command.line())["stream_id"] == stream_id
        await command.close("stdin")
        assert await command.end() == (0, "")


async def test_ctrl_c_ends_a_command_that_waits_for_input_quietly() -> None:
    async with started("frames", "decode") as command:
        await command.write(CANCEL.encode() + b"\n")
        await command.line()
        command.process.send_signal(signal.SIGINT)

        assert await command.end() == (130, "")


@each_row("closed", ["<&-", ">&-", "<&- >&- 2>&-"] if ALL_CASES else ["<&- >&- 2>&-"])
def test_a_command_without_standard_streams_works(closed: str) -> None:
    script = f'exec "$@" {closed}'
    done = subprocess.run(["sh", "-c", script, "sh", *COMMAND, "detect"], stdin=subprocess.DEVNULL, check=False)

    assert done.returncode == 0


async def test_a_route_that_nobody_serves_is_answered_with_the_one_that_is_like_it() -> None:
    responder = Responder(describe=True)
    responder.request_response("echo")(lambda request: request)
    async with hosting(responder) as uri:
        with Rows() as row:
            for route, hint in (("ecko", ": did you mean 'echo'?\n"), ("xyzzy", "\n")):
                with row(route):
                    result = await run("request", uri, "-r", route)
                    assert (result.code, result.stdout) == (5, "")
                    assert result.stderr == f"Rejected: no request_response handler for route '{route}'{hint}"
