"""Credentials of SETUP and of requests, whole and in fragments, are in no log line, no error and no capture."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    Connection,
    Invalid,
    Payload,
    RejectedSetup,
    Responder,
    Setup,
    open_connection_over,
    serve_stream,
)
from rsocket_trio.capture import Capture
from rsocket_trio.errors import StreamError
from rsocket_trio.metadata import (
    AUTHENTICATION,
    COMPOSITE_METADATA,
    BearerAuthentication,
    Entry,
    SimpleAuthentication,
    encode_authentication,
    encode_composite,
)
from rsocket_trio.services import Call
from tests.capture.reading import read
from tests.each_row import each_row
from tests.secret import SECRET, by_text, shows

TOKEN = encode_authentication(BearerAuthentication(SECRET))
FORMS = [encode_composite([Entry(AUTHENTICATION, TOKEN)]), by_text(TOKEN)]
both_forms = pytest.mark.parametrize("entry", FORMS, ids=["by number", "by text"])


def responder() -> Responder:
    """Fail in every way, with what was sent at hand."""
    made = Responder()

    @made.setup
    def admit(setup: Setup, connection: Connection) -> None:
        logging.getLogger("rsocket_trio").debug("%s", setup)
        if setup.payload.data == b"refuse":
            raise RejectedSetup("not allowed")

    @made.request_response("fail")
    def fail(request: Payload) -> bytes:
        logging.getLogger("rsocket_trio").debug("%s", request)
        raise ValueError(request)

    @made.request_stream("fail")
    async def broken(request: Payload) -> AsyncIterator[bytes]:
        yield b"one"
        raise ValueError(request)

    @made.metadata_push
    def push(metadata: bytes) -> None:
        raise KeyError("no")

    return made


@asynccontextmanager
async def connected(entry: bytes, data: bytes = b"", **options: Any) -> AsyncIterator[Connection]:
    """Connect with these credentials in the SETUP."""
    ours, theirs = trio.testing.memory_stream_pair()
    capture = options.pop("capture", None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, responder(), theirs, capture=capture))
        async with open_connection_over(
            ours,
            setup=Payload(data, entry),
            metadata_mime=COMPOSITE_METADATA,
            fragment_size=64,
            capture=capture,
            **options,
        ) as connection:
            yield connection


async def requests(connection: Connection, entry: bytes) -> list[StreamError]:
    """Make requests with these credentials, all of which fail, some because the metadata is malformed."""
    errors = []
    for metadata, route in [(entry, "fail"), (entry, "none"), (entry, None), (entry[:-1], "fail")]:
        with pytest.raises(StreamError) as caught:
            await connection.request_response(Payload(b"data", metadata), route=route)
        errors.append(caught.value)
    async with connection.request_stream(Payload(b"", entry), route="fail") as items:
        await anext(items)
        with pytest.raises(StreamError) as caught:
            await anext(items)
        errors.append(caught.value)
    await connection.fire_and_forget(Payload(b"", entry), route="none")
    await connection.metadata_push(entry)
    return errors


@both_forms
async def test_no_log_line_and_no_error_shows_credentials(
    entry: bytes, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with connected(entry) as connection:
            errors = await requests(connection, entry)
            await trio.testing.wait_all_tasks_blocked()

    assert [type(error) for error in errors].count(Invalid) >= 1
    for error in errors:
        assert not shows(f"{error!r} {error} {error.data!r}")
    assert "metadata=<" in caplog.text, "the handlers have logged what they got"
    assert "Traceback" in caplog.text
    assert not shows(caplog.text)
    for record in caplog.records:
        assert not shows(repr(record.args))


KINDS: dict[str, Any] = {"bearer": BearerAuthentication(SECRET), "simple": SimpleAuthentication("ada", SECRET)}


def doubtful(shown: list[str]) -> Responder:
    """Refuse credentials in every way that says what they are, and write down what is at hand meanwhile."""
    made = Responder()

    @made.authenticate
    def find(credentials: Any, where: Setup | Call) -> str | None:
        shown.append(f"{credentials!r} {where!r}")
        route = where.route if isinstance(where, Call) else "setup"
        if route == "setup":
            raise RuntimeError(f"{encode_authentication(credentials)!r} is nobody's")
        if route == "none":
            return None
        if route == "group":
            raise ExceptionGroup(SECRET, [KeyError(SECRET), OSError(SECRET)])
        try:
            raise LookupError(SECRET)
        except LookupError as error:
            raise KeyError(credentials) from error

    @made.around
    async def note(call: Call) -> AsyncIterator[None]:
        shown.append(f"{call!r} {call.entries!r} {call.connection!r}")
        try:
            yield
        except Exception as error:
            shown.append(said_by(error))
            raise ValueError("replaced") from error

    for route in ("none", "group", "raise"):
        made.request_response(route)(lambda request: b"")
    return made


def said_by(error: BaseException) -> str:
    """Return all that an error, those behind it and their tracebacks show."""
    behind = [each for each in (error.__cause__, error.__context__) if each is not None]
    inside = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []
    shown = "".join(traceback.format_exception(error))
    return " ".join([repr(error), shown, *map(said_by, behind), *map(said_by, inside)])


@each_row("kind", KINDS)
async def test_refused_credentials_of_a_request_are_shown_nowhere(
    kind: str, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    shown: list[str] = []
    ours, theirs = trio.testing.memory_stream_pair()

    async def look(call: Call) -> AsyncIterator[None]:
        shown.append(f"{call!r} {call.entries!r} {call.connection._engine.calls!r}")
        yield

    with caplog.at_level(logging.DEBUG):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_stream, doubtful(shown), theirs)
            async with open_connection_over(ours, around=[look]) as connection:
                for route in "none", "group", "raise":
                    with pytest.raises(StreamError) as caught:
                        await connection.request_response(route=route, auth=KINDS[kind])
                    shown.append(f"{said_by(caught.value)} {caught.value.data!r}")

    assert len(shown) == 15
    assert caplog.text.count("the credentials are refused") == 2
    assert caplog.text.count("Traceback") >= 1, "that of the interceptor"
    assert not any(map(shows, shown))
    assert not shows(caplog.text)


@each_row("kind", KINDS)
async def test_refused_credentials_of_a_setup_are_shown_nowhere(
    kind: str, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    shown: list[str] = []
    ours, theirs = trio.testing.memory_stream_pair()

    async def ask() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_stream, doubtful(shown), theirs)
            async with open_connection_over(ours, auth=KINDS[kind]) as connection:
                shown.append(f"{connection!r} {connection.setup!r}")
                await connection.request_response(route="none")

    with caplog.at_level(logging.DEBUG), pytest.raises((RejectedSetup, ExceptionGroup)) as caught:
        await ask()

    assert "the credentials are refused" in caplog.text
    assert not shows(f"{said_by(caught.value)} {caplog.text} {shown}")


@each_row(
    ("auth", "says"),
    [
        (BearerAuthentication(SECRET + "\udc80"), "token is not Unicode"),
        (SimpleAuthentication("ada", SECRET + "\udc80"), "password is not Unicode"),
        (SECRET, "not str"),
        (lambda: SECRET, "not str"),
    ],
    ids=["token", "password", "text", "function"],
)
async def test_credentials_that_cannot_be_written_are_shown_nowhere(auth: Any, says: str) -> None:
    errors: list[Exception] = []
    with pytest.raises((ValueError, TypeError), match=says) as opening:
        async with open_connection_over(trio.testing.memory_stream_pair()[0], auth=auth):
            pass
    errors.append(opening.value)
    async with connected(FORMS[0]) as connection:
        with pytest.raises((ValueError, TypeError), match=says) as asking:
            await connection.request_response(auth=auth)
        errors.append(asking.value)

    assert not any(shows(said_by(error)) for error in errors)


def contents(directory: Path) -> list[str]:
    """Return the bytes of all files of a capture, as text."""
    return [path.read_bytes().decode("latin-1") for path in directory.rglob("part-*")]


@both_forms
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
async def test_a_capture_holds_no_credentials(entry: bytes, format: str, tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with connected(entry, capture=(capture := Capture(tmp_path, format=format))) as connection:
            await requests(connection, entry)
        await trio.to_thread.run_sync(capture.close)

    rows = {table: read(tmp_path, table) for table in ("frames", "interactions", "connections")}
    assert all(rows.values())
    assert {row["route"] for row in rows["interactions"]} >= {"fail", "none"}
    assert any((row["fragments"] or 0) > 1 for row in rows["frames"]), "the requests went in fragments"
    assert not shows(repr(rows))
    assert not any(map(shows, contents(tmp_path)))
