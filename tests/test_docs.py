"""What the documentation says is true: its code runs, its tables are those of the code, its links lead somewhere."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import shutil
import ssl
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import attrs
import pytest
import trio

import rsocket_trio
from rsocket_trio import (
    Channel,
    Limits,
    Payload,
    Responder,
    ResumeOptions,
    StreamuxOptions,
    errors,
    open_connection,
    serve,
)
from rsocket_trio.cli import interactions
from rsocket_trio.cli.main import COMMANDS
from rsocket_trio.connection.protocols import ALL
from rsocket_trio.errors import CodedError
from rsocket_trio.transports.schemes import REGISTRY, SPELLINGS
from tests.blocks import (
    ROOT,
    Block,
    anchors,
    blocks,
    commands,
    definitions,
    file_name,
    is_shown,
    links,
    make_certificates,
    opening,
    page,
    snippets,
    with_free_ports,
)
from tests.each_row import each_row
from tests.missing import give_up, missing_aeron, missing_module, require
from tests.programs import Result, run_program

PATIENCE = 20.0
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
HOWTO = [path for path in PAGES if path.startswith("docs/howto/")]
STREAMUX = page("docs/explanation/streamux.md")
PROTOCOLS = [path for path in PAGES if path.startswith("docs/explanation/protocols/")]
RESUMPTION = page("docs/explanation/resumption.md")
REFERENCE = "\n".join(page(path) for path in PAGES if path.startswith("docs/reference/"))
FAILURES = page("docs/howto/failures.md")
ROOTS_OF_ERRORS = (
    errors.RSocketError,
    errors.CodedError,
    errors.StreamError,
    errors.SetupError,
    errors.ProtocolError,
)
"""Classes that only stand above others."""
CHAPTERS = {
    "Options and negotiation": ["HELLO", "HELLO"],
    "Messages and chunks": ["b'3'"],
    "Cancellation": [],
    "Pings and priorities": [r"\d+\.\d ms"],
    "Back-pressure without credit": [r"too fast after \d+ bytes"],
    "Errors": [r"\+0\.25", "-by zero", "-internal error"],
}
"""What the snippets of the page on Streamux print."""
RUN_ELSEWHERE = {"analytics", "asyncio", "capture", "index", "loadgen", "replay", "server", "spark", "testing"}
"""Pages whose code is run by tests of their own, as that of the pages for those who come from other libraries, or that
only say what the others begin with. What the page on servers shows are lines of programs, such as the README's."""
TASKS = {
    path: code
    for path in PAGES
    if path.startswith(("docs/howto/", "docs/reference/", "docs/aeron.md"))
    and Path(path).stem not in RUN_ELSEWHERE
    and not Path(path).stem.startswith("from-")
    and (code := snippets(page(path)))
}
"""The snippets of each how-to, of the reference, and of the page on Aeron."""
OPENINGS = [path for path in HOWTO if path != "docs/howto/index.md"]
NEEDED = {"docs/howto/analytics.md": "plotly"}
"""Libraries that programs of these pages need, beside what every environment of the tests has."""
RUN_UNDER_JAVA = "docs/howto/spark.md"
"""The page whose programs run in tests/spark/jvm."""
TUTORIAL = "\n".join(page(f"docs/tutorial/{name}.md") for name in ("echo", "numbers", "chat", "services"))


# The tutorial: files that are written, and commands that show what it says they show


def test_the_tutorial_shows_what_happens(tmp_path: Path) -> None:
    text = with_free_ports(TUTORIAL)
    afterwards = play_all(text, tmp_path)

    assert "stopped at 9" in text
    assert "stopped at 9\n" in "".join(afterwards)


def test_the_client_of_the_page_on_streamux_talks_to_its_server(tmp_path: Path) -> None:
    text = with_free_ports(STREAMUX)

    assert play_all(text, tmp_path) == [""]
    assert sorted(path.name for path in tmp_path.glob("*.py")) == ["client.py", "server.py"]
    assert "$ python client.py\nHELLO\n" in text


def play_all(text: str, folder: Path) -> list[str]:
    """Write the files of a page and type its commands; what the programs still said that it leaves running."""
    started: list[subprocess.Popen[str]] = []
    with background(started) as afterwards:
        for block in blocks(text):
            name = file_name(block)
            if name is not None:
                (folder / name).write_text(block.text)
            elif block.language == "console":
                play(block.text, folder, started)
    return afterwards


