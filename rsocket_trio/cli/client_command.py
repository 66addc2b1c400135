"""The client commands: their common options become a connection, one interaction and an exit code."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import click
import trio

from rsocket_trio import Keepalive, Payload, Rejected, ResumeOptions, Unsupported
from rsocket_trio.cli.capturing import captured
from rsocket_trio.cli.composing import Metadata, check_mimes, compose, simple
from rsocket_trio.cli.connecting import Dial, Options, client_tls, connected
from rsocket_trio.cli.data import Loaded, Source, source_of
from rsocket_trio.cli.exit_codes import (
    MEANINGS,
    REJECTED,
    TIMED_OUT,
    Failure,
    first_leaf,
    public_name,
    report,
    run_client,
)
from rsocket_trio.cli.interactions import Kind, Performer, Wish, performer
from rsocket_trio.cli.options import ResumeCommand, mime, our_options, set_up_logging, uri
from rsocket_trio.cli.output import Output
from rsocket_trio.cli.served_routes import with_near_route
from rsocket_trio.cli.watching import Watch
from rsocket_trio.client.options import KEEPALIVE
from rsocket_trio.connection.protocols import STREAMUX, peer_and_dialect
from rsocket_trio.masking import shown_headers
from rsocket_trio.metadata import (
    APPLICATION_JSON,
    COMPOSITE_METADATA,
    OCTET_STREAM,
    TEXT_PLAIN,
    BearerAuthentication,
    Credentials,
)
from rsocket_trio.rsocket.peers import Peer
from rsocket_trio.transports.connect_timeout import CONNECT_TIMEOUT


@attrs.frozen(kw_only=True)
class Habits:
    """The defaults in which our commands and rsc differ."""

    data_mime: str
    metadata_mime: str
    first_opens: bool
    """True if a channel's first payload travels in the frame that opens it."""
    bare_mime: str = COMPOSITE_METADATA
    """The metadata MIME type of a connection on which there is no metadata."""
    keepalive: Keepalive = KEEPALIVE
    credit: int | None = None
    """Items that are asked for first; ``None`` for the library's own default."""


OURS = Habits(data_mime=OCTET_STREAM, metadata_mime=TEXT_PLAIN, first_opens=False)
RSC = Habits(data_mime=APPLICATION_JSON, metadata_mime=APPLICATION_JSON, first_opens=True)


