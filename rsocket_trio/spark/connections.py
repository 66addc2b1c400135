"""A pool of connections to servers, kept in the background thread, with failover from one URI to the next.

All reads and writes of a Python worker with the same server, credentials and terms share one connection.
"""

from __future__ import annotations

import logging
import math
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import attrs
import trio

from rsocket_trio import Connection, ConnectionClosed, ConnectionLost, RejectedSetup, open_connection
from rsocket_trio.errors import RSocketError, SetupError, fresh_copy
from rsocket_trio.metadata import BearerAuthentication, Credentials, SimpleAuthentication
from rsocket_trio.spark.errors import OptionError
from rsocket_trio.spark.options import Options, shown_uri
from rsocket_trio.terms import Backoff

logger = logging.getLogger("rsocket_trio.spark")

Target: TypeAlias = Options
"""The options that a connection depends on, all others being the default: the key of a shared one."""
TARGET_FIELDS: Final = (
    *("uris", "data_mime", "metadata_mime", "setup_data"),
    *("auth_type", "auth_user", "auth_password", "auth_token", "tls_ca", "tls_cert", "tls_key"),
    *("connect_timeout", "connection_idle_timeout"),
)


def target_of(options: Options) -> Target:
    return Options(route="", **{name: getattr(options, name) for name in TARGET_FIELDS})


def ssl_context(target: Target) -> ssl.SSLContext | None:
    """Make the TLS context of the options, ``None`` if they set none. Raise ``OptionError``."""
    if target.tls_ca is None and target.tls_cert is None:
        return None
    option = "tls.ca"
    try:
        context = ssl.create_default_context(cafile=target.tls_ca)
        option = "tls.cert"
        if target.tls_cert is not None:
            context.load_cert_chain(target.tls_cert, target.tls_key)
    except OSError as error:
        problem = error.strerror or type(error).__name__
    else:
        return context
    # Outside the handler: its error names the file.
    raise OptionError(f"option {option!r} does not work: {problem}")


def credentials(target: Target) -> Credentials | None:
    if target.auth_type == "simple":
        return SimpleAuthentication(target.auth_user or "", target.auth_password or "")
    return None if target.auth_type is None else BearerAuthentication(target.auth_token or "")


@attrs.define(eq=False)
class PooledConnection:
    """A connection of the pool, the number of its users, and its state."""

    target: Target
    connection: Connection | None = None
    error: Exception | None = None
    users: int = 0
    distrusted: bool = False
    settled: trio.Event = attrs.field(factory=trio.Event)
    changed: trio.Event = attrs.field(factory=trio.Event)

    @property
    def is_usable(self) -> bool:
        """Return whether new requests may use it, as far as is known; true while it is being opened."""
        return (
            self.error is None and not self.distrusted and (self.connection is None or self.connection.status == "open")
        )


