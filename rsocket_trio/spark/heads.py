"""Asks a server for the bounds of its partitions in the background, so that a slow server does not delay Spark.

Once bounds are known, a server that can't be reached counts as one that has no new rows.
"""

from __future__ import annotations

import logging
import threading

from rsocket_trio.spark.background import Background
from rsocket_trio.spark.connections import PASSING_FOR_READS
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.ranges import Bounds
from rsocket_trio.spark.replayed import ask_bounds

logger = logging.getLogger("rsocket_trio.spark")

PATIENCE = 0.5
"""Seconds that a micro-batch waits for new bounds before it is planned with the known ones."""


class Heads:
    """The bounds of the server's partitions as last heard. One thread asks; the request runs in the background."""

    def __init__(self, background: Background, options: Options) -> None:
        self._background = background
        self._options = options
        self._changed = threading.Condition()
        self._asking = False
        self._error: Exception | None = None
        self._is_away = False
        self.known: dict[int, Bounds] | None = None

    def fresh(self, patience: float = PATIENCE) -> dict[int, Bounds]:
        """Return the bounds as they are now, or as last heard where no answer comes in time.

        Raise the server's refusal, and ``ConnectionLost`` if the server never answered.
        """
        with self._changed:
            if not self._asking:
                self._asking = True
                self._error = None
                self._background.start(self._ask)
            self._changed.wait_for(lambda: not self._asking, None if self.known is None else patience)
            error = self._error
            if error is not None and (self.known is None or not isinstance(error, PASSING_FOR_READS)):
                raise error
            if error is not None and not self._is_away:
                logger.warning(
                    "%s: the server is away, no new rows until it is back: %s", self._options.route, str(error)
                )
            self._is_away = error is not None
            assert self.known is not None
            return self.known

    async def _ask(self) -> None:
        error: Exception | None = None
        bounds = None
        try:
            bounds = await ask_bounds(self._background.pool, self._options)
        except Exception as exc:
            # Raised in the thread that asked.
            error = exc
        finally:
            with self._changed:
                self._asking = False
                self._error = error
                if bounds is not None:
                    self.known = bounds
                self._changed.notify_all()
            del error
