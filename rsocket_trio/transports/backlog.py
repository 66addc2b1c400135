"""The connections that wait at a listener: taken to the last one before it is closed, so that none of them is cut."""

from __future__ import annotations

import errno
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

AcceptedT = TypeVar("AcceptedT", bound=trio.abc.AsyncResource)
Carrier_co = TypeVar("Carrier_co", bound=trio.abc.AsyncResource, covariant=True)

DEFAULT_BACKLOG = 1024
"""Connections that the system completes before they are accepted. It cuts this down to its own maximum."""
BACKLOG_TIMEOUT = 1.0
"""Seconds that taking them may last, while further ones come."""
QUIET_TIME = 0.01
"""Seconds without a connection after which none waits at a listener that can't tell."""
IN_A_ROW = 32
"""Connections that are taken before other tasks run."""
ONE_LOST = frozenset(
    getattr(errno, name)
    for name in (
        *("ECONNABORTED", "ECONNRESET", "EPERM", "EPROTO", "ENOPROTOOPT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT"),
        *("ENETDOWN", "ENETUNREACH", "EHOSTDOWN", "EHOSTUNREACH", "ENONET", "ENOSR", "EOPNOTSUPP", "ETIMEDOUT"),
    )
    if hasattr(errno, name)
)
"""Errors of accept that concern one connection only, according to Linux's accept(2)."""


class QueueListener(trio.abc.Listener[Carrier_co]):
    """A listener that knows whether a connection waits."""

    @abstractmethod
    def take_or_close(self) -> Carrier_co | None:
        """Return the connection that waits first. If none does, close this, and return ``None``.

        Raise ``ClosedResourceError``, and ``OSError``: one of ``ONE_LOST`` if that connection is gone already.
        """

    def hide(self) -> None:
        """Have no more clients find this, if that cuts off none of those that wait."""


async def take_waiting(
    listener: trio.abc.Listener[AcceptedT],
    on_accepted: Callable[[AcceptedT], object],
    on_shortage: Callable[[OSError], Awaitable[object]],
) -> None:
    """Take what waits, at most ``DEFAULT_BACKLOG`` connections within ``BACKLOG_TIMEOUT``, whatever is cancelled.

    ``on_shortage`` waits until accepting is worth another try, or raises the error. The caller closes the listener.
    """
    if isinstance(listener, QueueListener):
        listener.hide()
    with trio.CancelScope(shield=True, deadline=trio.current_time() + BACKLOG_TIMEOUT):
        for number in range(1, DEFAULT_BACKLOG + 1):
            try:
                if isinstance(listener, QueueListener):
                    accepted = listener.take_or_close()
                else:
                    accepted = None
                    with trio.move_on_after(QUIET_TIME):
                        accepted = await listener.accept()
            except OSError as error:
                if error.errno not in ONE_LOST:
                    await on_shortage(error)
                continue
            except trio.ClosedResourceError:
                return
            if accepted is None:
                return
            on_accepted(accepted)
            if number % IN_A_ROW == 0:
                await trio.lowlevel.checkpoint()
