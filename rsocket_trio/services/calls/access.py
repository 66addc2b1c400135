"""Authentication and authorisation: credentials become a user, who may make a call or may not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rsocket_trio.errors import InvalidSetup, Rejected, RejectedSetup, RemoteProtocolError, SetupError, StreamError
from rsocket_trio.forms import Handler, Kind, Requirement
from rsocket_trio.metadata.authentication import Auth, Credentials, decode_authentication, encode_authentication
from rsocket_trio.metadata.composite import Entry, check_composite, encode_composite
from rsocket_trio.metadata.mime import AUTHENTICATION
from rsocket_trio.metadata.routes import read_request
from rsocket_trio.payload import Payload, with_metadata
from rsocket_trio.services.calls.context import Call
from rsocket_trio.terms import Setup

if TYPE_CHECKING:
    from rsocket_trio.connection.connection import Connection

NOT_ALLOWED = "not allowed"
"""The text of every refusal: it tells nobody what was wrong."""


async def fresh_credentials(auth: Auth) -> Credentials:
    """Return the credentials that ``auth`` is or gives. Raise ``TypeError`` for anything else."""
    credentials: object = auth() if callable(auth) else auth
    if inspect.isawaitable(credentials):
        credentials = await credentials
    return checked_credentials(credentials)


def checked_credentials(credentials: object) -> Credentials:
    """Return credentials as they are. Raise ``TypeError`` for anything else."""
    if not isinstance(credentials, Credentials):
        kind = type(credentials).__name__
        raise TypeError(f"auth is Simple or Bearer, or a function that returns one, not {kind}")
    return credentials


def check_auth(auth: object, metadata_mime: str | int) -> None:
    """Raise ``ValueError`` for credentials on a connection without composite metadata, ``TypeError`` for none."""
    if not callable(auth):
        checked_credentials(auth)
    check_composite("auth=", metadata_mime)


def with_credentials(payload: Payload, credentials: Credentials) -> Payload:
    """Return the payload of a SETUP with credentials in its metadata, which is composite."""
    entry = Entry(AUTHENTICATION, encode_authentication(credentials))
    return with_metadata(payload, (payload.metadata or b"") + encode_composite([entry]))


def credentials_in(entries: Iterable[Entry]) -> Credentials | None:
    """Return the first credentials among ``entries``, or ``None``. Raise ``RemoteProtocolError`` if malformed."""
    contents = (entry.content for entry in entries if entry.mime == AUTHENTICATION)
    return next(map(decode_authentication, contents), None)


async def user_of(
    authenticator: Handler, credentials: Credentials, where: Setup | Call, connection: Connection
) -> object:
    """Return the user whom ``authenticator`` finds for ``credentials``. Raise what refuses them."""
    try:
        user = authenticator.function(credentials, where)
        if inspect.isawaitable(user):
            user = await user
    except Exception as error:
        refusal = error
    else:
        return user
    # Outside of the handler: what was raised may hold the credentials, and would come along as the context.
    while isinstance(refusal, ExceptionGroup) and len(refusal.exceptions) == 1:
        refusal = refusal.exceptions[0]
    try:
        if isinstance(refusal, StreamError | SetupError):
            raise refusal from None
        connection.faults.log_failure(authenticator, refusal, is_secret=True)
        raise RejectedSetup(NOT_ALLOWED) if isinstance(where, Setup) else Rejected(NOT_ALLOWED)
    finally:
        del refusal  # its traceback refers to this frame


def admission(
    own: Handler | None,
    authenticator: Handler | None,
    checks: Iterable[Callable[[Setup, Connection], None]],
    *,
    required: bool,
) -> Handler:
    """Return the setup handler that authenticates the client and runs ``checks`` before ``own`` decides.

    ``own`` is that of the application.
    """

    async def admit(setup: Setup, connection: Connection) -> None:
        credentials = None
        if authenticator is not None:
            try:
                credentials = credentials_in(read_request(setup.payload.metadata, setup.metadata_mime).travelling)
            except RemoteProtocolError as error:
                raise InvalidSetup(f"metadata: {error}") from None
            if credentials is not None:
                try:
                    connection.user = await user_of(authenticator, credentials, setup, connection)
                except StreamError as error:
                    raise RejectedSetup(error.data) from None
        if connection.user is None and (required or credentials is not None):
            raise RejectedSetup(NOT_ALLOWED)
        for check in checks:
            check(setup, connection)
        if own is not None:
            answer = own.function(setup, connection)
            if inspect.isawaitable(answer):
                await answer

    registered = own or authenticator
    origin = None if registered is None else registered.registered
    return Handler(admit, Kind.ASYNC, interaction="setup", origin=origin)


async def authenticate_call(call: Call, authenticator: Handler, entries: Iterable[Entry]) -> None:
    """Set the user of ``call`` by its own credentials among ``entries``, if there are some.

    Raise ``Rejected`` if they are refused.
    """
    try:
        credentials = credentials_in(entries)
        if credentials is None:
            return
        call.user = await user_of(authenticator, credentials, call, call.connection)
    except RemoteProtocolError:
        raise Rejected(NOT_ALLOWED) from None
    except SetupError as error:
        raise Rejected(error.data) from None
    if call.user is None:
        raise Rejected(NOT_ALLOWED)


async def authorise(call: Call, requires: Requirement) -> None:
    """Raise ``Rejected`` unless ``call`` has a user for whom ``requires`` is true."""
    if call.user is None:
        raise Rejected(NOT_ALLOWED)
    allowed = requires(call.user, call)
    if inspect.isawaitable(allowed):
        allowed = await allowed
    if not allowed:
        raise Rejected(NOT_ALLOWED)
