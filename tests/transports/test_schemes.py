"""A URI names an endpoint, and one that does not says why."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator

import pytest
import trio
from trio.testing import memory_stream_pair

from rsocket_trio import ConnectionLost, Payload, Responder, current_connection, open_connection, open_shared, serve
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.schemes import (
    REGISTRY,
    SPELLINGS,
    Endpoint,
    ListenOptions,
    Scheme,
    parse_name,
    parse_uri,
    register,
)

# fmt: off
GOOD = [
    ("tcp://127.0.0.1:7878",         Endpoint("tcp", "127.0.0.1", 7878)),
    ("tcp://localhost:0",            Endpoint("tcp", "localhost", 0)),
    ("tcp://[::1]:65535",            Endpoint("tcp", "::1", 65535)),
    ("tls://example.org:443",        Endpoint("tls", "example.org", 443)),
    ("unix:///run/a%20?#.sock",      Endpoint("unix", path="/run/a%20?#.sock")),
    ("ws://example.org/rsocket",     Endpoint("ws", "example.org", 80, "/rsocket")),
    ("ws://example.org:8080",        Endpoint("ws", "example.org", 8080)),
    ("wss://example.org/",           Endpoint("wss", "example.org", 443, "/")),
    ("wss://[::1]/a/b?token=1",      Endpoint("wss", "::1", 443, "/a/b?token=1")),
    ("h2://example.org/rsocket",     Endpoint("h2", "example.org", 80, "/rsocket")),
    ("h2s://[::1]:8443/a?b=c",       Endpoint("h2s", "::1", 8443, "/a?b=c")),
    ("memory://name",                Endpoint("memory", "name")),
]
WRITTEN_OTHERWISE = [
    ("tcp+tls://example.org:7878",   "tls://example.org:7878"),
    ("TCP://example.org:7878/",      "tcp://example.org:7878"),
    ("ws://example.org:80/x",        "ws://example.org/x"),
    ("wss://example.org:443/x",      "wss://example.org/x"),
    ("ws://example.org:443/x",       "ws://example.org:443/x"),
    ("ws://example.org?x=1",         "ws://example.org/?x=1"),
]
BAD = [
    ("",                             "not a URI like tcp://host:port"),
    ("127.0.0.1:7878",               "not a URI like tcp://host:port"),
    ("tcp:127.0.0.1:7878",           "not a URI like tcp://host:port"),
    ("http://example.org:80",        "unknown scheme 'http'"),
    ("://example.org:80",            "unknown scheme ''"),
    ("tcp://example.org",            "the port is missing, as in tcp://host:7878"),
    ("tls://example.org:",           "the port is missing, as in tls://host:7878"),
    ("tcp://[::1]",                  "the port is missing"),
    ("tcp://example.org:65536",      "port '65536' is not a number from 0 to 65535"),
    ("tcp://example.org:-1",         "port '-1' is not a number"),
    ("tcp://example.org:+1",         "port '+1' is not a number"),
    ("tcp://example.org:٣",          "port '٣' is not a number"),
    ("tcp://example.org:http",       "port 'http' is not a number"),
    ("tcp://:7878",                  "the host is missing"),
    ("tcp://",                       "the host is missing"),
    ("ws:///path",                   "the host is missing"),
    ("tcp://::1:7878",               "an IPv6 address needs brackets"),
    ("tcp://[::1:7878",              "an IPv6 address looks like"),
    ("tcp://[::1]7878",              "an IPv6 address looks like"),
    ("tcp://[localhost]:7878",       "'localhost' is not an IPv6 address"),
    ("tcp://example.org:7878/path",  "tcp has no path"),
    ("tls://example.org:7878?x",     "tls has no path"),
    ("ws://example.org/x#y",         "a fragment"),
    ("tcp://exa mple.org:1",         "spaces or control characters"),
    ("ws://example.org/\r\nX: y",    "spaces or control characters"),
    ("unix://run/x.sock",            "an absolute path is needed"),
    ("unix://",                      "an absolute path is needed"),
    ("unix:///run/a b.sock",         "spaces or control characters"),
    ("unix:///run/",                 "an absolute path is needed"),
    ("memory://",                    "a name is needed"),
    ("memory://a/b",                 "a name is needed"),
]
# fmt: on


@pytest.mark.parametrize(("uri", "endpoint"), GOOD)
def test_a_uri_names_an_endpoint_and_the_endpoint_gives_the_uri_back(uri: str, endpoint: Endpoint) -> None:
    assert parse_uri(uri) == endpoint
    assert str(endpoint) == uri


@pytest.mark.parametrize(("uri", "written"), WRITTEN_OTHERWISE)
def test_one_endpoint_is_always_written_in_one_way(uri: str, written: str) -> None:
    assert str(parse_uri(uri)) == written
    assert parse_uri(written) == parse_uri(uri)


@pytest.mark.parametrize(("uri", "text"), BAD)
def test_what_is_no_uri_says_in_one_line_which_and_why(uri: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        parse_uri(uri)

    assert str(caught.value).startswith(f"{uri!r}: ")
    assert text in str(caught.value)


def test_a_password_in_a_uri_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="passwords do not belong") as caught:
        parse_uri("ws://user:secret@example.org/")

    assert "secret" not in str(caught.value)


class PipeListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts the ends of pairs of memory streams."""

    def __init__(self) -> None:
        self.arriving, self._arrived = trio.open_memory_channel[trio.abc.Stream](10)
        self.accepted: list[trio.abc.Stream] = []

    async def accept(self) -> trio.abc.Stream:
        self.accepted.append(await self._arrived.receive())
        return self.accepted[-1]

    async def aclose(self) -> None:
        self._arrived.close()
        await trio.lowlevel.checkpoint()


