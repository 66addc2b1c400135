"""The command ``record``: keeps the items of a live stream in a log, and serves the log as a source."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import attrs
import click
import trio

from rsocket_trio import Canceled, ConnectionClosed, ConnectionLost, Payload, Responder, connect_forever, serve
from rsocket_trio.cli.client_command import Ask
from rsocket_trio.cli.connections import LISTENING, Options, listening
from rsocket_trio.cli.data import whole
from rsocket_trio.cli.exit_codes import CANNOT_CONNECT, ENDED, FAILED, MEANINGS, TIMED_OUT, Failure
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.interrupts import INTERRUPTED
from rsocket_trio.cli.options import NUMBER, OF_ONE_RUN, SECONDS, Row, add_rows, our_options, uri
from rsocket_trio.cli.serve import serve_until_stopped
from rsocket_trio.client.reconnecting import BACKOFF, ReconnectingClient
from rsocket_trio.errors import GRACE_IS_OVER, RejectedResume, StreamError
from rsocket_trio.replay import CorruptLog, Element, Log, Retention, add_source

logger = logging.getLogger(__name__)

STREAM, CHANNEL = "stream", "channel"
MAX_STOPPING_SECONDS = 2.0
"""Seconds that readers get at the end to finish their ranges."""
LOST = (ConnectionLost, ConnectionClosed, RejectedResume)
"""Errors of a stream whose connection is gone; ``connect_forever`` makes the next one, and paces that."""
NOT_HERE: Final = (*OF_ONE_RUN, "route", "data", "take", "limit_rate")
"""Options of the client commands that this command has not, or with another meaning."""
# fmt: off
ROWS: Final = (
    Row("path",         "--to", "The file; one that is there goes on.",
                        {"required": True, "type": click.Path(path_type=Path), "metavar": "FILE"}),
    Row("interaction",  "--interaction", "The interaction of the request; of a channel this side sends the opening "
                        "only.", {"type": click.Choice((STREAM, CHANNEL)), "default": STREAM, "show_default": True}),
    Row("text",         "-d --data", "The data of the request; @FILE is a file, - standard input.",
                        {"metavar": "TEXT|@FILE|-"}),
    Row("route_as",     "--route-as", "The route that readers ask for, if not ROUTE.", {"metavar": "NAME"}),
    Row("keep_seconds", "--keep-seconds", "Drop rows that are older; by default, none for its age.",
                        {"type": SECONDS, "metavar": "S"}),
    Row("keep_bytes",   "--keep-bytes", "Drop the oldest rows above this size; by default none.",
                        {"type": click.IntRange(min=1), "metavar": "N"}),
    Row("credit",       "--credit", "Items that the server may send ahead of the file (256).", NUMBER),
)
# fmt: on


@attrs.define(eq=False)
class StreamRecorder:
    """Asks for a stream once on each connection, and appends its items to a log.

    The server has the credit of ``ask``, and gets more only for items that are committed. So no more than these are
    lost with a connection, or with this process. ``name`` stands in log lines.
    """

    log: Log
    request: Payload
    ask: Ask
    name: str
    is_channel: bool
    position: int = attrs.field(default=attrs.Factory(lambda self: self.log.bounds(0)[1], takes_self=True))
    """The position of the next item."""
    items: int = 0
    """Items that were committed since the start."""
    reconnects: int = 0
    """Connections that broke."""
    renewed: trio.Event = attrs.field(factory=trio.Event)
    """Set by the next connection, on which a stream that has completed is asked for again."""

    def on_state(self, state: str) -> None:
        """Note that there is another connection, or that there will be none."""
        if state in ("connected", "closed"):
            self.renewed.set()

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
                    logger.warning("%s: failed behind %d items: %s: %s", self.name, self.items, kind, error)
                failures = 0 if self.items > before else failures + 1
                await trio.sleep(BACKOFF.delay(failures, random.random()))
            else:
                logger.warning(
                    "%s: complete behind %d items; it is asked for again on the next connection", self.name, self.items
                )
                await self.renewed.wait()

    def _note_loss(self, error: Exception) -> None:
        self.reconnects += 1
        logger.warning(
            "%s: the connection broke behind %d items (reconnect %d), up to %d that were on their way are lost: %s",
            *(self.name, self.items, self.reconnects, self.ask.credit, error),
        )

    async def _take(self, client: ReconnectingClient) -> None:
        """Append the items of one stream, up to its end."""
        credit, owed = self.ask.credit, 0
        ask = client.request_channel if self.is_channel else client.request_stream
        async with ask(self.request, route=self.ask.route, initial_request_n=credit, refill=False) as items:
            self.renewed = trio.Event()
            logger.info("%s: recording from position %d on", self.name, self.position)
            while batch := await items.receive_batch():
                await self._append(batch)
                owed += len(batch)
                # In halves, so that a REQUEST_N is rare.
                if owed >= max(credit // 2, 1):
                    items.request_n(owed)
                    owed = 0

    async def _append(self, batch: list[Payload]) -> None:
        elements = [Element(payload.data, payload.metadata) for payload in batch]
        with failures_of(self.log):
            # Only where this process has written last: of two recorders of one file one ends, and no row comes twice.
            await self.log.append_all({0: elements}, at={0: self.position})
        self.position += len(batch)
        self.items += len(batch)


@contextmanager
def failures_of(log: Log) -> Iterator[None]:
    """Raise the errors of a log as a ``Failure`` that names its file."""
    try:
        yield
    except CorruptLog as error:
        raise Failure(str(error)) from error
    except (OSError, ValueError) as error:
        raise Failure(f"{log.path}: {getattr(error, 'strerror', None) or error}") from error


async def record(
    uri: str,
    options: Options,
    name: str,
    log: Log,
    ask: Ask,
    serve_source: Callable[..., Awaitable[object]],
    *,
    is_channel: bool,
    task_status: trio.TaskStatus[list[str]],
) -> None:
    """Keep the stream that ``ask`` asks for in the log, while ``serve_source`` serves it.

    Raise as ``StreamRecorder.run`` does, and ``Failure`` if the log can't be opened.
    """
    request = Payload(await whole(ask.data), ask.content)
    with failures_of(log):
        await log.open()
    async with log, trio.open_nursery() as nursery:
        task_status.started(await nursery.start(serve_source))
        recorder = StreamRecorder(log, request, ask, name, is_channel=is_channel)
        async with connect_forever(uri, on_state=recorder.on_state, **options) as client:
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
def command(ctx: click.Context, /, route: str, **parameters: Any) -> None:
    """Keep the live stream ROUTE of the server at URI in a file, and serve it as a source that can be read again.

    Connects again whenever the connection is lost. The server gets credit only for rows that are in the file, so at
    most --credit items are lost with a connection. What all named readers have acknowledged is dropped, without named
    readers nothing, and beyond that what --keep-seconds and --keep-bytes say.
    """
    own = SimpleNamespace(**{row.parameter: parameters.pop(row.parameter) for row in ROWS})
    addresses, ssl_context = listening(ctx, parameters)
    ask = Ask(route=route, data=() if own.text is None else (own.text,), limit_rate=own.credit, log=None, **parameters)
    options, ask = ask.planned()
    log, responder = Log(own.path), Responder()
    retention = Retention(own.keep_seconds, own.keep_bytes)
    add_source(responder, own.route_as or route, log, retention=retention)
    serve_source = partial(serve, responder, addresses, ssl_context=ssl_context, grace=MAX_STOPPING_SECONDS)
    name, is_channel = f"{route} of {ask.uri}", own.interaction == CHANNEL
    keep = partial(record, ask.uri, options, name, log, ask, serve_source, is_channel=is_channel)
    serve_until_stopped(keep, lambda: len(responder.routes))
