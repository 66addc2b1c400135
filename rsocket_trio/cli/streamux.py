"""The command ``streamux``: shows initialize messages as JSON, and the outcome of a negotiation between two."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import click
import msgspec

from rsocket_trio.cli.data import stdin_lines
from rsocket_trio.cli.exit_codes import FAILED
from rsocket_trio.cli.frame_json import unhex
from rsocket_trio.cli.frames import Answer, answer, object_lines
from rsocket_trio.cli.help_page import CommandGroup
from rsocket_trio.cli.options import checked
from rsocket_trio.errors import NegotiationFailed
from rsocket_trio.streamux.negotiation import Initialize, negotiate
from rsocket_trio.streamux_magic import VERSION

ABSENT: Final[Mapping[str, Any]] = {
    "version": VERSION,
    **dict.fromkeys(("qr", "qa"), False),
    **dict.fromkeys(("min_id", "max_id", "rec_id", "min_len", "max_len", "rec_len", "reserved"), 0),
}
"""The keys of a message in JSON, as they are called in ``Initialize``, and the values of absent ones."""


def hexadecimal(text: str) -> bytes:
    """Return the bytes of an argument in hex; anything else is a usage error."""
    return checked(unhex, text)[0]


@click.group(
    "streamux",
    cls=CommandGroup,
    examples=("streamux init 0106621a8e", "streamux negotiate 0106621a8e 010679d5ef"),
    codes={FAILED: "the negotiation failed, or a message could not be read"},
)
def command() -> None:
    """Look at how two Streamux peers agree."""


@command.command(
    "negotiate", examples=("streamux negotiate 0106621a8e 010679d5ef",), codes={FAILED: "the negotiation failed"}
)
@click.argument("a", type=hexadecimal, metavar="HEX")
@click.argument("b", type=hexadecimal, metavar="HEX")
@click.pass_context
def negotiate_command(ctx: click.Context, /, a: bytes, b: bytes) -> None:
    """Negotiate between two initialize messages in hex. Print JSON; the exit code is 1 if the negotiation fails."""
    ctx.exit(answer([negotiated(a, b)]))


@command.command(
    "init",
    examples=("streamux init 0106621a8e", "streamux init < messages.json"),
    codes={FAILED: "a message could not be read"},
)
@click.argument("message", type=hexadecimal, metavar="[HEX]", required=False)
@click.pass_context
def init_command(ctx: click.Context, /, message: bytes | None) -> None:
    """An initialize message in hex as JSON; or JSON from standard input, one message a line, as hex.

    Numbers that no peer may offer are shown and written as well.
    """
    ctx.exit(answer(encode_lines(stdin_lines()) if message is None else [shown(message)]))


def negotiated(a: bytes, b: bytes) -> Answer:
    """Return the outcome of two messages in JSON, also of a negotiation that fails."""
    names = ("id_bits", "length_bits", "header_size")
    try:
        terms, quick = negotiate(_offered("a", a), _offered("b", b))
    except NegotiationFailed as error:
        return json.dumps({"ok": False, **dict.fromkeys((*names, "quick")), "reason": str(error)}), False
    return json.dumps({"ok": True, **{name: getattr(terms, name) for name in names}, "quick": quick}), True


def shown(data: bytes) -> Answer:
    """Return the fields of a message in JSON, also of values that are invalid."""
    try:
        message = Initialize.decode(data)
    except NegotiationFailed as error:
        return _error(str(error))
    return json.dumps({key: getattr(message, key) for key in ABSENT}), True


def encode_lines(lines: Iterable[str]) -> Iterator[Answer]:
    """JSON objects, one message a line, as hex; blank lines are passed over."""
    return object_lines(lines, lambda content: _message(content).encode().hex(), _error)


def _offered(side: str, data: bytes) -> Initialize:
    """Return the message of one side. Raise ``NegotiationFailed`` naming the side if no peer may offer it."""
    try:
        message = Initialize.decode(data)
        message.check()
    except NegotiationFailed as error:
        raise NegotiationFailed(f"{side}: {error}") from error
    return message


def _message(content: Mapping[str, object]) -> Initialize:
    """Return the message that an object describes. Raise ``ValueError`` naming the key if it describes none."""
    for key in content.keys() - ABSENT.keys():
        raise ValueError(f"{key:.80}: an initialize message has no such field")
    return msgspec.convert({**ABSENT, **content}, Initialize)


def _error(text: str) -> Answer:
    return json.dumps({"error": text}), False
