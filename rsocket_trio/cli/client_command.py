"""The commands of a client: their options become a connection, a request over it, and an exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import attrs
import trio

from rsocket_trio import Connection, Keepalive, Payload, Rejected, ResumeOptions, Unsupported
from rsocket_trio.cli.connections import Dial, Options, captured, client_tls, connected
from rsocket_trio.cli.exit_codes import (
    REJECTED,
    TIMED_OUT,
    Failure,
    first_leaf,
    public_name,
    report,
    run_client,
)
from rsocket_trio.cli.help_page import with_hint
from rsocket_trio.cli.options import set_up_logging
from rsocket_trio.cli.output import Output
from rsocket_trio.cli.request_metadata import compose, simple
from rsocket_trio.cli.watching import Watch
from rsocket_trio.client.options import KEEPALIVE
from rsocket_trio.connection.protocols import STREAMUX, peer_and_dialect
from rsocket_trio.errors import RSocketError
from rsocket_trio.masking import shown_headers
from rsocket_trio.metadata import (
    COMPOSITE_METADATA,
    OCTET_STREAM,
    TEXT_PLAIN,
    BearerAuthentication,
    Credentials,
)
from rsocket_trio.transports.connect_timeout import CONNECT_TIMEOUT

DEFAULT_CREDIT = 256
ROUTE = "$routes"
"""The route on which a responder describes its routes: ``DESCRIPTION_ROUTE``, without the import of services."""
HINT_TIMEOUT = 2.0
"""Seconds that a server gets to describe its routes after it has rejected one."""


@attrs.frozen(kw_only=True)
class Wish:
    """One interaction: the payloads to send, and the number of items to take.

    With ``first_opens`` a channel's first payload travels in the frame that opens it; else that frame is empty.
    """

    route: str | None = None
    metadata: bytes | None = attrs.field(default=None, repr=False)
    data: tuple[str, ...] = ()
    """Values of ``--data``."""
    take: int | None = None
    limit_rate: int | None = None
    first_opens: bool = False
    as_json: bool = False
    """True if each item is shown as a JSON object with its metadata, instead of its data alone."""

    @property
    def credit(self) -> int:
        """The initial credit, at most ``take``."""
        credit = self.limit_rate or DEFAULT_CREDIT
        return credit if self.take is None else min(credit, self.take)

    @property
    def refill(self) -> bool:
        """Return whether the interaction may take more items than the initial credit."""
        return self.take is None or self.take > self.credit


Performer: TypeAlias = Callable[[Connection, Wish, Output], Awaitable[None]]
"""Makes the request of a command, and returns when it is over."""


@attrs.frozen(kw_only=True)
class Ask:
    """The parameters of ``options.ROWS`` and those of the commands themselves, as click passes them.

    Those that not every command has have defaults.
    """

    uri: str
    route: str | None = None
    data: tuple[str, ...] = ()
    metadata: tuple[str, ...] = attrs.field(default=(), repr=False)
    take: int | None = None
    limit_rate: int | None = None
    timeout: float | None = None
    connect_timeout: float | None
    dialect: str
    quirks: tuple[str, ...]
    peer: str | None
    data_mime: str | None = None
    mimes: tuple[str, ...] = ()
    setup_data: str | None
    setup_metadata: str | None = attrs.field(repr=False)
    setup_mime: str | None
    simple: str | None = attrs.field(repr=False)
    bearer: str | None = attrs.field(repr=False)
    keepalive: float | None
    lifetime: float | None
    lease: bool
    trust: str | None
    untrusted: bool
    cert: str | None
    key: str | None
    headers: tuple[tuple[str, str], ...] = attrs.field(repr=shown_headers)
    retries: int = 0
    resume: float | None = None
    capture: str | None = None
    debug: bool = False
    hexadecimal: bool = False
    quiet: bool = False
    log: str | None
    stacktrace: bool
    first_opens: bool = False
    as_json: bool = False

    def run(self, perform: Performer, *, is_push: bool = False) -> int:
        """Make the request by ``perform``. Return the exit code."""
        set_up_logging(self.log)
        try:
            dial, wish = self.planned(is_push=is_push)
            with captured(self.capture) as capture:
                captures = attrs.evolve(dial, options={**dial.options, "capture": capture})

                async def work(output: Output) -> None:
                    await ask(captures, wish, output, self.timeout, perform)

                return run_client(work, quiet=self.quiet, stacktrace=self.stacktrace)
        except (OSError, ValueError, Failure) as error:
            return report(error, stacktrace=self.stacktrace)

    def planned(self, *, is_push: bool = False) -> tuple[Dial, Wish]:
        """Return how to connect, and the request. Raise ``ValueError`` and ``Failure`` for invalid parameters."""
        peer, dialect = peer_and_dialect(self.peer, self.dialect)
        mime = None if peer is None else peer.mime
        metadata = compose(
            self.metadata,
            self.mimes,
            default_mime=mime or TEXT_PLAIN,
            bare_mime=mime or COMPOSITE_METADATA,
            route=self.route,
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
            "ssl_context": client_tls(self.trust, self.cert, self.key, untrusted=self.untrusted),
            "headers": self.headers,
            "resume": None if self.resume is None else ResumeOptions(session_seconds=self.resume),
            "connect_timeout": CONNECT_TIMEOUT if self.connect_timeout is None else self.connect_timeout,
        }
        watch = Watch(frames=self.debug, hex=self.hexadecimal)
        wish = Wish(
            route=metadata.route,
            metadata=metadata.content,
            data=self.data,
            take=self.take,
            limit_rate=self.limit_rate or (None if peer is None else peer.initial_request_n),
            first_opens=self.first_opens,
            as_json=self.as_json,
        )
        return Dial(uri=self.uri, options=options, retries=self.retries, watch=watch), wish


async def ask(
    dial: Dial,
    wish: Wish,
    output: Output,
    timeout: float | None,  # noqa: ASYNC109 - it is an option
    perform: Performer,
) -> None:
    """Connect, make the request, and disconnect. Raise ``Failure`` when the time is over."""
    scope = trio.CancelScope()
    if timeout is not None:
        scope.deadline = trio.current_time() + timeout
    with scope:
        async with connected(dial) as connection:
            try:
                await perform(connection, wish, output)
            except Exception as error:
                rejection = first_leaf(error)
                if wish.route is None or not isinstance(rejection, Rejected):
                    raise
                text = await with_near_route(connection, wish.route, wish.metadata, str(rejection))
                raise Failure(text, REJECTED, name=public_name(type(rejection))) from error
            return
    missing = "end" if output.lines else "answer"
    raise Failure(f"no {missing} within {timeout:g} s", TIMED_OUT, name=trio.TooSlowError.__name__)


async def answer_of(connection: Connection, wish: Wish, data: bytes, *, absent: str) -> bytes:
    """Return the answer to a request. Raise ``Failure`` with the text ``absent`` if the server lacks its route."""
    try:
        answer = await connection.request_response(Payload(data, wish.metadata), route=wish.route)
    except Rejected as error:
        if str(wish.route) not in str(error):
            raise
        raise Failure(absent, REJECTED, name=Rejected.__name__) from error
    return answer.data


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
