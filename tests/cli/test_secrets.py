"""Credentials are masked in the lines of ``--debug`` and in the bytes of ``--hex``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from rsocket_trio import Payload, Responder, open_connection
from rsocket_trio.cli.watching import RECEIVED, SENT, Secrets, Watcher, hexed
from rsocket_trio.metadata import (
    APPLICATION_JSON,
    AUTHENTICATION,
    COMPOSITE_METADATA,
    BearerAuthentication,
    Entry,
    encode_authentication,
    encode_composite,
)
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.dialect import RSOCKET_1_0, Dialect
from rsocket_trio.rsocket.frames import Frame, PayloadFrame, RequestFrame, RequestNFrame, SetupFrame
from tests.cli.commands import PATIENCE, hosting, run
from tests.each_row import each_row
from tests.secret import SECRET, by_text, shows

TOKEN = encode_authentication(BearerAuthentication(SECRET))
BY_NUMBER = encode_composite([Entry(AUTHENTICATION, TOKEN)])
BY_TEXT = by_text(TOKEN)
ANSWERS = {"number": BY_NUMBER, "text": BY_TEXT}


@asynccontextmanager
async def serving(uri: str = "tcp://127.0.0.1:0", fragment_size: int = 0) -> AsyncIterator[str]:
    """Serve answers whose metadata has an authentication entry, by number or by text, as their route says."""
    responder = Responder()
    for name, metadata in ANSWERS.items():
        responder.request_response(name)(lambda request, metadata=metadata: Payload(b"answer", metadata))
    options: Any = {"fragment_size": fragment_size} if fragment_size else {}
    async with hosting(responder, uri, **options) as bound:
        yield bound


CREDENTIALS = [
    ["--auth-bearer", SECRET],
    ["-u", f"ann:{SECRET}"],
    ["--setup-metadata", f"bearer:{SECRET}", "--setup-metadata-mime", AUTHENTICATION],
]


@pytest.mark.parametrize("credentials", CREDENTIALS, ids=["bearer", "simple", "setup"])
async def test_a_command_shows_no_credentials(credentials: list[str]) -> None:
    async with serving(fragment_size=64) as uri:
        words = ["request", uri, "-r", "text", *credentials, "--debug", "--hex", "--log", "debug"]
        result = await run(*words)

    assert (result.code, result.stdout) == (0, "answer\n")
    lines = result.stderr.splitlines()
    assert [line[:2] for line in lines].count(RECEIVED) > 1, "the answer came in fragments"
    assert "*" * 8 in result.stderr
    assert not shows(result.stderr)


@each_row("fragment_size", [64, 16_000])
@each_row("uri", ["tcp://127.0.0.1:0", "ws://127.0.0.1:0/", "h2://127.0.0.1:0/"])
@each_row("form", ["number", "text"])
async def test_what_both_sides_send_is_masked_whole_and_in_fragments(
    form: str, uri: str, fragment_size: int, capfd: pytest.CaptureFixture[str]
) -> None:
    metadata = ANSWERS[form]
    with trio.fail_after(PATIENCE):
        async with (
            serving(uri, fragment_size) as bound,
            open_connection(
                bound,
                setup=Payload(b"", metadata),
                metadata_mime=COMPOSITE_METADATA,
                fragment_size=fragment_size,
                capture=Watcher(RSOCKET_1_0, in_hex=True),
            ) as connection,
        ):
            answer = await connection.request_response(Payload(b"question", metadata), route=form)

    assert answer == Payload(b"answer", metadata)
    shown = capfd.readouterr().err
    assert shown.count("\n-> ") >= 1
    assert b"question".hex() in shown
    assert b"answer".hex() in shown
    assert not shows(shown)


def test_a_fragment_is_masked_whatever_comes_in_between() -> None:
    secrets = Secrets()
    frames: list[Frame] = [
        RequestFrame(1, Interaction.REQUEST_STREAM, Payload(b"", BY_TEXT[:20]), 7, follows=True),
        RequestNFrame(1, 5),
        PayloadFrame(3, Payload(b"other", b"plain")),
        PayloadFrame(1, Payload(b"", BY_TEXT[20:100]), follows=True),
        PayloadFrame(1, Payload(b"", BY_TEXT[100:])),
        PayloadFrame(1, Payload(b"item", b"plain")),
    ]
    shown = []
    for frame in frames:
        data = RSOCKET_1_0.codec.encode(frame)
        shown.append(hexed(data, secrets.find(RSOCKET_1_0, SENT, data)))

    assert not shows("".join(shown))
    assert [b"plain".hex() in line for line in shown] == [False, False, True, False, False, True]


def test_the_setup_says_that_all_metadata_is_secret() -> None:
    secrets = Secrets()
    setup = SetupFrame(1, 0, 20, 90, AUTHENTICATION, APPLICATION_JSON, Payload("", SECRET))
    answer = PayloadFrame(1, Payload("", SECRET))
    said: list[tuple[str, Frame]] = [(SENT, setup), (RECEIVED, answer)]
    for arrow, frame in said:
        data = RSOCKET_1_0.codec.encode(frame)
        assert not shows(hexed(data, secrets.find(RSOCKET_1_0, arrow, data)))


@pytest.mark.parametrize("dialect", [None, RSOCKET_1_0])
@pytest.mark.parametrize("metadata", ANSWERS.values(), ids=ANSWERS)
def test_bytes_that_are_no_frame_are_masked_if_credentials_are_among_them(
    dialect: Dialect | None, metadata: bytes
) -> None:
    assert Secrets().find(dialect, SENT, b"\0" + metadata) == range(len(metadata) + 1)
    assert not Secrets().find(dialect, SENT, b"\0\0")
