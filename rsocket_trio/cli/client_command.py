"""The commands of a client: their options become a connection, a request over it, and an exit code."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, TypeAlias

import attrs
import trio

from rsocket_trio import Connection, Keepalive, Payload, Rejected, ResumeOptions, Unsupported
from rsocket_trio.cli.connections import Options, captured, connected
from rsocket_trio.cli.exit_codes import REJECTED, TIMED_OUT, Failure, first_leaf, public_name, run_client
from rsocket_trio.cli.help_page import with_hint
from rsocket_trio.cli.options import ClientOptions, set_up_logging
from rsocket_trio.cli.output import Output
from rsocket_trio.cli.watching import Watcher
from rsocket_trio.client.options import KEEPALIVE
from rsocket_trio.connection.protocols import STREAMUX, peer_and_dialect
from rsocket_trio.errors import RSocketError
from rsocket_trio.metadata import (
    AUTHENTICATION,
    COMPOSITE_METADATA,
    OCTET_STREAM,
    ROUTING,
    TEXT_PLAIN,
    BearerAuthentication,
    Credentials,
    Entry,
    SimpleAuthentication,
    encode_authentication,
    encode_composite,
)
from rsocket_trio.mux.framing import Recording
from rsocket_trio.rsocket.dialect import DIALECTS
from rsocket_trio.rsocket.quirks import PEERS, with_quirks
from rsocket_trio.transports.base import CONNECT_TIMEOUT
from rsocket_trio.transports.sockets import client_context

DEFAULT_CREDIT = 256
ROUTE = "$routes"
"""The route on which a responder describes its routes: ``DESCRIPTION_ROUTE``, without the import of services."""
HINT_TIMEOUT = 2.0
"""Seconds that a server gets to describe its routes after it has rejected one."""


Performer: TypeAlias = Callable[[Connection, "Ask", Output], Awaitable[None]]
"""Makes the request of a command, and returns when it is over."""


@attrs.frozen(kw_only=True)
class Ask(ClientOptions):
    """A command of a client: what it asks for, and how it connects."""

    content: bytes | None = attrs.field(default=None, repr=False)
    """The metadata of the request but its route, as ``planned`` composes it."""

    @property
    def credit(self) -> int:
        """The initial credit, at most ``take``."""
        credit = self.limit_rate or DEFAULT_CREDIT
        return credit if self.take is None else min(credit, self.take)

    @property
    def refill(self) -> bool:
        """Return whether the interaction may take more items than the initial credit."""
        return self.take is None or self.take > self.credit

    def run(self, perform: Performer, *, is_push: bool = False) -> int:
        """Make the request by ``perform``. Return the exit code."""
        set_up_logging(self.log)
        options, ask = self.planned(is_push=is_push)
        with captured(self.capture) as capture:
            options["capture"] = self._watching(options, capture)
            return run_client(partial(ask._perform, perform, options), quiet=self.quiet)

    def _watching(self, options: Options, capture: Recording | None) -> Recording | None:
        """Return the recording that shows frames, if there is to be one, and else the capture."""
        if not (self.debug or self.hexadecimal):
            return capture
        record = DIALECTS.get(options["dialect"])
        if record is not None:
            record = with_quirks(record, (*self.quirks, *(PEERS[self.peer].quirks if self.peer is not None else ())))
        return Watcher(record, self.hexadecimal, capture)

    async def _perform(self, perform: Performer, options: Options, output: Output) -> None:
        """Connect, make the request, and disconnect. Raise ``Failure`` when the time is over."""
        with trio.move_on_after(math.inf if self.timeout is None else self.timeout):
            async with connected(self.uri, options, self.retries) as connection:
                try:
                    await perform(connection, self, output)
                except Exception as error:
                    rejection = first_leaf(error)
                    if self.route is None or not isinstance(rejection, Rejected):
                        raise
                    text = await with_near_route(connection, self.route, self.content, str(rejection))
                    raise Failure(text, REJECTED, name=public_name(type(rejection))) from error
                return
        missing = "end" if output.lines else "answer"
        raise Failure(f"no {missing} within {self.timeout:g} s", TIMED_OUT, name=trio.TooSlowError.__name__)

    def planned(self, *, is_push: bool = False) -> tuple[Options, Ask]:
        """Return how to connect, and the request. Raise ``ValueError`` and ``Failure`` for invalid parameters."""
        peer, dialect = peer_and_dialect(self.peer, self.dialect)
        mime = None if peer is None else peer.mime
        metadata = compose(
            self.metadata,
            self.mimes,
            default_mime=mime or TEXT_PLAIN,
            bare_mime=mime or COMPOSITE_METADATA,
            has_route=self.route is not None,
            credentials=credentials(self.simple, self.bearer, dialect),
            # A push is metadata for the connection, which has its user since the SETUP.
            setup_only=is_push,
            setup_text=self.setup_metadata,
            setup_mime=self.setup_mime,
        )
        options: Options = {
            "dialect": dialect,
            "quirks": self.quirks,
            "peer": self.peer,
            "setup": Payload(os.fsencode(self.setup_data or ""), metadata.setup),
            "data_mime": self.data_mime or mime or OCTET_STREAM,
            "metadata_mime": metadata.mime,
            "keepalive": keepalive_terms(self.keepalive, self.lifetime, (peer and peer.keepalive) or KEEPALIVE),
            "lease": self.lease,
            "ssl_context": client_context(self.trust, self.cert, self.key, untrusted=self.untrusted),
            "headers": self.headers,
            "resume": None if self.resume is None else ResumeOptions(session_seconds=self.resume),
            "connect_timeout": CONNECT_TIMEOUT if self.connect_timeout is None else self.connect_timeout,
        }
        limit_rate = self.limit_rate or (None if peer is None else peer.initial_request_n)
        return options, attrs.evolve(self, content=metadata.content, limit_rate=limit_rate)


@attrs.frozen
class Metadata:
    """Composed metadata. ``mime`` is that of the connection; the library adds the route to ``content``."""

    mime: str
    content: bytes | None = attrs.field(repr=False)
    setup: bytes | None = attrs.field(repr=False)


def compose(
    texts: Sequence[str],
    mimes: Sequence[str],
    *,
    default_mime: str,
    bare_mime: str = COMPOSITE_METADATA,
    has_route: bool = False,
    credentials: Credentials | None = None,
    setup_only: bool = False,
    setup_text: str | None = None,
    setup_mime: str | None = None,
) -> Metadata:
    """Compose the metadata. The ``mimes`` belong to the ``texts`` in order; the last one applies to all that follow.

    One text alone is the metadata as it stands, in its own MIME type. A route, credentials, several texts, or a SETUP
    in another type make it composite metadata, where each is an entry; a text whose type is composite metadata itself
    is taken as ready entries. Credentials are an entry of the content and of the SETUP, unless ``setup_text`` has its
    own; with ``setup_only`` they are one of the SETUP alone. ``bare_mime`` is for a connection that composes nothing,
    except for a route. Raise ``ValueError`` for metadata that cannot be encoded.
    """
    last = mimes[-1] if mimes else default_mime
    pairs = list(zip([*mimes, *repeat(last, len(texts))], texts, strict=False))
    single = pairs[0][0] if pairs else mimes[0] if mimes else bare_mime
    is_single = (
        credentials is None
        and len(pairs) < 2
        and setup_mime in (None, single)
        # A route alone needs no composite metadata where the connection has its type.
        and (not has_route or (not pairs and (not mimes or tuple(mimes) == (ROUTING,))))
        and (pairs or mimes or bare_mime != COMPOSITE_METADATA)
    )
    if is_single:
        content = _content(*pairs[0]) if pairs else None
        return Metadata(single, content, None if setup_text is None else _content(single, setup_text))
    secrets = [] if credentials is None else [(AUTHENTICATION, encode_authentication(credentials))]
    entries = [*([] if setup_only else secrets), *((mime, _content(mime, text)) for mime, text in pairs)]
    setup = secrets
    if setup_text is not None:
        mime = setup_mime or default_mime
        setup = [(mime, _content(mime, setup_text)), *([] if mime == AUTHENTICATION else secrets)]
    return Metadata(COMPOSITE_METADATA, _joined(entries), _joined(setup))


def _joined(entries: Sequence[tuple[str, bytes]]) -> bytes | None:
    """Return composite metadata with these entries, ``None`` without any."""
    parts = (text if mime == COMPOSITE_METADATA else encode_composite([Entry(mime, text)]) for mime, text in entries)
    return b"".join(parts) if entries else None


def _content(mime: str, text: str) -> bytes:
    """Return the bytes of a text; credentials are written ``simple:user:password`` or ``bearer:token``."""
    scheme, separator, rest = text.partition(":")
    if mime == AUTHENTICATION and separator and scheme in ("simple", "bearer"):
        return encode_authentication(simple(rest) if scheme == "simple" else BearerAuthentication(rest))
    return os.fsencode(text)


def simple(text: str) -> SimpleAuthentication:
    """Parse ``user:password``; the password may have colons. Raise ``ValueError`` that does not show the text."""
    user, separator, password = text.partition(":")
    if not separator:
        raise ValueError("credentials are written user:password")
    return SimpleAuthentication(user, password)


def credentials(user_and_password: str | None, token: str | None, dialect: str) -> Credentials | None:
    """Return the credentials of the options, or ``None``. Raise ``ValueError`` if both options are given.

    Raise ``Failure`` for a dialect that carries none.
    """
    if dialect == STREAMUX and (user_and_password is not None or token is not None):
        raise Failure(f"{dialect} carries no credentials", name=Unsupported.__name__)
    if user_and_password is not None and token is not None:
        raise ValueError("credentials are a user and password, or a token, not both")
    if user_and_password is not None:
        return simple(user_and_password)
    return None if token is None else BearerAuthentication(token)


def keepalive_terms(interval: float | None, lifetime: float | None, default: Keepalive = KEEPALIVE) -> Keepalive:
    """Return the terms, with defaults for those that were not given.

    A longer interval makes the lifetime longer, and a shorter lifetime the interval shorter.
    """
    if lifetime is None:
        lifetime = default.max_lifetime if interval is None else max(default.max_lifetime, 3 * interval)
    if interval is None:
        interval = default.interval if default.interval <= lifetime else lifetime / 3
    return Keepalive(interval, lifetime)


async def with_near_route(connection: Connection, route: str, metadata: bytes | None, text: str) -> str:
    """Return the text of a rejection with the route that is like ``route``, if the server does not know ``route``.

    ``metadata`` is that of the request. A server that does not describe its routes leaves the text as it is.
    """
    if f"'{route}'" not in text:
        return text
    try:
        with trio.fail_after(HINT_TIMEOUT):
            answer = await connection.request_response(Payload(b"", metadata), route=ROUTE)
        names = {str(route.get("route") or "") for route in read_description(answer.data)["routes"]} - {""}
    except (RSocketError, trio.TooSlowError, ValueError):
        return text
    # A route that is there was not the reason, or the server has said so.
    return text if route in names else with_hint(text, route, names)


def read_description(data: bytes) -> dict[str, Any]:
    """Return a description of routes. Raise ``ValueError`` for what is none."""
    try:
        description = json.loads(data)
    except RecursionError:
        raise ValueError("too many levels of JSON") from None
    routes = description.get("routes") if isinstance(description, dict) else None
    if not isinstance(routes, list) or not all(isinstance(route, dict) for route in routes):
        raise ValueError("no list of routes")
    result: dict[str, Any] = description
    return result
