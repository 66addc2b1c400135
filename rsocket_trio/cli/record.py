"""The command ``record``: keeps the items of a live stream in a log, and serves the log as a source."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import click
import trio

from rsocket_trio import Canceled, ConnectionClosed, ConnectionLost, Payload, Responder, connect_forever, serve
from rsocket_trio.cli.client_command import Ask, Wish
from rsocket_trio.cli.connections import LISTENING, TLS_PARAMETERS, Dial, listening_tls
from rsocket_trio.cli.data import whole
from rsocket_trio.cli.exit_codes import CANNOT_CONNECT, ENDED, FAILED, MEANINGS, TIMED_OUT, Failure, report
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.interrupts import INTERRUPTED
from rsocket_trio.cli.options import (
    COUNT,
    SECONDS,
    Row,
    add_rows,
    our_options,
    uri,
)
from rsocket_trio.cli.output import show_log
from rsocket_trio.cli.serve import serve_until_stopped
from rsocket_trio.client.reconnecting import BACKOFF, ReconnectingClient, ReconnectOptions
from rsocket_trio.errors import GRACE_IS_OVER, RejectedResume, StreamError
from rsocket_trio.replay import CorruptLog, Element, Log, Retention, add_source

logger = logging.getLogger(__name__)

STREAM, CHANNEL = "stream", "channel"
GRACE = 2.0
"""Seconds that readers get at the end to finish their ranges."""
LOST = (ConnectionLost, ConnectionClosed, RejectedResume)
"""Errors of a stream whose connection is gone; ``connect_forever`` makes the next one, and paces that."""
NOT_HERE: Final = (
    *("route", "data", "take", "limit_rate", "timeout", "retries"),
    *("capture", "debug", "hexadecimal", "quiet", "log"),
)
"""Options of the client commands that this command has not, or with another meaning."""
# fmt: off
ROWS: Final = (
    Row("path",         "--to", "The file; one that is there goes on.",
                        {"required": True, "type": click.Path(path_type=Path), "metavar": "FILE"}),
    Row("interaction",  "--interaction", "The interaction of the request; of a channel this side sends the opening "
                        "only.", {"type": click.Choice((STREAM, CHANNEL)), "default": STREAM, "show_default": True}),
    Row("data",         "-d --data", "The data of the request; @FILE is a file, - standard input.",
                        {"metavar": "TEXT|@FILE|-"}),
    Row("route_as",     "--route-as", "The route that readers ask for, if not ROUTE.", {"metavar": "NAME"}),
    Row("keep_seconds", "--keep-seconds", "Drop rows that are older; by default, none for its age.",
                        {"type": SECONDS, "metavar": "S"}),
    Row("keep_bytes",   "--keep-bytes", "Drop the oldest rows above this size; by default none.",
                        {"type": click.IntRange(min=1), "metavar": "N"}),
    Row("credit",       "--credit", "Items that the server may send ahead of the file (256).",
                        {"type": COUNT, "metavar": "N"}),
)
# fmt: on


class StreamRecorder:
    """Asks for a stream once on each connection, and appends its items to a log.

    The server has the credit of ``wish``, and gets more only for items that are committed. So no more than these are
    lost with a connection, or with this process. ``name`` stands in log lines.
    """

    def __init__(self, log: Log, request: Payload, wish: Wish, name: str, *, is_channel: bool) -> None:
        self._log = log
        self._request = request
        self._wish = wish
        self._is_channel = is_channel
        self._name = name
        self._position = log.bounds(0)[1]
        self._renewed = trio.Event()
        self.items = 0
        """Items that were committed since the start."""
        self.reconnects = 0
        """Connections that broke."""

    def on_state(self, state: str) -> None:
        """Note that there is another connection, or that there will be none."""
        if state in ("connected", "closed"):
            # Wakes ``run``, which waits for it behind a stream that has completed.
            self._renewed.set()

    async def run(self, client: ReconnectingClient) -> None:
        """Record until cancelled.

        Raise the refusal of a server, its error if it answers the first request with one, and ``Failure`` if the log
        can't be written.
        """
        failures = 0
        while True:
            before = self.items
            try:
                await self._take(client)
            except LOST as error:
                self._note_loss(error)
            except StreamError as error:
                if error.text == GRACE_IS_OVER:
                    self._note_loss(error)
                elif not self.items and not isinstance(error, Canceled):
                    raise
                else:
                    kind = type(error).__name__
                    logger.warning("%s: failed behind %d items: %s: %s", self._name, self.items, kind, error)
                failures = 0 if self.items > before else failures + 1
                await trio.sleep(BACKOFF.delay(failures, random.random()))
            else:
                logger.warning(
                    "%s: complete behind %d items; it is asked for again on the next connection", self._name, self.items
                )
                await self._renewed.wait()

    def _note_loss(self, error: Exception) -> None:
        self.reconnects += 1
        logger.warning(
            "%s: the connection broke behind %d items (reconnect %d), up to %d that were on their way are lost: %s",
            *(self._name, self.items, self.reconnects, self._wish.credit, error),
        )

    async def _take(self, client: ReconnectingClient) -> None:
        """Append the items of one stream, up to its end."""
        credit, owed = self._wish.credit, 0
        ask = client.request_channel if self._is_channel else client.request_stream
        async with ask(self._request, route=self._wish.route, initial_request_n=credit, refill=False) as items:
            self._renewed = trio.Event()
            logger.info("%s: recording from position %d on", self._name, self._position)
            while batch := await items.receive_batch():
                await self._append(batch)
                owed += len(batch)
                # In halves, so that a REQUEST_N is rare.
                if owed >= max(credit // 2, 1):
                    items.request_n(owed)
                    owed = 0

    async def _append(self, batch: list[Payload]) -> None:
        elements = [Element(payload.data, payload.metadata) for payload in batch]
        with failures_of(self._log):
            # Only where this process has written last: of two recorders of one file one ends, and no row comes twice.
            await self._log.append_all({0: elements}, at={0: self._position})
        self._position += len(batch)
        self.items += len(batch)


@contextmanager
def failures_of(log: Log) -> Iterator[None]:
    """Raise the errors of a log as a ``Failure`` that names its file."""
    try:
        yield
    except CorruptLog as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"{log.path}: {error.strerror or error}") from error
    except ValueError as error:
        raise Failure(f"{log.path}: {error}") from error


async def record(
    name: str,
    log: Log,
    dial: Dial,
    wish: Wish,
    serve_source: Callable[..., Awaitable[object]],
    *,
    is_channel: bool,
    task_status: trio.TaskStatus[list[str]],
) -> None:
    """Keep the stream that ``wish`` asks for in the log, while ``serve_source`` serves it.

    Raise as ``StreamRecorder.run`` does, and ``Failure`` if the log can't be opened.
    """
    request = Payload(await whole(wish.data), wish.metadata)
    with failures_of(log):
        await log.open()
    async with log, trio.open_nursery() as nursery:
        task_status.started(await nursery.start(serve_source))
        recorder = StreamRecorder(log, request, wish, name, is_channel=is_channel)
        terms = cast("ReconnectOptions", dial.options)
        async with connect_forever(dial.uri, on_state=recorder.on_state, **terms) as client:
            await recorder.run(client)


@click.command(
    "record",
    cls=Command,
    examples=(
        "record tcp://prices.example:7000 ticks --to ticks.log --listen tcp://127.0.0.1:7878",
        "record wss://prices.example/rsocket ticks --to ticks.log --listen tcp://127.0.0.1:7878 --keep-seconds 604800",
    ),
    codes={
        **{code: meaning for code, meaning in MEANINGS.items() if code not in (CANNOT_CONNECT, TIMED_OUT)},
        0: "SIGINT or SIGTERM ended it",
        FAILED: "it cannot listen, or the file cannot be written or is no log",
        INTERRUPTED: "Ctrl-C before it served",
        ENDED: "SIGTERM before it served",
    },
)
@click.argument("uri", type=uri)
@click.argument("route")
@partial(add_rows, rows=(*ROWS, *LISTENING))
@partial(our_options, without=NOT_HERE)
@click.pass_context
def command(ctx: click.Context, /, route: str, data: str | None, **parameters: Any) -> None:
    """Keep the live stream ROUTE of the server at URI in a file, and serve it as a source that can be read again.

    Connects again whenever the connection is lost. The server gets credit only for rows that are in the file, so at
    most --credit items are lost with a connection. What all named readers have acknowledged is dropped, without named
    readers nothing, and beyond that what --keep-seconds and --keep-bytes say.
    """
    own = SimpleNamespace(**{row.parameter: parameters.pop(row.parameter) for row in ROWS if row.parameter != "data"})
    listen, level, ssl_context = listening_tls(ctx, {name: parameters.pop(name) for name in TLS_PARAMETERS})
    show_log(level)
    ask = Ask(route=route, data=() if data is None else (data,), limit_rate=own.credit, log=None, **parameters)
    try:
        dial, wish = ask.planned()
        log, responder = Log(own.path), Responder()
        retention = Retention(own.keep_seconds, own.keep_bytes)
        add_source(responder, own.route_as or route, log, retention=retention)
        serve_source = partial(serve, responder, list(listen), ssl_context=ssl_context, grace=GRACE)
        name, is_channel = f"{route} of {dial.uri}", own.interaction == CHANNEL
        keep = partial(record, name, log, dial, wish, serve_source, is_channel=is_channel)
        serve_until_stopped(keep, lambda: len(responder.routes))
    except BaseException as error:
        ctx.exit(report(error, stacktrace=ask.stacktrace))
