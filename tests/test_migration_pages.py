"""The pages for those who come from other libraries: each statement of the right sides runs, against a server."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest
import trio

from rsocket_trio import Responder, open_connection, serve
from tests.blocks import ROOT, Block, blocks, make_certificates, page, with_free_ports

PATIENCE = 20.0
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/howto").glob("from-*.md"))
_ROW = re.compile(r"^<tr><td>\n(.*?)\n</td><td>\n(.*?)\n</td></tr>$", re.MULTILINE | re.DOTALL)
_PROGRAM = re.compile(r"# (\w+\.py)\n")


class Row(NamedTuple):
    """One row of a table: its left side, and the blocks of its right side with their lines in the page."""

    left: str
    right: list[Block]


def rows(text: str) -> list[Row]:
    found = []
    for row in _ROW.finditer(text):
        before = text[: row.start(2)]
        right = [each._replace(line=each.line + before.count("\n")) for each in blocks(row[2])]
        found.append(Row(row[1].strip(), right))
    return found


def code_of(text: str) -> list[Block]:
    """What runs: the code above the first table, and the right sides, in order."""
    head = [each for each in blocks(text.partition("<table>")[0]) if each.language == "python"]
    return head + [block for row in rows(text) for block in row.right]


class Marked(ast.NodeTransformer):
    """Puts a call of ``ran(line)`` before every statement, and keeps the lines."""

    def __init__(self) -> None:
        self.lines: set[int] = set()

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, [each for one in statements for each in self._marked(one)])
        return node

    def _marked(self, statement: ast.stmt) -> list[ast.stmt]:
        # The methods of a contract have no bodies.
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return [statement]
        self.lines.add(statement.lineno)
        mark = ast.parse(f"ran({statement.lineno})").body[0]
        for each in ast.walk(mark):
            if hasattr(each, "lineno"):
                ast.copy_location(each, statement)
        return [mark, statement]


async def play(text: str, path: str, names: dict[str, Any]) -> set[int]:
    """Run the code of a page in one namespace, and each test that it defines. Return the lines that did not run."""
    ran: set[int] = set()
    names |= {"ran": ran.add}
    wanted: set[int] = set()
    for block in code_of(text):
        if _PROGRAM.match(block.text):
            continue
        marked = Marked()
        tree = marked.visit(ast.parse("\n" * (block.line - 1) + block.text, path))
        wanted |= marked.lines
        code: CodeType = compile(tree, path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        before = set(names)
        waiting = eval(code, names)
        if inspect.isawaitable(waiting):
            await waiting
        for name in sorted(set(names) - before):
            if name.startswith("test_"):
                await names[name]()
    return wanted - ran


async def missed_of(path: str) -> set[int]:
    """Play a page against a server of its own. Return the lines that did not run."""
    responder = Responder()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(serve, responder, "tcp://127.0.0.1:0")
            async with open_connection(uri) as connection:
                names: dict[str, Any] = {"print": lambda *words: None}
                names |= {"uri": uri, "connection": connection, "responder": responder, "nursery": nursery}
                missed = await play(page(path), path, names)
                names.clear()
            nursery.cancel_scope.cancel()
    return missed


@pytest.mark.parametrize("path", PAGES)
async def test_every_statement_of_the_right_sides_runs(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_certificates(tmp_path)
    missed = await missed_of(path)
    for _ in range(4):
        # Under load a deadline of 0.1 s, as a page shows it, may end before its handler begins.
        if not missed:
            break
        missed &= await missed_of(path)

    assert [f"{path}:{line}" for line in sorted(missed)] == []


@pytest.mark.parametrize("path", PAGES)
async def test_the_programs_of_the_right_sides_talk_to_each_other(path: str, tmp_path: Path) -> None:
    programs = {}
    for block in code_of(with_free_ports(page(path))):
        name = _PROGRAM.match(block.text)
        if name:
            programs[name[1]] = block.text
            (tmp_path / name[1]).write_text(block.text)
    assert {"server.py", "client.py"} <= set(programs)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            start = partial(trio.run_process, check=False, capture_stdout=True, capture_stderr=True, cwd=tmp_path)
            nursery.start_soon(partial(start, [sys.executable, "server.py"]))
            while True:
                # The server says nothing, so the client tries until it is there.
                done = await start([sys.executable, "client.py"])
                if done.returncode == 0:
                    break
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()

    assert done.stdout
    assert done.stderr == b""


@pytest.mark.parametrize("path", PAGES)
def test_every_row_has_a_left_side_and_code_on_the_right(path: str) -> None:
    text = page(path)
    found = rows(text)

    assert len(found) == text.count("<tr><td>") > 20
    assert [row for row in found if not row.left or not row.right] == []
    assert {block.language for row in found for block in row.right} == {"python"}