class Pool:
    """The connections of a process, by target. Used in the background thread only."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._pooled: dict[Target, PooledConnection] = {}
        self._first: dict[tuple[str, ...], int] = {}
        self._closing = False

    @asynccontextmanager
    async def connection(self, target: Target) -> AsyncIterator[Connection]:
        """Hold the shared connection to the target for the block.

        Raise ``ConnectionLost`` naming every URI that was tried and why it failed, and a ``SetupError`` where all
        servers refused: ``RejectedSetup`` if one of them may accept later.
        """
        pooled = self._pooled.get(target)
        if pooled is None or not pooled.is_usable:
            self._pooled[target] = pooled = PooledConnection(target)
            self._nursery.start_soon(self._hold, pooled)
        pooled.users += 1
        try:
            await pooled.settled.wait()
            if pooled.error is not None:
                if isinstance(pooled.error, RSocketError):
                    raise fresh_copy(pooled.error)
                raise (OptionError if isinstance(pooled.error, OptionError) else ValueError)(str(pooled.error))
            assert pooled.connection is not None
            yield pooled.connection
        finally:
            pooled.users -= 1
            # Wakes ``_outlast_users``, which counts the idle time from the last user on.
            pooled.changed.set()

    def distrust(self, connection: Connection) -> None:
        """Take a silent connection out of use: new requests go to another, and it is closed after its last user."""
        for pooled in self._pooled.values():
            if pooled.connection is connection:
                pooled.distrusted = True
                pooled.changed.set()

    async def aclose(self) -> None:
        """Close all connections; their users get an error."""
        self._closing = True
        for pooled in self._pooled.values():
            pooled.changed.set()
        await trio.lowlevel.checkpoint()

    async def _hold(self, pooled: PooledConnection) -> None:
        try:
            async with self._open(pooled.target) as connection:
                pooled.connection = connection
                # Wakes the users that asked while it was being opened.
                pooled.settled.set()
                await self._outlast_users(pooled, connection)
        except Exception as error:
            # Raised in the tasks that wait for the connection.
            pooled.error = error
        finally:
            pooled.settled.set()
            if self._pooled.get(pooled.target) is pooled:
                del self._pooled[pooled.target]

    async def _outlast_users(self, pooled: PooledConnection, connection: Connection) -> None:
        """Wait until the connection has been idle for long enough, or is closed."""
        async with trio.open_nursery() as nursery:

            async def end_with_connection() -> None:
                await connection.wait_closed()
                nursery.cancel_scope.cancel()

            nursery.start_soon(end_with_connection)
            while not self._closing:
                pooled.changed = trio.Event()
                patience = 0.0 if pooled.distrusted else pooled.target.connection_idle_timeout
                with trio.move_on_after(math.inf if pooled.users else patience) as idle:
                    await pooled.changed.wait()
                if idle.cancelled_caught and not pooled.users:
                    break
            # From now on no new user may get this one.
            if self._pooled.get(pooled.target) is pooled:
                del self._pooled[pooled.target]
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def _open(self, target: Target) -> AsyncIterator[Connection]:
        """Open a connection to the first URI that answers, beginning with the one that did last."""
        context, auth = ssl_context(target), credentials(target)
        problems: list[str] = []
        refusals: list[SetupError] = []
        first = self._first.get(target.uris, 0)
        for number in range(len(target.uris)):
            index = (first + number) % len(target.uris)
            uri = target.uris[index]
            opened = connected = False
            problem = ""
            deadline = trio.current_time() + target.connect_timeout
            try:
                async with open_connection(
                    uri,
                    setup=target.setup_data,
                    auth=auth,
                    data_mime=target.data_mime,
                    metadata_mime=target.metadata_mime,
                    ssl_context=context,
                    connect_timeout=target.connect_timeout,
                ) as connection:
                    opened = True
                    # A server that refuses, or a proxy without a server, shows here. A server answers the
                    # first ping while it still considers the setup: a refusal comes before the second answer.
                    with trio.move_on_at(deadline) as scope:
                        await connection.ping()
                        await connection.ping()
                    if scope.cancelled_caught:
                        raise ConnectionLost(f"{uri}: no answer to a ping within {target.connect_timeout:g} s")
                    connected = True
                    self._first[target.uris] = index
                    yield connection
            except (ConnectionLost, ConnectionClosed, SetupError) as error:
                if connected:
                    if isinstance(error, SetupError):
                        self._first[target.uris] = (index + 1) % len(target.uris)  # it took its time: try another next
                    raise
                if isinstance(error, SetupError):
                    refusals.append(error)
                    opened = False
                problem = str(error).replace(uri, shown_uri(uri))
                problem = problem if shown_uri(uri) in problem else f"{shown_uri(uri)}: {problem}"
            else:
                return
            if opened:
                problem += " (it took the connection: is it a server of RSocket, and this transport its own?)"
            problems.append(problem)
        if len(refusals) < len(problems):
            raise ConnectionLost("; ".join(problems))
        raise next((refusal for refusal in refusals if isinstance(refusal, RejectedSetup)), refusals[0])


class Tries:
    """Counts and delays the retries of an operation. A success resets the count."""

    def __init__(self, options: Options, what: str) -> None:
        self._backoff = Backoff(first_delay=0.25, longest_delay=8.0, jitter=0.2)
        self._most = options.reconnect_max_attempts
        self._what = what
        self.number = 0
        self.last: Exception | None = None
        """The error of the last try."""

    def succeeded(self) -> None:
        """Reset the count: the next failure is a first one."""
        self.number = 0

    async def failed(self, error: Exception) -> None:
        """Wait before the next try. After the last try raise ``ConnectionLost``, or the refusal of a server."""
        self.last = error
        if self.number >= self._most:
            if isinstance(error, SetupError):
                raise fresh_copy(error)
            raise ConnectionLost(f"{self._what}: given up after {self.number + 1} tries: {error}")
        delay = self._backoff.delay(self.number, random.random())
        self.number += 1
        logger.info("%s: try %d of %d in %.1f s: %s", self._what, self.number, self._most, delay, str(error))
        await trio.sleep(delay)


async def request_over(pool: Pool, connection: Connection, options: Options, route: str, data: bytes = b"") -> bytes:
    """Return the data of the answer to a request. Raise ``ConnectionLost`` where the server is silent."""
    try:
        with trio.fail_after(options.read_timeout):
            return (await connection.request_response(data, route=route)).data
    except trio.TooSlowError:
        pool.distrust(connection)
        raise ConnectionLost(f"no answer within {options.read_timeout:g} s") from None


async def request(
    pool: Pool, options: Options, route: str, data: bytes, may_pass: Callable[[Exception], bool]
) -> bytes:
    """Return the data of the answer to a request, which must be safe to repeat.

    It is tried again after errors that ``may_pass``. Raise the others, and ``ConnectionLost`` after the last try.
    """
    tries = Tries(options, f"asking {route}")
    while True:
        try:
            async with pool.connection(target_of(options)) as connection:
                return await request_over(pool, connection, options, route, data)
        except Exception as error:
            if not may_pass(error):
                raise
            await tries.failed(error)
