"""A URI names an endpoint, and one that does not says why."""

from __future__ import annotations

import sys

import pytest

from rsocket_trio import Responder, open_connection, open_shared, serve
from rsocket_trio.transports.schemes import (
    Endpoint,
    parse_uri,
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
    ("http://example.org:80",        "unknown scheme 'http'"),
    ("tcp://example.org",            "the port is missing, as in tcp://host:7878"),
    ("tcp://example.org:65536",      "port '65536' is not a number from 0 to 65535"),
    ("tcp://example.org:٣",          "port '٣' is not a number"),
    ("tcp://:7878",                  "the host is missing"),
    ("tcp://::1:7878",               "an IPv6 address needs brackets"),
    ("tcp://[::1:7878",              "an IPv6 address looks like"),
    ("tcp://[localhost]:7878",       "'localhost' is not an IPv6 address"),
    ("tcp://example.org:7878/path",  "tcp has no path"),
    ("ws://example.org/x#y",         "a fragment"),
    ("ws://example.org/\r\nX: y",    "spaces or control characters"),
    ("unix://run/x.sock",            "an absolute path is needed"),
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


async def test_what_a_scheme_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="only ws, wss, h2 and h2s have a handshake"):
        async with open_connection("tcp://127.0.0.1:1", headers={"A": "b"}):
            pass
    with pytest.raises(ValueError, match="tcp carries one connection, and can't be shared"):
        async with open_shared("tcp://127.0.0.1:1"):
            pass
