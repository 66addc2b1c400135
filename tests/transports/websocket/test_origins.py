"""Which pages may open a WebSocket: those of the server's own host, and those that it names."""

from __future__ import annotations

import logging

import pytest

from rsocket_trio import Responder, serve
from rsocket_trio.transports.websocket.origins import OWN, parse_origins
from tests.each_row import each_row
from tests.transports.websocket.test_upgrade import answered, request


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, "app.example"),
        ("http://app.example", "app.example"),
        ("https://app.example:8443", "app.example"),
        ("https://app.example", "app.example:7878"),
        ("http://app.example.", "app.example"),
        ("http://127.0.0.1:3000", "127.0.0.1:7878"),
        ("http://[::1]:3000", "[::1]:7878"),
        ("http://[0:0:0:0:0:0:0:1]", "[::1]"),
        ("https://xn--bcher-kva.example", "bücher.example"),
        ("app://app.example", "app.example"),
    ],
)
def test_who_is_no_page_and_pages_of_the_same_host_are_let_in(origin: str | None, host: str) -> None:
    assert OWN.allow([] if origin is None else [origin], [host])


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://evil.example", "app.example"),
        ("http://app.example.evil.example", "app.example"),
        ("http://app.example:80@evil.example", "app.example"),
        ("http://127.0.0.1", "localhost"),
        ("http://[::1]", "[::2]"),
        ("null", "app.example"),
        ("", ""),
        ("http://app.example/", "app.example"),
        ("http://app.example http://evil.example", "app.example"),
        ("http://app.example:99999", "app.example"),
        pytest.param("http://app.example:" + "9" * 5000, "app.example", id="a port of 5,000 digits"),
        pytest.param("http://" + "ü" * 5000, "ü" * 5000, id="a host of 5,000 letters"),
        ("http://\xfc..\xfc", "\xfc..\xfc"),
        ("http://app.example", ""),
        ("http://app.example", "app.example/x"),
    ],
)
def test_every_other_page_is_not(origin: str, host: str) -> None:
    assert not OWN.allow([origin], [host])


def test_of_two_origins_or_two_hosts_none_counts() -> None:
    assert not OWN.allow(["http://app.example", "http://app.example"], ["app.example"])
    assert not OWN.allow(["http://app.example"], ["app.example", "app.example"])


ALLOWED = "https://app.example:8443", "http://Other.Example.:80", "https://[::1]", "chrome-extension://abcdef"


@pytest.mark.parametrize(
    "origin",
    ["https://app.example:8443", "http://other.example", "https://[0::1]:443", "chrome-extension://abcdef"],
)
def test_full_origins_are_let_in_beside_the_own_host(origin: str) -> None:
    origins = parse_origins(ALLOWED)

    assert origins.allow([origin], ["server.example"])
    assert origins.allow(["http://server.example"], ["server.example"])
    assert origins.allow([], ["server.example"])


@pytest.mark.parametrize(
    "origin",
    ["http://app.example:8443", "https://app.example", "https://other.example", "https://sub.app.example:8443", "null"],
)
def test_an_origin_is_scheme_host_and_port(origin: str) -> None:
    assert not parse_origins(ALLOWED).allow([origin], ["server.example"])


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "file://", "anything"])
def test_a_star_lets_everybody_in(origin: str) -> None:
    assert parse_origins("*").allow([origin], ["app.example"])
    assert parse_origins(["https://app.example", "*"]).allow([origin], ["app.example"])


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("app.example", "is no scheme, host and port"),
        ("null", "is no scheme, host and port"),
        ("", "is no scheme, host and port"),
        ("https://app.example/", "is no scheme, host and port"),
        ("https://app.example?q", "is no scheme, host and port"),
        ("https://*.example", "no scheme, host and port"),
        ("https://me@app.example", "no scheme, host and port"),
        ("https://app.example:port", "no scheme, host and port"),
        ("https://app.example:70000", "no scheme, host and port"),
        ("https://[::x]", "no scheme, host and port"),
        ("https://a.example,b.example", "no scheme, host and port"),
        (" https://app.example", "no scheme, host and port"),
    ],
)
async def test_what_is_no_origin_is_refused_by_name_before_anything_is_bound(wrong: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        await serve(Responder(), "ws://127.0.0.1:0", origins=["https://fine.example", wrong])
    assert repr(wrong) in str(caught.value)


async def test_what_is_no_text_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="origins are text"):
        await serve(Responder(), "ws://127.0.0.1:0", origins=[80])  # type: ignore[list-item]


@each_row(
    ("origins", "said", "status"),
    [
        ((), b"Origin: http://server.example:3000", b"101"),
        ((), b"Origin: https://evil.example", b"403"),
        ((), b"Origin: null", b"403"),
        ((), b"oRiGiN: https://evil.example", b"403"),
        (["https://app.example:8443"], b"Origin: https://app.example:8443", b"101"),
        (["https://app.example:8443"], b"Origin: http://server.example", b"101"),
        (["https://app.example:8443"], b"Origin: https://app.example", b"403"),
        ("*", b"Origin: null", b"101"),
    ],
)
async def test_a_server_lets_pages_in_by_their_origin(
    origins: str | list[str], said: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        answers = await answered(request(said), request(said), origins=origins)

    assert all(answer.startswith(b"HTTP/1.1 " + status) for answer in answers)
    turned_away = [record for record in caplog.records if "a page was turned away" in record.message]
    if status == b"403":
        assert b"content-length: 0" in answers[0].lower()
        assert [record.levelno for record in turned_away] == [logging.WARNING, logging.DEBUG]
        assert "is not allowed; the host here is 'server.example'" in turned_away[0].message
    else:
        assert turned_away == []


async def test_a_path_that_is_not_served_tells_a_page_nothing_of_origins() -> None:
    [answer] = await answered(request(b"Origin: https://evil.example", first=b"GET /other HTTP/1.1"))

    assert answer.startswith(b"HTTP/1.1 404")
