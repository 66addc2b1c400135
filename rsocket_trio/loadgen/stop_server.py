"""Stops a load early: the driver serves one route that answers when the tasks are to stop.

Spark can only kill tasks, and then their counts are lost. So each task sends a request to the driver, over a connection
of this library, and ends in order when it is answered or when the driver is gone.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
from functools import partial
from typing import Final

import attrs
import trio

from rsocket_trio import ConnectionClosed, Invalid, Payload, Rejected, Responder, open_connection, serve
from rsocket_trio.errors import RSocketError

logger = logging.getLogger("rsocket_trio.spark")

START_TIMEOUT = 10.0
"""Seconds that the server gets to listen, and its thread to end."""


@attrs.frozen
class Address:
    """The URI that a task sends its stop request to, and the token that authorizes it."""

    uri: str
    token: bytes = attrs.field(repr=False)


class StopServer:
    """A thread of the driver that answers tasks when they are to stop. Raise ``OSError`` if it can't listen."""

    def __init__(self, bind: str, host: str) -> None:
        """Listen at the address ``bind``, which tasks reach as ``host``."""
        self._token = secrets.token_bytes(16)
        self._listening = threading.Event()
        self._uris: list[str] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(
            target=trio.run, args=(self._main, f"tcp://{bracketed(bind)}:0"), name="rsocket-trio load", daemon=True
        )
        self._thread.start()
        self._listening.wait(START_TIMEOUT)
        if not self._uris:
            self._thread.join(START_TIMEOUT)
            raise OSError(f"cannot listen at {bind}: {self._error}")
        port = self._uris[0].rpartition(":")[2]
        self.address: Final = Address(f"tcp://{bracketed(host)}:{port}", self._token)
        """The address for the tasks."""

    def stop(self) -> None:
        """Have all tasks stop."""
        self._in_thread(self._stop)

    def close(self) -> None:
        """End the thread, and with it the load of tasks that still run."""
        self._in_thread(self._over)
        self._thread.join(START_TIMEOUT)

    def _in_thread(self, event: trio.Event) -> None:
        try:
            self._trio.run_sync_soon(event.set)
        except trio.RunFinishedError:
            pass  # it is over already

    async def _main(self, uri: str) -> None:
        self._trio = trio.lowlevel.current_trio_token()
        self._stop, self._over = trio.Event(), trio.Event()
        responder = Responder()

        @responder.request_response("stop")
        async def stop(request: Payload) -> bytes:
            if not hmac.compare_digest(request.data, self._token):
                raise Invalid("another token")
            await self._stop.wait()
            return b""

        try:
            async with trio.open_nursery() as nursery:
                self._uris += await nursery.start(partial(serve, responder, [uri], grace=0))
                self._listening.set()
                await self._over.wait()
                nursery.cancel_scope.cancel()
        except* OSError as group:
            self._error = group.exceptions[0]
        finally:
            self._listening.set()


async def wait_for_stop(address: Address) -> None:
    """Return when the driver asks for a stop or is gone. Wait for ever if it can't be reached or refuses."""
    connected = False
    try:
        async with open_connection(address.uri) as connection:
            await connection.ping()
            connected = True
            await connection.request_response(address.token, route="stop")
            return
    except RSocketError as error:
        if connected and (isinstance(error, ConnectionClosed) or not isinstance(error, Invalid | Rejected)):
            return
        logger.warning("the load cannot be stopped before its time: %s", str(error))
    # Outside the except block, which would keep the connection alive.
    await trio.sleep_forever()


def bracketed(host: str) -> str:
    """Return a host as it is written in a URI: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