@attrs.frozen(kw_only=True)
class Ask:
    """The parameters of ``options.ROWS`` and those of the commands themselves, as click passes them."""

    uri: str
    route: str | None
    data: tuple[str, ...]
    load: tuple[str, ...] = ()
    metadata: tuple[str, ...] = attrs.field(repr=False)
    take: int | None
    limit_rate: int | None
    delay: int = 0
    timeout: float | None
    connect_timeout: float | None
    dialect: str
    quirks: tuple[str, ...]
    peer: str | None
    data_mime: str | None
    mimes: tuple[str, ...]
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
    retries: int
    resume: float | None
    capture: str | None
    debug: bool
    hexadecimal: bool
    wiretap: bool = False
    quiet: bool
    log: str | None
    stacktrace: bool
    first_opens: bool | None = None
    as_json: bool = False

    def run(self, kind: Kind, habits: Habits, perform: Performer | None = None) -> int:
        """Make the request, by ``perform`` in place of what the command of this kind does. Return the exit code."""
        set_up_logging(self.log)
        try:
            dial, wish = self.planned(kind, habits)
        except (ValueError, Failure) as error:
            return report(error, stacktrace=self.stacktrace)

        try:
            with captured(self.capture) as capture:
                captures = attrs.evolve(dial, options={**dial.options, "capture": capture})

                async def work(output: Output) -> None:
                    await ask(captures, wish, output, self.timeout, perform or performer(kind))

                return run_client(work, quiet=self.quiet, stacktrace=self.stacktrace)
        except (OSError, Failure) as error:
            return report(error, stacktrace=self.stacktrace)

    def planned(self, kind: Kind, habits: Habits) -> tuple[Dial, Wish]:
        """Return how to connect, and the request. Raise ``ValueError`` and ``Failure`` for invalid parameters."""
        peer, dialect = peer_and_dialect(self.peer, self.dialect)
        habits = habits_with(peer, habits)
        check_mimes(dialect, self.data_mime, *self.mimes, self.setup_mime)
        metadata = self._metadata(kind, habits, dialect)
        return self._dial(habits, metadata, dialect), self._wish(kind, habits, metadata)

    def _metadata(self, kind: Kind, habits: Habits, dialect: str) -> Metadata:
        return compose(
            self.metadata,
            self.mimes,
            default_mime=habits.metadata_mime,
            bare_mime=habits.bare_mime,
            route=self.route,
            credentials=credentials(self.simple, self.bearer, dialect),
            # A push is metadata for the connection, which has its user since the SETUP.
            setup_only=kind is Kind.PUSH,
            setup_text=self.setup_metadata,
            setup_mime=self.setup_mime,
        )

    def _dial(self, habits: Habits, metadata: Metadata, dialect: str) -> Dial:
        options: Options = {
            "dialect": dialect,
            "quirks": self.quirks,
            "peer": self.peer,
            "setup": Payload(os.fsencode(self.setup_data or ""), metadata.setup),
            "data_mime": self.data_mime or habits.data_mime,
            "metadata_mime": metadata.mime,
            "keepalive": keepalive_terms(self.keepalive, self.lifetime, habits.keepalive),
            "lease": self.lease,
            "ssl_context": client_tls(self.trust, self.cert, self.key, untrusted=self.untrusted),
            "headers": self.headers,
            "resume": None if self.resume is None else ResumeOptions(session_seconds=self.resume),
            "connect_timeout": CONNECT_TIMEOUT if self.connect_timeout is None else self.connect_timeout,
        }
        watch = Watch(frames=self.debug, hex=self.hexadecimal, dump=self.wiretap)
        return Dial(uri=self.uri, options=options, retries=self.retries, watch=watch)

    def _wish(self, kind: Kind, habits: Habits, metadata: Metadata) -> Wish:
        sources: Sequence[Source] = [
            *(source_of(each) for each in self.data),
            *(Loaded(place) for place in self.load),
        ]
        return Wish(
            kind=kind,
            route=metadata.route,
            metadata=metadata.content,
            sources=tuple(sources),
            take=self.take,
            limit_rate=self.limit_rate or habits.credit,
            delay=self.delay / 1000,
            first_opens=habits.first_opens if self.first_opens is None else self.first_opens,
            as_json=self.as_json,
        )


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


def habits_with(peer: Peer | None, habits: Habits) -> Habits:
    """Return the defaults of a command for a peer."""
    if peer is None:
        return habits
    habits = attrs.evolve(habits, credit=peer.initial_request_n, keepalive=peer.keepalive or habits.keepalive)
    if peer.mime is not None:
        habits = attrs.evolve(habits, data_mime=peer.mime, metadata_mime=peer.mime, bare_mime=peer.mime)
    return habits


def keepalive_terms(interval: float | None, lifetime: float | None, default: Keepalive = KEEPALIVE) -> Keepalive:
    """Return the terms, with defaults for those that were not given.

    A longer interval makes the lifetime longer, and a shorter lifetime the interval shorter.
    """
    if lifetime is None:
        lifetime = default.max_lifetime if interval is None else max(default.max_lifetime, 3 * interval)
    if interval is None:
        interval = default.interval if default.interval <= lifetime else lifetime / 3
    return Keepalive(interval, lifetime)


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Show each item as a JSON object: data, encoding (text, json or base64) and metadata; of credentials, **.",
)


def client_command(
    kind: Kind,
    help: str,
    *options: Callable[[Callable[..., None]], Callable[..., None]],
    examples: Sequence[str],
) -> click.Command:
    """Return the command of an interaction, with the options of all client commands and these of its own."""

    @click.pass_context
    def run(ctx: click.Context, /, **parameters: Any) -> None:
        ctx.exit(Ask(**parameters).run(kind, OURS))

    run = our_options(run)
    run = click.option(
        "--data-mime", type=mime, metavar="MIME", help="MIME type of the data (application/octet-stream)."
    )(run)
    for option in options:
        run = option(run)
    run = click.argument("uri", type=uri)(run)
    return click.command(kind.value, cls=ResumeCommand, help=help, examples=examples, codes=MEANINGS)(run)
