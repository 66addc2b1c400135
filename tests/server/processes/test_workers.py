"""``serve(..., workers=N)`` of the library: real processes, which go with the scope that serves."""

from __future__ import annotations

import importlib
import os
import signal
import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trustme
from trio.testing import MockClock

from rsocket_trio import (
    Canceled,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Rejected,
    Responder,
    open_connection,
    serve,
)
from rsocket_trio.server.processes import supervisor
from rsocket_trio.server.processes.messages import RETIRE_DELAY
from rsocket_trio.server.processes.supervisor import _hangups
from rsocket_trio.server.serve import serve_here, serve_options
from rsocket_trio.transports.error_text import NO_FRAME
from rsocket_trio.transports.listen import BoundListener, open_listeners
from tests.each_row import each_row, some
from tests.serving import running_server

PATIENCE = 60.0
MODULE = """
import gc
import os
import ssl
import trio
from rsocket_trio import Responder

responder = Responder()

@responder.request_response
async def who(request):
    return str(os.getpid())

@responder.request_response("stay")
async def stay(request):
    await trio.sleep_forever()

@responder.request_response("thresholds")
def thresholds(request):
    return str(gc.get_threshold())

def make_context():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain("server.pem")
    return context
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that can be imported, in the current directory."""
    name = f"workers_app_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


async def ask_until_refused(uri: str) -> None:
    """Connect and ask until nobody listens any more."""
    while True:
        try:
            async with open_connection(uri) as connection:
                await connection.request_response()
        except Rejected:
            continue
        except ConnectionLost as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                return
            # It came between the last look at the queue and the close of the socket.
            assert NO_FRAME in str(error)  # noqa: PT017


async def test_nobody_waits_at_a_port_whose_workers_drain(module: str) -> None:
    async def stay(connection: Connection) -> None:
        with pytest.raises((Canceled, ConnectionClosed)):
            await connection.request_response(route="stay")

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as clients, trio.open_nursery() as servers:
            start = partial(serve, workers=2, grace=PATIENCE)
            [uri] = await servers.start(start, f"{module}:responder", "tcp://127.0.0.1:0")
            async with open_connection(uri) as connection:
                clients.start_soon(stay, connection)
                await connection.request_response()
                servers.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await ask_until_refused(uri)
                assert connection.status != "closed"


@each_row("by_scheme", some([True, False], 1))
async def test_each_worker_makes_its_own_tls_and_collects_rarely(by_scheme: bool, module: str) -> None:
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path("server.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    make_context = importlib.import_module(module).make_context
    given = {"tls": make_context, "h2s": make_context} if by_scheme else make_context

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            start = partial(serve, workers=1, ssl_context=given, grace=1)
            uris = await nursery.start(start, f"{module}:responder", ["tls://localhost:0", "h2s://localhost:0"])
            for uri in uris:
                async with open_connection(uri, ssl_context=trusting) as connection:
                    assert int((await connection.request_response()).text) != os.getpid()
                    assert (await connection.request_response(route="thresholds")).text == "(10000, 10, 10)"
            nursery.cancel_scope.cancel()


# fmt: off
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"ssl_context": ssl.create_default_context()}, TypeError, "ssl_context is a function"),
    ({"ssl_context": {"tls": ssl.create_default_context()}}, TypeError, "ssl_context is a function"),
    ({"capture": SimpleNamespace(_opened=None)},    TypeError, "capture is a directory"),
    ({"responder": "absent_module:responder"},      ValueError, "no module named 'absent_module'"),
    ({"quirks": ["odd"]},                           ValueError, "odd"),
    ({"ssl_context": lambda: None},                 ValueError, "terms are sent to other processes"),
]
# fmt: on


@each_row(("terms", "kind", "said"), WRONG, ids=[said for _, _, said in WRONG])
async def test_what_workers_cannot_serve_is_raised_as_it_is(
    terms: dict[str, Any], kind: type[Exception], said: str, module: str
) -> None:
    plain: dict[str, Any] = {
        "responder": f"{module}:responder",
        "uris": ["tcp://127.0.0.1:0"],
        "workers": 1,
    }
    with trio.fail_after(PATIENCE), pytest.raises(kind, match=said):
        await serve(**plain | terms)


async def test_a_worker_that_does_not_get_to_serve_is_given_up(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{module}.py").write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.setattr(supervisor, "START_TIMEOUT", 0.1)
    with trio.fail_after(PATIENCE), pytest.raises(ChildProcessError, match=r"did not serve within 0\.1 seconds"):
        await serve(f"{module}:responder", "tcp://127.0.0.1:0", workers=1)


async def test_a_listener_of_the_applications_own_cannot_be_shared(module: str) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with pytest.raises(TypeError, match="named by URIs"):
        await serve(f"{module}:responder", listeners, workers=1)
    for listener in listeners:
        await listener.aclose()


async def test_a_responder_by_name_is_served_in_this_process_too(module: str) -> None:
    async with running_server(f"{module}:responder", "memory://by-name") as uri, open_connection(uri) as connection:
        assert int((await connection.request_response()).text) == os.getpid()


# What a worker does when others have taken over


async def listeners() -> Sequence[BoundListener]:
    return await open_listeners(["memory://retiring"])


async def test_a_server_that_retires_accepts_no_more_but_serves_on_before_it_drains(autojump_clock: MockClock) -> None:
    responder = Responder()
    responder.request_response(lambda request: request.data)
    retiring = trio.Event()
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve_here, retiring=retiring), responder, listeners, serve_options())
        async with open_connection(uri) as connection, open_connection(uri) as silent:
            began = trio.current_time()
            retiring.set()
            await trio.testing.wait_all_tasks_blocked()

            with pytest.raises(ConnectionLost, match="nobody listens"):
                async with open_connection(uri) as late:
                    await late.request_response()
            assert (await connection.request_response(b"still here")).data == b"still here"
            await trio.sleep(RETIRE_DELAY * 0.9)
            assert (await silent.request_response(b"first word")).data == b"first word"
            assert isinstance(await connection.wait_closed(), ConnectionClosed)
            assert trio.current_time() == pytest.approx(began + RETIRE_DELAY)


async def test_a_hangup_that_nobody_acted_on_is_forgotten() -> None:
    before = signal.getsignal(signal.SIGHUP)
    async with _hangups():
        signal.raise_signal(signal.SIGHUP)

    assert signal.getsignal(signal.SIGHUP) == before
