"""The code blocks of a markdown page, and its links."""

from __future__ import annotations

import ast
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple

import trustme

ROOT = Path(__file__).parent.parent
PORTS = ("7878", "7879", "7880", "7881")
"""What the pages listen on. Tests take other ports, so that they never meet a real server, or each other."""

PORTS_FOR_PROGRAMS = range(10_000, 30_000)
"""Below those that the system gives to whoever asks for any: no other test takes one before its program listens."""

_FENCE = re.compile(r"^```([\w{}-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FILE = re.compile(r"# (\w+\.py)\n")
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


class Block(NamedTuple):
    """One fenced block: its language, its text, the heading that it stands under, the line it begins in."""

    language: str
    text: str
    heading: str
    line: int


class Opening(NamedTuple):
    """The head of a page: its programs by file name, and the console session that runs them."""

    programs: dict[str, Block]
    session: str


def opening(text: str) -> Opening:
    """Return the programs of a page up to its first console session, and that session."""
    programs: dict[str, Block] = {}
    for block in blocks(text):
        name = file_name(block)
        if name is not None:
            programs[name] = block
        else:
            return Opening(programs, block.text if block.language == "console" else "")
    return Opening(programs, "")


def file_name(block: Block) -> str | None:
    """Return the file that a block is, as its first line says: ``# NAME.py``."""
    found = _FILE.match(block.text) if block.language == "python" else None
    return found and found[1]


def snippets(text: str) -> list[Block]:
    """Return the Python of a page that is no file of its own."""
    return [block for block in blocks(text) if block.language == "python" and file_name(block) is None]


def definitions(block: Block) -> ast.Module:
    """Return a program without its ``trio.run(main)``."""
    tree = ast.parse("\n" * (block.line - 1) + block.text)
    tree.body = [each for each in tree.body if ast.unparse(each) != "trio.run(main)"]
    return tree


def commands(session: str) -> list[tuple[str, str]]:
    """Return the commands of a console session, each with the output that it shows."""
    return _COMMAND.findall(session)


def is_shown(output: str, shown: str) -> bool:
    """Return whether a page shows this output; ``...`` on the page stands for any text."""
    return re.fullmatch(re.escape(shown).replace(r"\.\.\.", ".*"), output, re.DOTALL) is not None


def page(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def blocks(text: str) -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        before = _FENCE.sub("", text[: found.start()])
        headings = _HEADING.findall(before)
        yield Block(found[1], found[2], headings[-1] if headings else "", text[: found.start()].count("\n") + 2)


def links(text: str) -> list[str]:
    return _LINK.findall(_FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """The names that a page's headings have as targets of links."""
    return {slug(heading) for heading in _HEADING.findall(_FENCE.sub("", text))}


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


def with_free_ports(text: str) -> str:
    """The text with every port of ``PORTS`` replaced by one that is free."""
    others = [port for port in SystemRandom().sample(PORTS_FOR_PROGRAMS, 200) if is_free(port)]
    # 17879 would be taken for 7879 in turn.
    others = [other for other in others if not any(port in str(other) for port in PORTS)][: len(PORTS)]
    for port, other in zip(PORTS, others, strict=True):
        text = text.replace(port, str(other))
    return text


def is_free(port: int) -> bool:
    """Return whether nobody listens at a port of this machine."""
    with socket.socket() as holder:
        try:
            holder.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def make_certificates(folder: Path) -> None:
    """Write ``server.pem`` and ``client.pem``, and the authority that both are of."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    ca.issue_cert("ada@example.org").private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")