@pytest.fixture
def pipes() -> Iterator[dict[str, PipeListener]]:
    """The listeners of a scheme that is registered for one test."""
    bound: dict[str, PipeListener] = {}

    async def dial(endpoint: Endpoint) -> trio.abc.Stream:
        if endpoint.host not in bound:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        ours, theirs = memory_stream_pair()
        await bound[endpoint.host].arriving.send(theirs)
        return ours

    async def listen(endpoint: Endpoint, options: ListenOptions) -> tuple[Endpoint, list[PipeListener]]:
        bound[endpoint.host] = PipeListener()
        return endpoint, [bound[endpoint.host]]

    register(Scheme(name="pipe", parse=parse_name, write=lambda endpoint: endpoint.host, dial=dial, listen=listen))
    yield bound
    del REGISTRY["pipe"], SPELLINGS["pipe"]
    parse_uri.cache_clear()


async def test_a_new_transport_is_one_row(pipes: dict[str, PipeListener]) -> None:
    responder = Responder()
    handshakes: list[Handshake] = []

    @responder.request_response("echo")
    async def echo(payload: Payload) -> Payload:
        handshakes.append(current_connection().handshake)
        return Payload(payload.data)

    async with trio.open_nursery() as nursery:
        uris = await nursery.start(serve, responder, ["pipe://a", "tcp://127.0.0.1:0"])
        assert uris[0] == "pipe://a"
        async with open_connection("pipe://a") as connection:
            assert await connection.request_response(b"over a pipe", route="echo") == Payload(b"over a pipe")
        with pytest.raises(ConnectionLost, match=r"^pipe://b: connection refused$"):
            async with open_connection("pipe://b"):
                pass
        with pytest.raises(ValueError, match="only ws, wss, h2 and h2s have a handshake"):
            async with open_connection("pipe://a", headers={"A": "b"}):
                pass
        with pytest.raises(ValueError, match="'pipe://a': pipe carries one connection, and can't be shared"):
            async with open_shared("pipe://a"):
                pass
        nursery.cancel_scope.cancel()

    assert [(each.transport, each.peer_address) for each in handshakes] == [("pipe", "pipe://a")]
    for stream in pipes["a"].accepted:
        with pytest.raises(trio.ClosedResourceError):
            await stream.send_all(b"x")


@pytest.mark.parametrize("scheme", ["h2", "h2s"])
async def test_what_is_not_installed_is_named_with_the_command_that_installs_it(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h2", None)
    text = rf"^{scheme}:// needs the module h2: pip install '\.\[http2\]' in a checkout of rsocket_trio$"
    with pytest.raises(ModuleNotFoundError, match=text):
        async with open_connection(f"{scheme}://127.0.0.1:1"):
            pass
    with pytest.raises(ModuleNotFoundError, match=text):
        async with open_shared(f"{scheme}://127.0.0.1:1"):
            pass
    with pytest.raises(ModuleNotFoundError, match=text):
        await serve(Responder(), f"{scheme}://127.0.0.1:0")


def test_an_unknown_scheme_is_refused_with_those_that_are_known(pipes: object) -> None:
    with pytest.raises(ValueError, match=r"unknown scheme 'pope', known are tcp, tls, tcp\+tls, .*, aeron, pipe$"):
        parse_uri("pope://a")
