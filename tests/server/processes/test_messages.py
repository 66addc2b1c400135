"""What workers can't serve is said before any is started, and what they are told arrives."""

from __future__ import annotations

import socket
import threading
from functools import partial

import pytest

from rsocket_trio import Responder
from rsocket_trio.server.processes.messages import (
    DRAIN,
    StartMessage,
    check_workers,
    encode_run,
    receive_start,
)
from rsocket_trio.transports.listen import Inherited
from rsocket_trio.transports.schemes import parse_uri
from tests.each_row import each_row


async def run(*arguments: object, **terms: object) -> None:
    """Nothing."""


# fmt: off
WRONG: list[tuple[object, object, list[str], bool, type[Exception], str]] = [
    # workers  name              schemes    resumes  raises      and says
    (0,        "app:responder",  ["tcp"],   False,   ValueError, "at least 1"),
    (-1,       "app:responder",  ["tcp"],   False,   ValueError, "workers is -1"),
    (True,     "app:responder",  ["tcp"],   False,   TypeError,  "not True"),
    (1.5,      "app:responder",  ["tcp"],   False,   TypeError,  "not 1.5"),
    ("2",      "app:responder",  ["tcp"],   False,   TypeError,  "not '2'"),
    (2,        Responder(),      ["tcp"],   False,   TypeError,  "the responder is named"),
    (2,        "app",            ["tcp"],   False,   ValueError, "MODULE:RESPONDER"),
    (2,        "__main__:it",    ["tcp"],   False,   ValueError, "don't run the main script"),
    (2,        "app:responder",  ["memory"], False,  ValueError, "within one process"),
    (2,        "app:responder",  ["tcp"],   True,    ValueError, "resume needs one process"),
]
# fmt: on


@each_row(("workers", "name", "schemes", "resumes", "kind", "said"), WRONG)
def test_what_cannot_be_served_is_refused(
    workers: object, name: object, schemes: list[str], resumes: bool, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        check_workers(workers, name, schemes, resumes=resumes)


def test_terms_of_the_main_script_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_context() -> None: ...

    make_context.__module__, make_context.__qualname__ = "__main__", "make_context"

    with pytest.raises(ValueError, match="make_context is of the main script"):
        encode_run(partial(run, make_context))


@pytest.mark.parametrize("what", [lambda: None, threading.Lock()], ids=["lambda", "lock"])
def test_terms_that_cannot_be_sent_are_refused(what: object) -> None:
    with pytest.raises(ValueError, match="terms are sent to other processes"):
        encode_run(partial(run, what))


def test_orders_arrive_in_pieces_and_a_supervisor_that_went_gives_none() -> None:
    start = StartMessage("app:responder", (Inherited(parse_uri("tcp://h:1"), (7, 8)),), 2.5, b"run" * 100_000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        content = start.encode()
        sent = ours.send(content[:1000])
        ours.shutdown(socket.SHUT_WR)
        assert sent == 1000
        assert receive_start(theirs.makefile("rb")) is None

    small = StartMessage("app:responder", (Inherited(parse_uri("tcp://h:1"), (7, 8)),), 2.5, b"run")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(small.encode() + DRAIN)
        words = theirs.makefile("rb")
        assert receive_start(words) == small
        assert words.read(1) == DRAIN
        assert small.descriptors == [7, 8]
