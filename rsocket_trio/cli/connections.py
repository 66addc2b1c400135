"""Connections of commands: opening one, the options of listening, and ``--capture``."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import click
import trio

from rsocket_trio import Connection, ConnectionLost, open_connection
from rsocket_trio.capture import Capture
from rsocket_trio.cli.exit_codes import complain
from rsocket_trio.cli.options import LEVELS, MANY, PEM, Row, uri
from rsocket_trio.cli.output import show_log
from rsocket_trio.client.options import ConnectionOptions
from rsocket_trio.transports.schemes import parse_uri
from rsocket_trio.transports.sockets import server_context

logger = logging.getLogger(__name__)

RETRY_INTERVAL = 1.0
"""Seconds between two attempts to connect."""
# fmt: off
LISTENING: Final = (
    Row("listen",       "--listen", "Where to serve it; may be given several times.",
                        {**MANY, "required": True, "type": uri, "metavar": "URI"}),
    Row("listen_cert",  "--listen-cert", "The certificate for tls, wss and h2s of --listen, PEM.", PEM),
    Row("listen_key",   "--listen-key", "Its key, PEM, if not in the same file.", PEM),
    Row("level",        "--log", "Show log lines from this level on.",
                        {"type": click.Choice(LEVELS), "default": "info"}),
)
"""Options of commands that are servers and clients at once."""
# fmt: on

Options: TypeAlias = ConnectionOptions[Any, Any]


@asynccontextmanager
async def connected(uri: str, options: Options, retries: int = 0) -> AsyncIterator[Connection]:
    """Open the connection for the block. Raise ``ConnectionLost`` if every attempt to connect failed."""
    for tries_left in range(retries, -1, -1):
        async with AsyncExitStack() as stack:
            try:
                connection = await stack.enter_async_context(open_connection(uri, **options))
            except ConnectionLost as error:
                if not tries_left:
                    raise
                logger.info("%s; trying again, %d times at most", error, tries_left)
            else:
                yield connection
                return
        await trio.sleep(RETRY_INTERVAL)


@contextmanager
def captured(directory: str | None, format: str = "parquet") -> Iterator[Capture | None]:
    """Provide a capture into that directory for as long as the block; ``None`` without a directory.

    Raise ``OSError`` naming a directory that can't be written to, ``ModuleNotFoundError`` if pyarrow is missing.
    """
    if directory is None:
        yield None
        return
    capture = Capture(directory, format=format)
    try:
        yield capture
    finally:
        capture.close()
        if capture.dropped or capture.error is not None:
            why = f": {capture.error}" if capture.error is not None else ""
            complain(f"rsocket-trio: the capture lacks {capture.dropped} frames{why}")


def listening(ctx: click.Context, parameters: dict[str, Any]) -> tuple[list[str], Callable[[], ssl.SSLContext] | None]:
    """Take the ``LISTENING`` options out of the parameters. Return the addresses, and what makes the TLS context.

    Log lines are shown from here on. Raise ``UsageError`` for an address that lacks a certificate.
    """
    addresses, cert, key, level = (parameters.pop(row.parameter) for row in LISTENING)
    make_context = tls_maker(ctx, addresses, cert, key, option="--listen-cert")
    show_log(level)
    return list(addresses), make_context


def tls_maker(
    ctx: click.Context, uris: Sequence[str], cert: str | None, key: str | None, ca: str | None = None, *, option: str
) -> Callable[[], ssl.SSLContext] | None:
    """Return what makes the TLS context of a server, if there is one, of the certificate that ``option`` names.

    Raise ``UsageError`` for an address that needs a certificate where none is given.
    """
    if cert is not None:
        return partial(server_context, cert, key, ca)
    for address in uris:
        if parse_uri(address).uses_tls:
            raise click.UsageError(f"{address} needs a certificate: {option}", ctx)
    return None
