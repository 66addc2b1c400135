"""Holds the client that replaces each lost connection by a new one, with pauses between tries.

What one peer refuses, its streams and channels included, is opened on another connection.
"""

from __future__ import annotations

import inspect
import logging
import math
import random
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar, Unpack

import trio

from rsocket_trio.client.open import call_terms, check_auth_of_setup, open_connection, open_uri
from rsocket_trio.client.options import ConnectionOptions
from rsocket_trio.connection.connection import Connection, Requester, new_stream
from rsocket_trio.connection.engine import Engine
from rsocket_trio.connection.protocols import peer_and_dialect
from rsocket_trio.connection.recording import recording_into
from rsocket_trio.connection.resumption import is_absence
from rsocket_trio.connection.streams import Channel, Incoming, IncomingWithPushes
from rsocket_trio.errors import (
    GRACE_IS_OVER,
    Canceled,
    ConnectionClosed,
    ConnectionLost,
    Drained,
    InvalidSetup,
    NegotiationFailed,
    RejectedResume,
    RejectedSetup,
    RSocketError,
    Unsupported,
    UnsupportedSetup,
    fresh_copy,
    unsent_copy,
)
from rsocket_trio.mux.stream_state import MAX_REQUEST_N
from rsocket_trio.payload import Payload, PayloadLike, as_payload
from rsocket_trio.signatures import completed
from rsocket_trio.terms import Backoff
from rsocket_trio.tools.event_loop_checks import need_trio
from rsocket_trio.tools.exception_groups import nursery_beside
from rsocket_trio.tools.parking_lot import ParkingLot
from rsocket_trio.transports.base import ConnectTimeout, checked_connect_timeout
from rsocket_trio.transports.connect import HeadersLike, as_headers
from rsocket_trio.transports.schemes import parse_uri

if TYPE_CHECKING:
    from rsocket_trio.connection.hooks import RequestCalls
    from rsocket_trio.metadata.authentication import Credentials
    from rsocket_trio.mux.stream_state import StreamState

logger = logging.getLogger("rsocket_trio")

T = TypeVar("T")

BACKOFF = Backoff()
RESEND_DELAY = 1.0
"""Seconds within which a refused request is sent at most twice, and a connection that drains counts as a failed try."""
USABLE = ("open", "suspended")
"""States in which a connection takes new requests."""
REFUSALS = (RejectedSetup, InvalidSetup, UnsupportedSetup, NegotiationFailed, Unsupported)
"""Refusals that are not retried: a server that refuses once refuses again."""

ReconnectOptions: TypeAlias = ConnectionOptions[
    PayloadLike | Callable[[], PayloadLike | Awaitable[PayloadLike]],
    HeadersLike | Callable[[], HeadersLike | Awaitable[HeadersLike]],
]
"""The options of ``open_connection``; ``setup``, ``headers`` and ``auth`` may be functions, async or not."""


def _checked_credentials(credentials: object) -> Credentials:
    from rsocket_trio.services.calls.access import checked_credentials

    return checked_credentials(credentials)


RENEWED: Final[dict[str, Callable[[Any], object]]] = {
    "setup": as_payload,
    "headers": as_headers,
    "auth": _checked_credentials,
}
"""The terms that a function may give for each connection, with the converter of its result."""


