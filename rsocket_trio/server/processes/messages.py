"""The messages from a supervisor to a worker: the start message with all that it serves, and words to go."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from io import BytesIO
from typing import Any, BinaryIO, TypeAlias

import attrs

from rsocket_trio.server.processes.import_responder import find_responder, split_name
from rsocket_trio.transports.listen import Inherited
from rsocket_trio.transports.schemes import REGISTRY

Run: TypeAlias = Callable[..., Awaitable[None]]
"""``run(responder, inherited, retiring=event, task_status=...)`` serves what was inherited until it is cancelled.

Once the event is set it takes no new connections, lets those that it has finish, and returns.
"""
Work: TypeAlias = Callable[..., Awaitable[None]]
"""``work(retiring=event, task_status=...)`` is what a process does until it is cancelled; ``Run`` with its sockets."""
Prepare: TypeAlias = Callable[[Sequence[Inherited]], tuple[int, Work]]
"""Imports what a process needs, with the sockets that it inherits. Return the number that it reports, and its work."""

DRAIN = b"d"
"""Take nothing new, let what is under way finish within the grace period, and go."""
RETIRE = b"r"
"""The same, but others serve already: connections that were accepted just now may still ask for something first."""

RETIRE_DELAY = 5.0
"""Seconds that a worker which retires goes on serving what it has, before it drains.

A connection that it accepted at the last moment gets to ask for something, and what was asked for is not cut.
"""

MARGIN = 3.0
"""Seconds beyond its grace period after which a process that still runs hangs."""


@attrs.frozen
class StartMessage:
    """The work of a worker: the sockets that it inherits, and ``run``, an encoded ``Prepare``.

    ``name`` is shown in its command line. ``grace`` is the number of seconds that open streams get to finish.
    """

    name: str
    inherited: tuple[Inherited, ...]
    grace: float
    run: bytes
    path: tuple[str, ...] = attrs.field(factory=lambda: tuple(sys.path))

    @property
    def descriptors(self) -> list[int]:
        """All sockets that a worker inherits."""
        return [descriptor for sockets in self.inherited for descriptor in sockets.descriptors]

    def encode(self) -> bytes:
        """Encode the message for a process of the same Python."""
        return pickle.dumps(self)


def receive_start(words: BinaryIO) -> StartMessage | None:
    """Receive the start message, and nothing behind it. Return ``None`` if the supervisor is gone."""
    try:
        start: StartMessage = pickle.load(words)
    except (EOFError, pickle.UnpicklingError):
        return None
    return start


class _TermsPickler(pickle.Pickler):
    """A pickler that refuses objects of the main script, which workers don't run."""

    def reducer_override(self, value: object) -> Any:
        if getattr(value, "__module__", None) == "__main__" and isinstance(value, type | Callable):
            name = getattr(value, "__qualname__", repr(value))
            raise ValueError(f"{name} is of the main script, which workers don't run: move it into a module")
        return NotImplemented


def prepare_serving(name: str, run: Run, inherited: Sequence[Inherited]) -> tuple[int, Work]:
    """Import the named responder. Return the number of its routes, and the work of serving it."""
    responder = find_responder(name)
    return len(responder.routes), partial(run, responder, inherited)


def encode_run(run: Prepare | Run) -> bytes:
    """Pickle a function, for another process. Raise ``ValueError`` for terms that can't be pickled."""
    buffer = BytesIO()
    try:
        _TermsPickler(buffer).dump(run)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ValueError(f"with workers, terms are sent to other processes, and one can't be: {error}") from error
    return buffer.getvalue()


def check_workers(workers: object, name: object, schemes: Sequence[str], *, resumes: bool) -> int:
    """Return the number of workers.

    Raise ``ValueError`` or ``TypeError`` for arguments that worker processes can't serve.
    """
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise TypeError(f"workers is a number of processes, not {workers!r}")
    if workers < 1:
        raise ValueError(f"workers is {workers}: at least 1 is needed")
    if not isinstance(name, str):
        raise TypeError("with workers the responder is named, as in 'app:responder': each process imports it")
    if split_name(name)[0] == "__main__":
        raise ValueError(f"{name}: workers don't run the main script: move the responder into a module")
    for scheme in schemes:
        if REGISTRY[scheme].is_local:
            raise ValueError(f"{scheme}{REGISTRY[scheme].separator} is within one process: workers can't share it")
    if resumes and workers > 1:
        raise ValueError("resume needs one process, for a client that comes back may reach another worker")
    return workers
