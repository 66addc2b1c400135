"""What a connection tells the log, and what it only counts: a peer must not be able to fill a disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import attrs

from rsocket_trio.errors import readable

logger = logging.getLogger("rsocket_trio")


@attrs.define(eq=False)
class Faults:
    """Counts of what went wrong or was dropped; the first of each kind is logged with the connection's name."""

    connection: object
    peer_faults: int = 0
    """Times that the peer broke the rules."""
    handler_errors: int = 0
    """Handlers that failed with an exception of their own."""
    dropped: int = 0
    """Fire-and-forget requests and pushed metadata that no handler took."""
    _functions: dict[Callable[..., Any], None] = attrs.field(factory=dict)  # an empty set costs 216 bytes

    def of_peer(self, text: str) -> None:
        """The peer broke a rule: one line for each connection."""
        self.peer_faults += 1
        if self.peer_faults == 1:
            # The name as text: whoever keeps the record must not keep the connection.
            logger.warning("%s: %s; further faults are counted", repr(self.connection), readable(text))

    def of_handler(self, function: Callable[..., Any], error: BaseException) -> None:
        """A handler failed: the first time of each handler with its traceback."""
        self.handler_errors += 1
        if function not in self._functions:
            self._functions[function] = None
            name = getattr(function, "__qualname__", repr(function))
            logger.error(
                "%s: handler %s failed; further failures are counted", repr(self.connection), name, exc_info=error
            )

    def fatal(self, error: BaseException) -> None:
        """The connection ends because this side can't say what went wrong on one stream."""
        logger.warning("%s: %s", repr(self.connection), str(error), exc_info=error.__cause__)

    def lost(self, error: BaseException) -> None:
        """The connection ended without agreement."""
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s: %s", repr(self.connection), str(error))
