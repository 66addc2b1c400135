"""``--json``: what an item is as one JSON object, with its metadata and without credentials."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from rsocket_trio import Payload, Responder, Setup
from rsocket_trio.cli.item_json import item_json
from rsocket_trio.metadata import (
    APPLICATION_JSON,
    AUTHENTICATION,
    COMPOSITE_METADATA,
    OCTET_STREAM,
    ROUTING,
    TEXT_PLAIN,
    BearerAuthentication,
    Entry,
    encode_authentication,
    encode_composite,
    encode_route,
)
from tests.cli.commands import hosting, run
from tests.rows import Rows
from tests.secret import SECRET, by_text

TOKEN = encode_authentication(BearerAuthentication(SECRET))
MASKED = {"mime": AUTHENTICATION, "data": "**", "encoding": "text"}

DATA: list[tuple[str, bytes, str, Any]] = [
    (OCTET_STREAM, b' {"a": [1, null]} ', "json", {"a": [1, None]}),
    (OCTET_STREAM, b"[1", "text", "[1"),
    (OCTET_STREAM, b"\xff\x00", "base64", "/wA="),
    (APPLICATION_JSON, b"42", "json", 42),
    (APPLICATION_JSON, b"NaN", "text", "NaN"),
    (APPLICATION_JSON, b"[" * 100_000 + b"]" * 100_000, "text", "[" * 100_000 + "]" * 100_000),
    (TEXT_PLAIN, b"[1]", "text", "[1]"),
]


def as_json(item: Payload, data_mime: str = OCTET_STREAM, metadata_mime: str = COMPOSITE_METADATA) -> dict[str, Any]:
    """Return the object of an item on a connection with these MIME types."""
    written = item_json(item, Setup(dialect="rsocket/1.0", data_mime=data_mime, metadata_mime=metadata_mime))
    assert written.isascii()
    assert b"\n" not in written
    found: dict[str, Any] = json.loads(written)
    return found


def test_data_is_text_json_or_base64() -> None:
    with Rows() as row:
        for mime, data, encoding, shown in DATA:
            with row(f"{mime} {data[:20]!r}"):
                assert as_json(Payload(data), mime) == {"data": shown, "encoding": encoding, "metadata": []}


def composite(*entries: tuple[str | int, bytes]) -> bytes:
    return encode_composite([Entry(mime, content) for mime, content in entries])


METADATA: list[tuple[str, bytes | None, str, list[dict[str, Any]]]] = [
    ("text", b"m", TEXT_PLAIN, [{"mime": TEXT_PLAIN, "data": "m", "encoding": "text"}]),
    (
        "entries",
        composite((TEXT_PLAIN, b"m"), (APPLICATION_JSON, b"1"), ("a/b", b"\xff"), (0x55, b"x")),
        COMPOSITE_METADATA,
        [
            {"mime": TEXT_PLAIN, "data": "m", "encoding": "text"},
            {"mime": APPLICATION_JSON, "data": 1, "encoding": "json"},
            {"mime": "a/b", "data": "/w==", "encoding": "base64"},
            {"mime": 0x55, "data": "x", "encoding": "text"},
        ],
    ),
    (
        "a route",
        composite((ROUTING, encode_route("echo"))),
        COMPOSITE_METADATA,
        [{"mime": ROUTING, "data": ["echo"], "encoding": "json"}],
    ),
    (
        "credentials by number",
        composite((AUTHENTICATION, TOKEN), (TEXT_PLAIN, b"m")),
        COMPOSITE_METADATA,
        [MASKED, {"mime": TEXT_PLAIN, "data": "m", "encoding": "text"}],
    ),
    ("credentials by text", by_text(TOKEN), COMPOSITE_METADATA, [MASKED]),
    ("credentials alone", TOKEN, AUTHENTICATION, [MASKED]),
    (
        "cut short",
        composite((AUTHENTICATION, TOKEN))[:-1],
        COMPOSITE_METADATA,
        [{"mime": COMPOSITE_METADATA, "data": "**", "encoding": "text"}],
    ),
    (
        "credentials of another type of connection",
        composite((AUTHENTICATION, TOKEN)),
        TEXT_PLAIN,
        [{"mime": TEXT_PLAIN, "data": "**", "encoding": "text"}],
    ),
]


def test_metadata_is_a_list_of_entries_without_credentials() -> None:
    with Rows() as row:
        for name, metadata, mime, shown in METADATA:
            with row(name):
                assert as_json(Payload(b"", metadata), metadata_mime=mime)["metadata"] == shown


def echoing() -> Responder:
    """Echoes of every kind."""
    responder = Responder()
    responder.request_response(lambda request: request)

    @responder.request_stream
    async def twice(request: Payload) -> AsyncIterator[Payload]:
        yield request
        yield Payload(b"\xff")

    @responder.request_channel
    async def echo(channel: Any) -> None:
        async for item in channel:
            await channel.send(item)

    return responder


async def test_request_stream_and_channel_write_an_object_a_line() -> None:
    words = ("--json", "--auth-bearer", SECRET, "--metadata", "m", "--data", '{"a":1}')
    metadata = [MASKED, {"mime": TEXT_PLAIN, "data": "m", "encoding": "text"}]
    first = {"data": {"a": 1}, "encoding": "json", "metadata": metadata}
    async with hosting(echoing()) as uri:
        shown = {command: await run(command, uri, *words) for command in ("request", "stream", "channel")}
        one = await run("stream", uri, *words, "--take", "1")
        quiet = await run("request", uri, *words, "--quiet")

    assert [(each.code, each.stderr) for each in (*shown.values(), one, quiet)] == [(0, "")] * 5
    items = {command: [json.loads(line) for line in each.stdout.splitlines()] for command, each in shown.items()}
    assert items == {
        "request": [first],
        "stream": [first, {"data": "/w==", "encoding": "base64", "metadata": []}],
        "channel": [{"data": {"a": 1}, "encoding": "json", "metadata": []}],
    }
    assert len(one.stdout.splitlines()) == 1
    assert quiet.stdout == ""
