"""The command as a whole: help, versions, completion, wrong words, and the commands that read hex."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle, product

import click

from rsocket_trio.cli.exit_codes import MEANINGS
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.main import COMMANDS, MODULES, commands
from rsocket_trio.connection.protocols import ALL, SHORT
from rsocket_trio.rsocket.dialects import DIALECTS
from tests.cli.commands import COMMAND, run, started
from tests.each_row import ALL_CASES, each_row
from tests.rows import Rows

CANCEL = "000000052400"
HELP = ("-h", "--help")


async def test_every_command_has_help() -> None:
    with Rows() as row:
        every = ["", *COMMANDS, "frames decode"]
        for command, flag in product(every, HELP) if ALL_CASES else zip(every, cycle(HELP), strict=False):
            with row(f"{command} {flag}"):
                result = await run(*command.split(), flag)
                assert (result.code, result.stderr) == (0, "")
                assert result.stdout.startswith(f"Usage: rsocket-trio {command}".rstrip())


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


EACH_BY_ITSELF = """
import os, sys
import rsocket_trio.cli.entry, rsocket_trio.cli.main
from rsocket_trio.cli.entry import main

for command in sys.argv[1:]:
    if os.fork() == 0:
        sys.argv = ["rsocket-trio", command, "--help"]
        main()
    code = os.waitstatus_to_exitcode(os.wait()[1])
    print(end=f"{code}\\0", flush=True)