class Reopened(Incoming):
    """A stream that opens on another connection each time that it was certainly not processed.

    A refused stream was not processed: no item came, and a channel had no credit to send. The call that hears of the
    refusal opens it again; others wait for that. Once an item came or left, the stream is like any other.
    """

    _client: FailoverRequester
    _port: Engine  # each connection that it opens on is one of the client's
    _tried: list[Engine]
    """The engines that it was opened on, and refused."""
    _refusal: RSocketError | None
    """The refusal after which the stream was not opened again yet."""
    _is_taken: bool
    """True once the responder has sent or taken an item, and if no connection follows: then it is not opened again."""
    _lock: trio.Lock | None
    _scope: trio.CancelScope | None
    """The scope in which it is opened again; leaving the block cancels it."""

    def _open_by(self, client: FailoverRequester) -> Self:
        self._client = client
        self._refusal = self._lock = self._scope = None
        self._is_taken = False
        self._tried = []
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._refusal = None  # it is not opened any more
        if self._scope is not None:
            self._scope.cancel()
        await super().__aexit__(kind, error, trace)

    def _on_error(self, error: RSocketError) -> None:
        if not self._is_taken and self._client._sends_again(error):
            self._refusal = error
        super()._on_error(error)

    @property
    def _renewed(self) -> Callable[[], Payload] | None:
        return None if self._life is None else self._life.renewed

    async def _move(self, refusal: RSocketError) -> bool:
        """Go to the connection that follows on a refusal. Return whether there is one."""
        self._tried.append(self._port)
        engine = await self._client._next_engine(refusal, self._tried)
        if engine is None:
            return False
        self._port = engine
        if self._renewed is not None:
            self.request = self._renewed()
        return True

    async def _request(self, renewed: Callable[[], Payload] | None) -> StreamState:
        while True:
            try:
                return await super()._request(renewed)
            except RSocketError as refusal:
                if not await self._move(refusal):
                    raise

    async def _reopen(self) -> bool:
        """Open the stream again after a refusal, unless another task has done so. Return whether it is open."""
        self._lock = self._lock or trio.Lock()
        async with self._lock:
            with trio.CancelScope() as self._scope:
                if self._refusal is not None:
                    if not await self._move(self._refusal):
                        self._refusal, self._is_taken = None, True  # it stays refused
                        return False
                    # More may be granted while the request waits for its turn.
                    asked = self._credit
                    state = await self._request(self._renewed)
                    # No checkpoint from here on: no event of the stream is missed.
                    self._refusal = None
                    self._replace(state)
                    if self._credit > asked:
                        super().request_n(self._credit - asked)
            return not self._scope.cancel_called

    def _replace(self, state: StreamState) -> None:
        """Go on with a stream in the place of the one that was refused."""
        self._attach(state)
        if self._life is not None:
            self._life.call.error = None  # the call goes on
            self._life.observe(self)

    async def _again(self, act: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``act``, which reads or sends an item, on the stream that was not refused."""
        while True:
            try:
                result = await act()
            except RSocketError:
                # The refusal, or the end of the connection behind it.
                if self._refusal is None or not await self._reopen():
                    raise
            else:
                self._is_taken = True
                return result

    def __aiter__(self) -> AsyncIterator[Payload]:
        return super().__aiter__() if self._is_taken else self

    def __anext__(self) -> Coroutine[object, object, Payload]:
        return super().__anext__() if self._is_taken else self._again(super().__anext__)

    async def receive_batch(self) -> list[Payload]:
        return await self._again(super().receive_batch)

    def request_n(self, request_n: int) -> None:
        super().request_n(request_n)
        if not self._is_taken:
            self._credit = min(self._credit + request_n, MAX_REQUEST_N)


class ReopenedChannel(Reopened, Channel):
    """A ``Channel`` that opens on another connection while it is refused."""

    async def wait_room(self, beyond: int = 0) -> int:
        return await self._again(partial(super().wait_room, beyond))

    def send(self, payload: PayloadLike) -> Coroutine[object, object, None]:
        return super().send(payload) if self._is_taken else self._again(partial(super().send, payload))

    async def send_many(self, payloads: Iterable[PayloadLike]) -> None:
        items = iter(payloads)
        if not self._is_taken:
            # Taken once, and sent to the responder that takes the channel.
            for item in items:
                await self.send(item)
                break
        await super().send_many(items)

    async def send_eof(self) -> None:
        if self._refusal is not None:
            await self._reopen()
        await super().send_eof()

    @property
    def _is_sending(self) -> bool:
        # What was refused may open again.
        return self._refusal is not None or super()._is_sending

    async def wait_send_closed(self) -> None:
        await super().wait_send_closed()
        while self._refusal is not None and await self._reopen():
            await super().wait_send_closed()

    def _replace(self, state: StreamState) -> None:
        completed = self._sending().completed
        super()._replace(state)
        if completed:
            self._port.complete_stream(state)
            self._sending().completed = True


REOPENED: Final[dict[type[Incoming], type[Reopened]]] = {Incoming: Reopened, Channel: ReopenedChannel}
"""The streams that follow the client to its next connection, by those of one connection."""


class FailoverRequester(
    Requester[
        AbstractAsyncContextManager[Incoming],
        AbstractAsyncContextManager[IncomingWithPushes],
        AbstractAsyncContextManager[Channel],
    ]
):
    """Takes a connection for each request, and sends what was certainly not processed to another one."""

    def __init__(self, wait: bool) -> None:
        self._wait = wait
        self._changes = ParkingLot()
        """The place where requests wait for a connection; whatever changes one wakes them."""

    def _calls(self) -> RequestCalls:
        from rsocket_trio.services.calls import client

        return client

    @abstractmethod
    def _usable(self, tried: Sequence[Engine] = ()) -> Engine | None:
        """Return the engine for a new request, none of those ``tried``; ``None`` if it has to wait for one."""

    @abstractmethod
    def _failure(self, *, wait: bool) -> Exception | None:
        """Return why no request will get a connection, or gets none now if it does not ``wait``."""

    async def _ready(self) -> Engine:
        need_trio()
        return await self._next(wait=self._wait)

    async def _next(self, tried: Sequence[Engine] = (), *, wait: bool) -> Engine:
        """Return the engine for a request, none of those ``tried``; wait for one. No checkpoint after it was found."""
        while (engine := self._usable(tried)) is None:
            if (error := self._failure(wait=wait)) is not None:
                await trio.lowlevel.checkpoint()
                raise error
            await self._changes.park()
        return engine

    @abstractmethod
    def _sends_again(self, refusal: RSocketError) -> bool:
        """Return whether a request that ended with this error may be sent to another connection."""

    @asynccontextmanager
    async def _open(self, kind: type[Incoming], *request: Any) -> AsyncIterator[Incoming]:
        engine = await self._ready()
        opening = new_stream(engine, REOPENED.get(kind, kind), *request)
        if isinstance(opening, Reopened):
            opening._open_by(self)
        async with opening as stream:
            yield stream


class ReconnectingClient(FailoverRequester):
    """Sends the requests of a ``Connection`` over the current connection. Made by ``connect_forever``.

    ``uri`` is where it leads, ``state`` what an ``on_state`` function was told last.

    A call takes the current connection and stays with it: when that is lost the call raises ``ConnectionLost``,
    as on a ``Connection``. It is not repeated then, because the server may have processed it. Without a
    connection, or while it drains, a call waits for the next one, without a timeout of its own; with ``wait=False`` it
    raises ``ConnectionLost`` at once. After a refusal, and after the block, every call raises. A request without an
    answer may be lost with its connection, and no error says so.

    The next connection is made as soon as one drains; the draining one stays until its open streams are done. A request
    that was refused because the server drains was certainly not processed: it is sent over the next connection, with
    ``wait=False`` if there is one already.
    """

    def __init__(
        self, uri: str, terms: ReconnectOptions, wait: bool, backoff: Backoff, on_state: Callable[[str], object] | None
    ) -> None:
        super().__init__(wait)
        self.uri = uri
        self._terms = terms
        self._backoff = backoff
        self._on_state = on_state
        self.state = "connecting"
        self._connection: Connection | None = None
        self._why: Exception = ConnectionLost("the first one is being made")
        self._ended: Exception | None = None
        self._drained_at = self._resend_at = -math.inf
        self._draining: list[Connection] = []

    def __repr__(self) -> str:
        return f"<ReconnectingClient {self.uri}, {self.state}, load {self.load}>"

    @property
    def load(self) -> int:
        """Return the number of requests in flight, those on connections that drain among them."""
        current = [] if self._connection is None else [self._connection]
        return sum(connection._engine.session.requests_in_flight for connection in [*current, *self._draining])

    @property
    def connection(self) -> Connection | None:
        """The connection that new requests go to, or ``None`` if there is none."""
        connection = self._connection
        return connection if connection is not None and connection.status in USABLE else None

    async def connected(self) -> Connection:
        """Wait for a connection, and return it. Raise the error that ended the client."""
        need_trio()
        await trio.lowlevel.checkpoint()
        return (await self._next(wait=True)).connection

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``call``, which is called again whenever its connection is lost or closed meanwhile.

        For requests that do no harm twice: each may have run before. A call that the server gave up at the end of its
        grace period is made again, too, and so is one of a session that the server does not resume. It is called at
        most twice a second, and whenever there is a connection, also with ``wait=False``. Raise every other error, and
        the one that ended the client.
        """
        before, now = -math.inf, -math.inf
        while True:
            await self.connected()
            await trio.sleep_until(before + RESEND_DELAY)
            before, now = now, trio.current_time()
            try:
                return await call()
            except (ConnectionLost, ConnectionClosed, RejectedResume):
                continue
            except Canceled as error:
                if error.text != GRACE_IS_OVER:
                    raise

    def _usable(self, tried: Sequence[Engine] = ()) -> Engine | None:
        connection = self.connection
        return None if connection is None else connection._engine

    def _failure(self, *, wait: bool) -> Exception | None:
        if self._ended is not None:
            return fresh_copy(self._ended)
        if wait or (self._connection is not None and self._connection.status != "draining"):
            return None
        why = self._why if self._connection is None else ConnectionClosed("the last one drains")
        error = unsent_copy(ConnectionLost(f"no connection: {why}"))
        error.__cause__ = why
        return error

    def _sends_again(self, refusal: RSocketError) -> bool:
        return type(refusal) is Drained

    async def _next_engine(self, refusal: RSocketError, tried: Sequence[Engine]) -> Engine | None:
        if not self._sends_again(refusal):
            return None
        if not self._wait and (self.connection is None or trio.current_time() < self._resend_at):
            return None
        await trio.sleep_until(self._resend_at)
        return await self._ready()

    async def _retire(self) -> None:
        """Make no other connection, and drain the one that there is."""
        connection = self._connection
        self._end(ConnectionClosed("the client was closed by this side"))
        if self._draining:
            self._tell("draining")
        if connection is not None:
            await connection.drain()
        # Those that their servers drain.
        while self._draining:
            await self._changes.park()

    # The tasks

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        try:
            async with nursery_beside(lambda nursery: nursery.cancel_scope.cancel()) as nursery:
                nursery.start_soon(self._run, nursery)
                yield
        finally:
            self._end(ConnectionClosed("the client was closed by this side"))
            self._tell("closed")

    async def _run(self, nursery: trio.Nursery) -> None:
        """Connect in a loop, until a connection is refused or the task is cancelled."""
        tries = 0
        while True:
            # Returns when the next connection is due: this one is over, or drains in its own task beside the next.
            held: float = await nursery.start(self._hold_one)
            if self._ended is not None:
                return
            # A connection that lived longer than the longest pause was no failed try: begin with short pauses again. So
            # does one that was closed in good order, unless at once; and the next follows without a pause.
            planned = isinstance(self._why, ConnectionClosed)
            if held > self._backoff.longest_delay or (planned and held >= RESEND_DELAY):
                tries = 0
            pause = 0.0 if planned and not tries else self._backoff.delay(tries - planned, random.random())
            logger.info("%s: %s; trying again in %.3g s", self.uri, self._why, pause)
            await trio.sleep(pause)
            tries += 1

    async def _hold_one(self, *, task_status: trio.TaskStatus[float]) -> None:
        """Run one connection, from dialling to its end.

        Call ``task_status.started`` when the next connection is due, with the seconds for which this one took new
        requests. A connection that drains goes on beside the next one.
        """
        if self._ended is not None:
            task_status.started(0.0)  # closed in the pause, while an older connection drains
            return
        self._tell("connecting")
        time_limit = ConnectTimeout(self._terms["connect_timeout"], self.uri)
        try:
            terms = await renewed(self._terms, time_limit)
        except ConnectionLost as error:
            self._lose(fresh_copy(error), refused=False)
            task_status.started(0.0)
        else:
            await self._connect(terms, time_limit, task_status)

    async def _connect(
        self, terms: ConnectionOptions[Any, Any], time_limit: ConnectTimeout, task_status: trio.TaskStatus[float]
    ) -> None:
        since = math.inf
        seen: set[str] = set()
        try:
            async with open_uri(self.uri, terms, time_limit) as connection:
                since = trio.current_time()
                if self._ended is not None:
                    # It makes no other connection any more, while an older one drains.
                    task_status.started(0.0)
                    return
                connection.on_state(seen.add)
                # Requests that wait in `_next` find it when they run, in the order in which they came.
                self._connection = connection
                self._changes.wake_all()
                self._tell("connected")
                if await self._drains(connection):
                    self._connection, self._why = None, ConnectionClosed("the last one drains")
                    self._changes.wake_all()
                    self._tell("draining")
                    task_status.started(trio.current_time() - since)
                    # Its peer ends it as well, unless it has given the sign and nothing more.
                    self._draining.append(connection)
                    try:
                        await (await connection._ready()).wait_quiet()
                    finally:
                        self._draining.remove(connection)
                        self._changes.wake_all()
                    return
                why: Exception = await connection.wait_closed()
                # A session that was resumed once was accepted: a later error is no refusal of the SETUP.
                self._lose(why, refused=isinstance(why, REFUSALS) and "suspended" not in seen)
        except (RSocketError, ValueError, TypeError) as error:
            if since < math.inf:
                raise  # an error of the on_state function
            why = fresh_copy(error)
        if since < math.inf:
            task_status.started(trio.current_time() - since)
            return
        self._lose(why, refused=not isinstance(why, RSocketError) or isinstance(why, REFUSALS))
        task_status.started(0.0)

    async def _drains(self, connection: Connection) -> bool:
        """Wait until a connection takes no new requests. Return whether its open streams may still finish."""
        changed = trio.Event()

        def look(status: str) -> None:
            if status in ("draining", "closed") and not changed.is_set():
                changed.set()
                # Before the refused requests wake. Some were perhaps refused by the connection before this one, too.
                self._resend_at, self._drained_at = self._drained_at + RESEND_DELAY, trio.current_time()

        connection.on_state(look)
        look(connection.status)
        await changed.wait()
        return connection.status == "draining"

    def _lose(self, why: Exception, *, refused: bool) -> None:
        """Record that the connection was lost, or that a try failed."""
        was_connected, self._connection, self._why = self._connection is not None, None, why
        if refused:
            logger.warning("%s: %s; this is not tried again", self.uri, why)
            self._end(why)
            self._tell("closed")
        elif was_connected:
            self._changes.wake_all()
            self._tell("lost")

    def _end(self, why: Exception) -> None:
        if self._ended is None:
            self._ended = why
            self._connection = None
            self._changes.wake_all()

    def _tell(self, state: str) -> None:
        if self.state == "closed":
            return
        self.state = state
        if self._on_state is not None:
            self._on_state(state)


@asynccontextmanager
async def connect_forever(
    uri: str,
    *,
    wait: bool = True,
    backoff: Backoff = BACKOFF,
    on_state: Callable[[str], object] | None = None,
    **options: Unpack[ReconnectOptions],
) -> AsyncIterator[ReconnectingClient]:
    """Provide a client that connects to ``uri``, and reconnects whenever its connection is lost, until the block ends.

    The block starts at once. ``backoff`` sets the pauses between tries, ``wait`` whether requests wait for a connection
    or raise ``ConnectionLost`` at once. ``on_state`` is a plain function that gets ``"connecting"`` at each try,
    ``"connected"`` once the SETUP is queued, ``"lost"``, or ``"draining"`` if open calls may still finish, and at the
    end ``"closed"``.

    The options of each connection are those of ``open_connection``. With ``resume`` a session is resumed first, and a
    new connection is made if that fails. ``setup``, ``headers`` and ``auth`` may be functions, async or not, that are
    called for each new connection, for tokens that expire; each try ends after ``connect_timeout``, those functions
    included. An error of such a function counts as a failed try if the function could not connect itself (see
    ``open_connection_over``); any other error ends the block unchanged. A session that is resumed sends no new SETUP.

    Raise ``ValueError`` and ``TypeError`` at once for options that can be checked then. A refusal (``RejectedSetup``,
    ``InvalidSetup``, ``UnsupportedSetup``, ``NegotiationFailed``, ``Unsupported``) and invalid terms are not tried
    again: the client is closed, and every waiting and later call raises them.
    """
    need_trio()
    if on_state is not None and not callable(on_state):
        raise TypeError(f"on_state is a function, not {type(on_state).__name__}")
    parse_uri(uri)
    fit = checked(options, backoff)
    async with recording_into(fit["capture"]) as recording:
        # One capture for all connections, not one for each.
        fit["capture"] = recording
        client = ReconnectingClient(uri, fit, wait, backoff, on_state)
        async with client._running():
            yield client


def checked(terms: ReconnectOptions, backoff: object) -> ReconnectOptions:
    """Return the terms, usable more than once. Raise ``ValueError`` and ``TypeError`` for terms that are invalid."""
    if not isinstance(backoff, Backoff):
        raise TypeError(f"backoff is a Backoff, not {type(backoff).__name__}")
    complete: dict[str, Any] = dict(completed(open_connection, terms))
    if complete["peer"] is not None:
        peer_and_dialect(complete["peer"], complete["dialect"])
    for name, fit in (("headers", as_headers), ("quirks", tuple), ("extension_entries", tuple), ("around", tuple)):
        if not callable(complete[name]) and not hasattr(complete[name], "call_ended"):
            complete[name] = fit(complete[name])
    if complete["auth"] is not None:
        check_auth_of_setup(complete["auth"], complete["dialect"], complete["peer"], complete["metadata_mime"])
    if complete["codecs"] is not None:
        from rsocket_trio.codecs import checked_codecs

        complete["codecs"] = checked_codecs(complete["codecs"])
    fit_terms: ReconnectOptions = complete  # type: ignore[assignment]  # a dictionary of just these
    call_terms(fit_terms)
    checked_connect_timeout(complete["connect_timeout"])
    return fit_terms


async def renewed(terms: ReconnectOptions, time_limit: ConnectTimeout) -> ConnectionOptions[Any, Any]:
    """Return the options of ``open_connection`` for the next connection.

    Raise ``ConnectionLost`` if a function of the terms could not connect to its own server (see ``is_absence``), or
    took too long. Its other errors are faults of the function, and pass unchanged.
    """
    made: Any = dict(terms)
    for name, as_it_is in RENEWED.items():
        function = made.get(name)
        if not callable(function):
            continue
        try:
            with time_limit.step(f"no {name} for a new connection"):
                result = function()
                made[name] = as_it_is(await result if inspect.isawaitable(result) else result)
        except Exception as error:
            if isinstance(error, ConnectionLost) or not is_absence(error):
                raise
            raise ConnectionLost(f"no {name} for a new connection: {str(error) or type(error).__name__}") from error
    options: ConnectionOptions[Any, Any] = made
    return options