@contextmanager
def background(started: list[subprocess.Popen[str]]) -> Iterator[list[str]]:
    """End what a page leaves running, and tell what it still said."""
    said: list[str] = []
    try:
        yield said
    finally:
        for process in started:
            process.kill()
            said.append(process.communicate()[0])


def play(session: str, folder: Path, started: list[subprocess.Popen[str]]) -> None:
    """Type each command of a console session, and compare what it prints."""
    trio.run(play_in_trio, session, folder, started)


async def play_in_trio(session: str, folder: Path, started: list[subprocess.Popen[str]]) -> None:
    """Type each command of a console session, and compare what it prints."""
    for command, shown in commands(session):
        words = as_here(shlex.split(command.removesuffix(" &")))
        if not command.endswith(" &"):
            done = await finished(words, folder)
            assert done.stderr == "", command
            assert is_shown(done.stdout, shown), (command, done.stdout)
            continue
        process = left_running(words, folder)
        started.append(process)
        assert process.stdout is not None
        for line in shown.splitlines():
            assert process.stdout.readline() == line + "\n", command


async def finished(words: list[str], folder: Path) -> Result:
    """Run ``python WORDS`` to its end."""
    if words[0] != "-m":
        return await run_program(*words, cwd=folder)
    # pytest wants a Python of its own: it rewrites what it imports.
    with trio.fail_after(PATIENCE):
        done = await trio.run_process(
            [sys.executable, *words], cwd=folder, capture_stdout=True, capture_stderr=True, check=False
        )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def left_running(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start ``python WORDS``."""
    command = [sys.executable, *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def as_here(words: list[str]) -> list[str]:
    """What stands behind ``python`` for a command: its script, or that of this environment's own program."""
    if words[0] == "python":
        return words[1:]
    found = shutil.which(words[0], path=Path(sys.executable).parent)
    if found is None:
        give_up(f"{words[0]} is not installed")
    return [found, *words[1:]]


# How to: a whole program, and then snippets in a namespace of their own, against a running server


@each_row("path", OPENINGS)
def test_a_how_to_opens_with_a_whole_program(path: str) -> None:
    programs, session = opening(page(path))

    assert programs
    assert all(" import " in block.text for block in programs.values())
    assert any(name in session or f"{Path(name).stem}:" in session for name in programs)


@pytest.fixture
def runnable(request: pytest.FixtureRequest) -> str:
    """A how-to whose program has its libraries here. A skip from inside Trio's run would lose the reason."""
    path: str = request.param
    require(missing_module(NEEDED[path]) if path in NEEDED else None)
    return path


@pytest.mark.parametrize("runnable", [path for path in OPENINGS if path != RUN_UNDER_JAVA], indirect=True)
async def test_the_program_of_a_how_to_runs_as_it_stands(runnable: str, tmp_path: Path) -> None:
    programs, session = opening(with_free_ports(page(runnable)))
    for name, block in programs.items():
        (tmp_path / name).write_text(block.text)

    started: list[subprocess.Popen[str]] = []
    with background(started):
        for command, shown in commands(session):
            python, _, program = command.partition(" ")
            if python == "python" and program in programs:
                done = await run_program(tmp_path / program, cwd=tmp_path)
                assert (done.code, done.stderr) == (0, ""), command
                assert is_shown(done.stdout, shown), done.stdout
            else:
                await play_in_trio(f"$ {command}\n{shown}", tmp_path, started)


def program_names(task: str, names: dict[str, Any]) -> dict[str, Any]:
    """Return the names that the programs of a page define."""
    defined: dict[str, Any] = {}
    for block in opening(page(task)).programs.values():
        exec(compile(definitions(block), task, "exec", dont_inherit=True), defined)
    return names | defined


async def run_task(task: str) -> None:
    """Run the snippets of a task behind its program."""
    names: dict[str, Any] = {name: getattr(rsocket_trio, name) for name in rsocket_trio.__all__}
    names = program_names(task, names | {"trio": trio, "ssl": ssl}) | {"print": lambda *words: None}
    responder = stocked(names.get("responder") or Responder())
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(serve, responder, ["tcp://127.0.0.1:0"])
            async with open_connection(uri) as connection:
                names |= {"uri": uri, "connection": connection, "responder": responder, "nursery": nursery}
                for block in TASKS[task]:
                    await execute(block, names, task)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("task", TASKS)
async def test_a_how_to_works(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if task.endswith("/aeron.md"):
        require(missing_aeron())
    monkeypatch.chdir(tmp_path)
    make_certificates(tmp_path)
    await run_task(task)


@pytest.mark.parametrize("chapter", CHAPTERS)
async def test_a_chapter_on_streamux_works(chapter: str) -> None:
    responder = Responder()

    @responder.request_response
    async def shout(request: Payload) -> str:
        if request.text == "slow":
            await trio.sleep_forever()
        return request.text.upper()

    @responder.request_channel
    async def count(channel: Channel) -> None:
        words = b"".join([chunk.data async for chunk in channel]).split()
        await channel.send(str(len(words)))

    printed: list[str] = []
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(serve, responder, ["tcp://127.0.0.1:0"])
            async with open_connection(uri, dialect="streamux/1") as connection:
                names: dict[str, Any] = {name: getattr(rsocket_trio, name) for name in rsocket_trio.__all__}
                names |= {"trio": trio, "partial": partial, "print": lambda word: printed.append(str(word))}
                names |= {"uri": uri, "connection": connection, "nursery": nursery}
                for block in blocks(STREAMUX):
                    if block.language == "python" and block.heading == chapter:
                        await execute(block, names, "docs/explanation/streamux.md")
            nursery.cancel_scope.cancel()

    for said, shown in zip(printed, CHAPTERS[chapter], strict=True):
        assert re.fullmatch(shown, said)


def test_every_chapter_on_streamux_with_code_is_run() -> None:
    code = [block for block in blocks(STREAMUX) if block.language == "python"]

    assert {block.heading for block in code} == {*CHAPTERS, "A server and a client"}


async def test_the_page_on_resumption_works() -> None:
    printed: list[str] = []
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            names: dict[str, Any] = {name: getattr(rsocket_trio, name) for name in rsocket_trio.__all__}
            names |= {"partial": partial, "nursery": nursery, "print": lambda word: printed.append(str(word))}
            for block in blocks(RESUMPTION):
                if block.language == "python":
                    await execute(block, names, "docs/explanation/resumption.md")
            nursery.cancel_scope.cancel()

    assert printed == [*map(str, range(100)), "closed"]


def test_the_table_of_resume_options_is_that_of_the_code() -> None:
    documented = {name: default for name, default, *_ in rows_under("Options", RESUMPTION)}

    assert documented == {f"`{name}`": str(default) for name, default in attrs.asdict(ResumeOptions()).items()}


def test_the_table_of_states_is_what_a_connection_may_say() -> None:
    stated = set(re.findall(r"``(\w+)``", str(rsocket_trio.Connection.status.__doc__)))

    assert {name.strip("`") for name, *_ in rows_under("States", RESUMPTION)} == stated


def test_every_how_to_is_in_their_list() -> None:
    listed = {link for link in links(page("docs/howto/index.md")) if "/" not in link}

    assert {Path(path).name for path in HOWTO} - listed == {"index.md"}


async def test_handlers_of_the_how_to_do_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    responder = stocked(Responder())
    names: dict[str, Any] = {name: getattr(rsocket_trio, name) for name in rsocket_trio.__all__}
    for task, code in TASKS.items():
        names = program_names(task, names) | {"trio": trio, "responder": responder}
        for block in code:
            if not re.search(r"await connection|open_connection", block.text) and "@responder." in block.text:
                await execute(block, names, task)
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, responder, ["tcp://127.0.0.1:0"])
        async with open_connection(uri) as connection:
            async with connection.request_stream(route="impatient", initial_request_n=5, refill=False) as items:
                read = [(await anext(items)).text for _ in range(5)]
                await trio.sleep(0.2)
                items.request_n(5)
                read += [item.text async for item in items]
            assert read == ["0", "1", "2", "3", "4", "enough"]
            async with connection.request_stream(route="freshest", initial_request_n=1, refill=False) as items:
                assert (await anext(items)).text == "0"
                await trio.sleep(0.1)
                items.request_n(1)
                assert int((await anext(items)).text) > 1
        nursery.cancel_scope.cancel()


async def execute(block: Block, names: dict[str, Any], path: str) -> None:
    """Run a block whose lines stand inside an async function."""
    code: CodeType = compile("\n" * (block.line - 1) + block.text, path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waiting = eval(code, names)
    if waiting is not None:
        await waiting


def stocked(responder: Responder) -> Responder:
    """Return the responder with the routes that snippets use, where its program has not defined them."""

    def greet(request: Payload) -> str:
        return f"hello, {request.text}"

    async def slow(request: Payload) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    async def numbers(request: Payload) -> AsyncIterator[str]:
        number = 0
        while True:
            number += 1
            yield str(number)

    taken = {route.route for route in responder.routes}
    if "greet" not in taken:
        responder.request_response("greet")(greet)
    if "slow" not in taken:
        responder.request_response("slow")(slow)
    if "numbers" not in taken:
        responder.request_stream("numbers")(numbers)
    return responder


# Frames that are drawn


@each_row("path", PROTOCOLS)
def test_frames_are_drawn_as_the_cases_have_them(path: str) -> None:
    filled = runpy.run_path(str(ROOT / "docs/frames.py"))["filled"]

    assert page(path) == filled(page(path)), "python docs/frames.py draws them anew"


def test_every_dialect_has_a_page_with_its_frames() -> None:
    drawn = re.findall(r"<!-- frames of (\S+) -->\n\n###", "".join(map(page, PROTOCOLS)))

    assert sorted(drawn) == sorted(ALL)


# Reference: nothing is missing and nothing is stale


def test_the_table_of_limits_is_that_of_the_code() -> None:
    documented = {name: default for name, default, *_ in rows_under("Limits", page("docs/reference/limits.md"))}

    assert documented == {f"`{name}`": said(name, default) for name, default in attrs.asdict(Limits()).items()}


def test_the_table_of_streamux_options_is_that_of_the_code() -> None:
    explained = " ".join(name for name, *_ in rows_under("Options and negotiation", STREAMUX))

    assert re.findall(r"`(\w+)`", explained) == [field.name for field in attrs.fields(StreamuxOptions)]


def test_the_limits_of_streamux_exist() -> None:
    named = " ".join(name for name, *_ in rows_under("Limits", STREAMUX))

    assert set(re.findall(r"`(\w+)`", named)) <= {field.name for field in attrs.fields(Limits)}


def test_the_table_of_errors_is_that_of_the_code() -> None:
    documented = {name.strip("`"): code for name, code, *_ in rows_under("Errors", page("docs/reference/errors.md"))}
    coded = {name for name in rsocket_trio.__all__ if is_error(name)}

    assert set(documented) == coded
    for name, code in documented.items():
        cls = getattr(rsocket_trio, name)
        has_code = issubclass(cls, CodedError) and cls.default_code
        assert code == (f"0x{cls.default_code:03X}" if has_code else "")


def test_the_page_on_failures_names_every_error_that_a_caller_can_get() -> None:
    listed = re.findall(r"`(\w+)`", " ".join(name for name, *_ in rows_under("Failures, and what to do", FAILURES)))
    ours = {
        name
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, errors.RSocketError) and found not in ROOTS_OF_ERRORS
    }

    assert all(root.__subclasses__() for root in ROOTS_OF_ERRORS)
    assert sorted(listed) == sorted([*ours, "ValueError", "TypeError"])


def test_the_page_on_failures_names_every_step_of_connecting() -> None:
    listed = " ".join(f"{step}," for step, _ in rows_under("While connecting", FAILURES))
    source = "\n".join(path.read_text() for path in (ROOT / "rsocket_trio").rglob("*.py"))
    steps = set(re.findall(r'(?:\.step\(f?|NO_NEW_STREAM = )"([^"{]*(?:\{[^}]*\}[^"{]*)?)"', source))

    assert len(steps) == 10
    for step in steps:
        assert re.search(re.sub(r"\\\{.*\\\}", ".+", re.escape(step)) + ",", listed), step


def test_every_dialect_is_in_the_reference() -> None:
    assert [name for name in ALL if f"`{name}`" not in REFERENCE] == []


def test_every_scheme_is_in_the_reference() -> None:
    text = " ".join(row[0] for row in rows_under("URIs"))

    assert all(f"`{word}{REGISTRY[name].separator}" in text for word, name in SPELLINGS.items())


def test_every_command_is_in_the_reference() -> None:
    documented = " ".join(row[0] for row in rows_under("The command line"))

    assert [name for name in COMMANDS if not re.search(rf"\b{name}\b", documented)] == []


def test_the_flags_here_for_those_of_rsc_are_flags_of_a_command() -> None:
    options = {name for param in (*interactions.channel.params, *interactions.ping.params) for name in param.opts}
    cells = [here for _, here in rows_under("The flags of rsc", page("docs/howto/from-spring.md"))]
    named = {word for cell in cells for word in re.findall(r"(?<=`)--?[\w-]+|(?<= )--[\w-]+(?=`)", cell)}

    assert named
    assert named - options == set()


def rows_under(heading: str, text: str = REFERENCE) -> list[list[str]]:
    """The cells of the first table under a heading, without its own head."""
    text = re.split(rf"^#+ {re.escape(heading)}$", text, maxsplit=1, flags=re.MULTILINE)[1]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None
    lines = [re.split(r"(?<!\\)\|", line.strip("|")) for line in table[0].splitlines()]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def said(name: str, number: float) -> str:
    """A default as the table says it."""
    if name.endswith("_size"):
        whole = int(number) + int(number) % 2
        unit, size = ("MiB", 2**20) if whole % 2**20 == 0 else ("KiB", 2**10)
        return f"{whole // size} {unit}" + (" - 1" if number < whole else "")
    return f"{number:,.0f}"


def is_error(name: str) -> bool:
    found = getattr(rsocket_trio, name)
    return isinstance(found, type) and issubclass(found, Exception)


# All pages


@each_row("path", PAGES)
def test_links_lead_somewhere(path: str) -> None:
    text = page(path)
    dead = []
    for link in links(text):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / path).parent / file if file else ROOT / path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            dead.append(link)

    assert dead == []