"""
"""Forks for each command once there is what all commands import, and nothing that only some of them do."""


def test_every_command_starts_by_itself() -> None:
    with Rows() as row:
        for command in COMMANDS if ALL_CASES else ["detect"]:
            with row(command):
                done = subprocess.run([*COMMAND, command, "--help"], capture_output=True, text=True, check=False)
                assert (done.returncode, done.stderr) == (0, "")
                assert done.stdout.startswith(f"Usage: rsocket-trio {command}")


def test_every_command_finds_what_it_imports() -> None:
    words = [sys.executable, "-c", EACH_BY_ITSELF, *COMMANDS]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    with Rows() as row:
        for command, said in zip(COMMANDS, done.stdout.split("\0"), strict=False):
            with row(command):
                assert said.startswith(f"Usage: rsocket-trio {command}")
                assert said.endswith("\n0")


async def test_the_version_is_that_of_the_package() -> None:
    with Rows() as row:
        for flag in ("-v", "--version"):
            with row(flag):
                result = await run(flag)
                assert result.stdout == f"rsocket-trio {importlib.metadata.version('rsocket-trio')}\n"


async def test_no_command_is_wrong_usage_and_shows_help() -> None:
    result = await run()

    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: rsocket-trio ")


WRONG = [
    ("nonsense", "rsocket-trio: no such command 'nonsense' ("),
    ("--nonsense", "rsocket-trio: no such option '--nonsense' ("),
    ("frames decode --dialect streamux/1", f"the known ones are {', '.join(DIALECTS)}"),
    ("frames encode --dialect nonsense", f"the known ones are {', '.join(ALL)}"),
    ("serve module:responder --dialect 1", f"{', '.join(ALL)}, in short {', '.join(SHORT)}"),
    ("request tcp://h:1 --dialect 1", f"{', '.join(ALL)}, in short {', '.join(SHORT)}"),
    ("frames", "rsocket-trio frames: a command is missing: decode or encode"),
    ("frames translate", "rsocket-trio frames: no such command 'translate' ("),
    ("detect more", "rsocket-trio detect: got unexpected extra argument (more)"),
]


async def test_wrong_words_are_one_line() -> None:
    with Rows() as row:
        for arguments, said in WRONG:
            with row(arguments):
                result = await run(*arguments.split())
                assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
                assert said in result.stderr


def test_every_dialect_has_a_short_name() -> None:
    assert sorted(SHORT.values()) == sorted(ALL)


async def test_a_short_name_means_its_dialect() -> None:
    line = json.dumps({"type": "CANCEL", "stream_id": 5}).encode()
    with Rows() as row:
        for short, name in SHORT.items():
            with row(short):
                if name not in DIALECTS:
                    continue
                named = await run("frames", "encode", "--tcp", "--dialect", name, stdin=line)
                result = await run("frames", "encode", "--tcp", "--dialect", short, stdin=line)
                assert (result.code, result.stderr, result.stdout) == (0, "", named.stdout)


async def test_frames_are_decoded_and_encoded_again() -> None:
    decoded = await run("frames", "decode", "--dialect", "rsocket/1.0", stdin=f"{CANCEL}\n\n{CANCEL}".encode())
    encoded = await run("frames", "encode", stdin=decoded.stdout.encode())

    assert (decoded.code, decoded.stderr) == (0, "")
    assert [json.loads(line)["type"] for line in decoded.stdout.splitlines()] == ["CANCEL", "CANCEL"]
    assert (encoded.code, encoded.stdout) == (0, f"{CANCEL}\n{CANCEL}\n")


async def test_a_byte_stream_is_decoded_and_encoded_again() -> None:
    stream = f"000006{CANCEL}"
    decoded = await run("frames", "decode", "--tcp", stdin=(stream * 2).encode())
    encoded = await run("frames", "encode", "--tcp", stdin=decoded.stdout.encode())

    assert encoded.stdout.split() == [stream, stream]


async def test_a_line_that_is_no_frame_says_so_and_the_rest_goes_on() -> None:
    result = await run("frames", "decode", stdin=b"xyz\n\xff\n" + CANCEL.encode())

    assert (result.code, result.stderr) == (1, "")
    wrong, undecodable, right = map(json.loads, result.stdout.splitlines())
    assert wrong == {"error": "not hex: 'x' at digit 0", "offset": 0}
    assert "not hex" in undecodable["error"]
    assert right["type"] == "CANCEL"


async def test_first_bytes_name_their_dialect() -> None:
    setup = "000000 0400 00010000 00004e20 00015f90 00 00"
    result = await run("detect", stdin=f"00001400{setup}\n474554202f20485454502f312e31\n".encode())

    assert (result.code, result.stdout) == (0, "rsocket/1.0\nunknown\n")


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


async def test_a_reader_that_has_enough_ends_a_command_quietly() -> None:
    async with started("frames", "decode") as command:
        await command.write(CANCEL.encode() + b"\n")
        await command.line()
        await command.close("stdout")
        await command.write(CANCEL.encode() + b"\n")

        assert await command.end() == (0, "")


def test_help_that_nobody_reads_ends_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*COMMAND, "request", "--help"], stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)

    assert done.stderr == b""


@each_row("closed", ["<&-", ">&-", "<&- >&- 2>&-"] if ALL_CASES else ["<&- >&- 2>&-"])
def test_a_command_without_standard_streams_works(closed: str) -> None:
    script = f'exec "$@" {closed}'
    done = subprocess.run(["sh", "-c", script, "sh", *COMMAND, "detect"], stdin=subprocess.DEVNULL, check=False)

    assert done.returncode == 0


async def test_the_demo_runs_to_its_end() -> None:
    result = await run("demo")

    assert (result.code, result.stderr) == (0, "")
    assert result.stdout


def test_each_command_has_its_name() -> None:
    with Rows() as row:
        for name in COMMANDS:
            with row(name):
                command = commands.get_command(click.Context(commands), name)
                assert command is not None
                assert command.name == name


def test_a_command_loads_the_modules_of_no_other() -> None:
    script = "import sys; from rsocket_trio.cli.entry import main\ntry: main()\nfinally: print(*sys.modules)"
    arguments = [sys.executable, "-c", script, "detect"]
    done = subprocess.run(arguments, input="", capture_output=True, text=True, check=True)

    loaded = {name.rpartition(".")[2] for name in done.stdout.split() if name.startswith("rsocket_trio.cli.")}
    assert loaded & {*COMMANDS, *MODULES.values()} == {"frames"}
