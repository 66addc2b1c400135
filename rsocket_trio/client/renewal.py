"""Checks the terms of a reconnecting client and renews setup and headers for each new connection."""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypedDict

from rsocket_trio.client.open import DIALECT, open_connection
from rsocket_trio.connection.protocols import checked_peer
from rsocket_trio.connection.recording import CaptureLike
from rsocket_trio.connection.resumption import is_absence
from rsocket_trio.errors import ConnectionLost
from rsocket_trio.limits import Limits
from rsocket_trio.payload import PayloadLike, as_payload
from rsocket_trio.responder import Responder
from rsocket_trio.streamux.options import StreamuxOptions
from rsocket_trio.terms import Keepalive, ResumeOptions
from rsocket_trio.transports.connect import HeadersLike, as_headers
from rsocket_trio.transports.schemes import parse_uri


class ConnectionTerms(TypedDict, total=False):
    """The arguments of ``open_connection`` except the URI; ``setup`` and ``headers`` may be functions, async or not."""

    dialect: str
    responder: Responder | None
    setup: PayloadLike | Callable[[], PayloadLike | Awaitable[PayloadLike]]
    data_mime: str
    metadata_mime: str
    keepalive: Keepalive
    lease: bool
    strict: bool
    resume: ResumeOptions | None
    limits: Limits
    fragment_size: int
    ssl_context: ssl.SSLContext | None
    headers: HeadersLike | Callable[[], HeadersLike | Awaitable[HeadersLike]]
    quirks: Iterable[str]
    peer: str | None
    entries: Iterable[object]
    streamux: StreamuxOptions | None
    capture: CaptureLike | None


RENEWED: Final[dict[str, Callable[[Any], object]]] = {"setup": as_payload, "headers": as_headers}
"""The terms that a function may give for each connection, with the converter of its result."""


def checked(uri: str, terms: ConnectionTerms) -> ConnectionTerms:
    """Return the terms, usable more than once. Raise ``ValueError`` and ``TypeError`` for terms that are invalid."""
    parse_uri(uri)
    inspect.signature(open_connection).bind(uri, **terms)
    given: dict[str, Any] = dict(terms)
    if given.get("peer") is not None:
        checked_peer(given["peer"], given.get("dialect", DIALECT))
    for name, fit in (("headers", as_headers), ("quirks", tuple), ("entries", tuple)):
        if name in given and not callable(given[name]):
            given[name] = fit(given[name])
    return given  # type: ignore[return-value]


async def renewed(terms: ConnectionTerms) -> dict[str, Any]:
    """Return the arguments of ``open_connection`` for the next connection.

    Raise ``ConnectionLost`` if a function of the terms could not connect to its own server (see ``is_absence``). Its
    other errors are faults of the function, and pass unchanged.
    """
    made: dict[str, Any] = dict(terms)
    for name, as_it_is in RENEWED.items():
        function = made.get(name)
        if not callable(function):
            continue
        try:
            result = function()
            made[name] = as_it_is(await result if inspect.isawaitable(result) else result)
        except Exception as error:
            if isinstance(error, ConnectionLost) or not is_absence(error):
                raise
            raise ConnectionLost(f"no {name} for a new connection: {str(error) or type(error).__name__}") from error
    return made