def test_pages_and_code_install_from_a_checkout() -> None:
    """There is no release yet."""
    extras = tomllib.loads(page("pyproject.toml"))["project"]["optional-dependencies"]
    files = [ROOT / "README.md", *(ROOT / path for path in PAGES)]
    files += [
        path for folder in ("examples", "pyspark_rsocket", "rsocket_trio") for path in (ROOT / folder).rglob("*.py")
    ]

    for path in files:
        text = path.read_text("utf-8")
        assert "rsocket-trio[" not in text, path
        assert "install rsocket-trio" not in text, path
        for names in re.findall(r"'\.\[([a-z\d,-]+)\]'", text):
            assert set(names.split(",")) <= set(extras), path


@each_row("path", PAGES)
def test_code_is_python(path: str) -> None:
    for block in blocks(page(path)):
        if block.language == "python":
            compile(block.text, f"{path}:{block.line}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


def test_every_page_is_reached_from_the_index() -> None:
    linked = {ROOT / "docs/index.md"}
    ahead = ["docs/index.md"]
    while ahead:
        path = ahead.pop()
        found = {(ROOT / path).parent.joinpath(link.partition("#")[0]).resolve() for link in links(page(path))}
        ahead += [one.relative_to(ROOT).as_posix() for one in found - linked if one.suffix == ".md"]
        linked |= found

    pages = {ROOT / path for path in PAGES if not path.startswith("docs/newsfragments/")}
    assert pages - linked == set()


@each_row("path", sorted((ROOT / "docs/newsfragments").glob("*.md")), ids=lambda path: path.name)
def test_a_news_fragment_names_its_kind(path: Path) -> None:
    if path.name != "README.md":
        assert re.fullmatch(r"[\w-]+\.(feature|bugfix|change|removal)\.md", path.name)
        assert path.read_text("utf-8").strip().endswith(".")


def test_the_files_that_the_design_names_exist() -> None:
    named = set(re.findall(r"`((?:\w+/)*(?:\w+\.py|\w+/))`", page("docs/contributing/design.md")))

    assert {
        name for name in named if not (ROOT / name).exists() and not (ROOT / "rsocket_trio" / name).exists()
    } == set()


def test_the_names_that_the_design_places_are_defined_there() -> None:
    named = re.findall(r"`(\w+)(?:\.(\w+))?` in `((?:\w+/)*\w+\.py)`", page("docs/contributing/design.md"))
    missing = []
    for cls, method, file in named:
        text = page(f"rsocket_trio/{file}")
        if not re.search(rf"^class {cls}\b|^{cls}\b", text, re.MULTILINE):
            missing.append(f"{cls} in {file}")
        elif method and not re.search(rf"^    (?:async )?def {method}\(", text, re.MULTILINE):
            missing.append(f"{cls}.{method} in {file}")

    assert len(named) > 5
    assert missing == []


def test_the_design_opens_with_the_sentence() -> None:
    words = " ".join(page("docs/contributing/design.md").replace("\n> ", " ").split())

    assert (
        "Each connection is a nursery owning send/receive tasks, lease and keepalive timers and one child scope per "
        "stream, so cancellation frames map directly to trio cancel scopes and Streamux OOB priority queues." in words
    )
