"""Each served scheme of TLS has its context, and that of HTTP/2 is its own."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trustme

from rsocket_trio import Responder, current_connection, open_connection, serve
from rsocket_trio.transports.listen import server_contexts
from rsocket_trio.transports.schemes import parse_uri
from tests.each_row import each_row

AUTHORITY = trustme.CA()
URIS = ["tls://127.0.0.1:0", "wss://127.0.0.1:0/rsocket", "h2s://127.0.0.1:0/rsocket"]


def make_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    return context


class Maker:
    """A function that counts the contexts that it made."""

    def __init__(self) -> None:
        self.made: list[ssl.SSLContext] = []

    def __call__(self) -> ssl.SSLContext:
        self.made.append(make_context())
        return self.made[-1]


SHARED = make_context()
# fmt: off
WAYS: list[tuple[str, Callable[[], Any]]] = [
    ("a function",             lambda: make_context),
    ("a mapping of contexts",  lambda: {"tls": SHARED, "wss": SHARED, "h2s": make_context()}),
    ("a mapping of functions", lambda: dict.fromkeys(["tls", "wss", "h2s"], make_context)),
    ("a mapping of both",      lambda: {"tcp+tls": make_context, "wss": make_context(), "h2s": make_context}),
]
# fmt: on


@each_row(("way", "make"), WAYS)
async def test_all_schemes_of_tls_are_served_together(way: str, make: Callable[[], Any]) -> None:
    responder = Responder()

    @responder.request_response
    def scheme(request: object) -> str:
        return current_connection().handshake.transport

    async with trio.open_nursery() as nursery:
        bound = await nursery.start(partial(serve, responder, URIS, ssl_context=make()))
        for uri in bound:
            trusting = ssl.create_default_context()
            AUTHORITY.configure_trust(trusting)
            async with open_connection(uri, ssl_context=trusting) as connection:
                assert (await connection.request_response()).text == parse_uri(uri).scheme
        nursery.cancel_scope.cancel()


def test_a_function_is_called_once_for_each_scheme_that_is_served() -> None:
    make, other = Maker(), Maker()
    endpoints = [parse_uri(uri) for uri in ("tcp://h:1", "tls://h:2", "tcp+tls://h:3", "h2s://h:4", "tls://h:5")]

    contexts = server_contexts(endpoints, make)
    assert contexts == dict(zip(("tls", "h2s"), make.made, strict=True))

    contexts = server_contexts(endpoints, {"tls": other, "h2s": other, "wss": other})
    assert contexts == dict(zip(("tls", "h2s"), other.made, strict=True))
    assert server_contexts([parse_uri("tcp://h:1")], make) == {}
    assert len(make.made) == 2


class Noting(ssl.SSLContext):
    """A context that notes what it is told to offer."""

    offers: list[list[str]]

    def set_alpn_protocols(self, alpn_protocols: Any) -> None:
        self.__dict__.setdefault("offers", []).append(list(alpn_protocols))
        super().set_alpn_protocols(alpn_protocols)


async def test_what_the_context_of_http_2_offers_is_set_once_when_serving_begins() -> None:
    context = Noting(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, Responder(), "h2s://127.0.0.1:0", ssl_context=context))
        assert context.offers == [["h2"]]
        for _ in range(2):
            trusting = ssl.create_default_context()
            AUTHORITY.configure_trust(trusting)
            async with open_connection(uri, ssl_context=trusting):
                pass
        nursery.cancel_scope.cancel()
    assert context.offers == [["h2"]]


def test_contexts_of_other_schemes_are_left_as_they_are() -> None:
    context = Noting(ssl.PROTOCOL_TLS_SERVER)
    assert server_contexts([parse_uri("tls://h:1"), parse_uri("wss://h:2")], context) == dict.fromkeys(
        ("tls", "wss"), context
    )
    assert "offers" not in context.__dict__


PEM = {"tls": "server.pem"}
# fmt: off
WRONG: list[tuple[list[str], Any, type[Exception], str]] = [
    # schemes         ssl_context                      error
    (["tls", "h2s"],  SHARED,                          ValueError, "one ssl_context for tls and h2s, which offer diff"),
    (["h2s", "wss"],  {"h2s": SHARED, "wss": SHARED},  ValueError, "one ssl_context for h2s and wss, which offer diff"),
    (["h2s", "wss"],  lambda: SHARED,                  ValueError, "give a mapping {'h2s': ..., 'wss': ...} of two co"),
    (["tls"],         None,                            ValueError, "tls://127.0.0.1:0: serving TLS needs an ssl_conte"),
    (["tls", "wss"],  {"tls": SHARED},                 ValueError, "wss://127.0.0.1:0: serving TLS needs an ssl_conte"),
    (["tls"],         {"tls": SHARED, "tcp": SHARED},  ValueError, "for 'tcp': the schemes of TLS are tls, tcp+tls, w"),
    (["tls"],         PEM,                             TypeError,  "'tls' is an ssl.SSLContext or a function that mak"),
    (["tls"],         lambda: None,                    TypeError,  "not NoneType of its function"),
]
# fmt: on


@each_row(("schemes", "ssl_context", "kind", "text"), WRONG)
async def test_contexts_that_cannot_serve_are_an_error_before_anything_is_bound(
    schemes: list[str], ssl_context: Any, kind: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bind(*_: object) -> None:
        pytest.fail("it was bound")

    monkeypatch.setattr("rsocket_trio.transports.listen._bind", bind)
    uris = ["tcp://127.0.0.1:0", *(f"{scheme}://127.0.0.1:0" for scheme in schemes)]
    with pytest.raises(kind) as caught:
        await serve(Responder(), uris, ssl_context=ssl_context)
    assert text in str(caught.value)
