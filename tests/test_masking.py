"""Credentials are shown by no ``repr``: neither whole nor in part, as text, as hex or as base64."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio import Payload, Setup
from rsocket_trio.cli.client_command import Ask, compose
from rsocket_trio.connection.protocols import client_setup
from rsocket_trio.masking import (
    AUTHENTICATION,
    AUTHENTICATION_ID,
    may_hold_credentials,
    shown_header,
    shown_headers,
    shown_metadata,
)
from rsocket_trio.metadata import (
    APPLICATION_JSON,
    COMPOSITE_METADATA,
    IDS,
    ROUTING,
    BearerAuthentication,
    Entry,
    OtherAuthentication,
    SimpleAuthentication,
    encode_authentication,
    encode_composite,
    mime,
    read_request,
    with_route,
)
from rsocket_trio.mux.events import MetadataPushed
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import MetadataPush
from rsocket_trio.rsocket import frames
from rsocket_trio.rsocket.dialect import RSOCKET_1_0
from rsocket_trio.rsocket.extensions.entries import ResumeRequest
from rsocket_trio.rsocket.handshake import ClientTerms
from rsocket_trio.terms import Keepalive
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.connect import open_transport
from tests.secret import SECRET, by_text, shows

TOKEN = encode_authentication(BearerAuthentication(SECRET))
PASSWORD = encode_authentication(SimpleAuthentication("ann", SECRET))
OWN = encode_authentication(OtherAuthentication("own", SECRET.encode()))
NUMBERED = encode_authentication(OtherAuthentication(0x55, SECRET.encode()))

METADATA = {
    "by number": encode_composite([Entry(AUTHENTICATION, TOKEN)]),
    "by text": by_text(TOKEN),
    "behind a route": with_route("a", encode_composite([Entry(AUTHENTICATION, PASSWORD)]), COMPOSITE_METADATA),
    "inside composite metadata": encode_composite([Entry(COMPOSITE_METADATA, by_text(TOKEN))]),
    "cut short": by_text(TOKEN)[:-1],
    "token": TOKEN,
    "user name and password": PASSWORD,
    "password alone": encode_authentication(SimpleAuthentication("", SECRET)),
    "scheme by text": OWN,
    "scheme by number": NUMBERED,
}


def things(metadata: bytes) -> list[object]:
    """Return everything that holds the metadata of a peer, or of a call."""
    payload = Payload(b"data", metadata)
    terms = ClientTerms(payload, APPLICATION_JSON, COMPOSITE_METADATA, Keepalive(), False, False)
    return [
        payload,
        [payload],
        MetadataPush(metadata),
        MetadataPushed(metadata),
        Setup(dialect="rsocket/1.0", payload=payload, metadata_mime=AUTHENTICATION),
        terms,
        client_setup(RSOCKET_1_0, terms),
        compose([], [], default_mime=APPLICATION_JSON, credentials=BearerAuthentication(SECRET)),
        Ask(uri="tcp://h:1", content=metadata),
    ]


def framed(metadata: bytes) -> list[object]:
    """Return every frame that has metadata or a token, and may hold a part of some."""
    payload = Payload(b"data", metadata)
    return [
        frames.SetupFrame(1, 0, 20, 90, APPLICATION_JSON, APPLICATION_JSON, payload, resume_token=metadata),
        frames.SetupOkFrame(payload, (frames.ExtensionEntry("own", payload=metadata),)),
        frames.RequestFrame(1, Interaction.REQUEST_STREAM, payload, 7, follows=True),
        frames.PayloadFrame(1, payload),
        frames.LeaseFrame(1, 2, metadata),
        frames.RequestNFrame(1, 2, metadata),
        frames.CancelFrame(1, metadata),
        frames.ErrorFrame(1, 0x201, b"no", metadata),
        frames.MetadataPushFrame(metadata),
        frames.ExtFrame(1, 9, metadata, metadata=metadata),
        frames.ResumeFrame(1, 0, metadata, 1, 2),
        ResumeRequest(metadata),
    ]


@pytest.mark.parametrize("metadata", METADATA.values(), ids=METADATA)
def test_credentials_are_in_no_repr(metadata: bytes) -> None:
    assert shows(str(metadata)), "the metadata of this test holds the secret"
    for thing in [*things(metadata), *framed(metadata)]:
        assert not shows(repr(thing)), type(thing).__name__
        assert not shows(f"{thing!s}"), type(thing).__name__


def test_a_fragment_that_is_nothing_but_a_part_of_a_token_is_in_no_repr_of_a_frame() -> None:
    for frame in framed(SECRET.encode()):
        assert not shows(repr(frame)), type(frame).__name__


@pytest.mark.parametrize("mime", [AUTHENTICATION, AUTHENTICATION_ID])
def test_the_type_of_metadata_says_that_it_is_secret(mime: str | int) -> None:
    assert repr(Payload(b"", SECRET, metadata_mime=mime)).startswith(f"Payload(b'', metadata=<{len(SECRET)} bytes>, ")


def test_an_entry_shows_what_is_no_credential() -> None:
    assert repr(Entry(APPLICATION_JSON, b"{}")) == "Entry(mime='application/json', content=b'{}')"
    assert repr(Entry(AUTHENTICATION, b"\x81abc")) == f"Entry(mime='{AUTHENTICATION}', content=<4 bytes>)"
    assert repr(Entry(AUTHENTICATION_ID, b"\x81abc")) == "Entry(mime=124, content=<4 bytes>)"
    for content in METADATA.values():
        assert not shows(repr(Entry(COMPOSITE_METADATA, content)))


@pytest.mark.parametrize("name", ["by number", "by text", "behind a route"])
def test_the_entries_of_a_call_show_no_credentials(name: str) -> None:
    found = read_request(METADATA[name], COMPOSITE_METADATA)

    assert [entry.mime for entry in found.travelling] == [AUTHENTICATION]
    assert not shows(repr(found))


READABLE = {
    b"": "b''",
    b"plain": "b'plain'",
    b"{'json': true}": "b\"{'json': true}\"",
    b"\x05greet": "b'\\x05greet'",
    b"\x05greet\x02de": "b'\\x05greet\\x02de'",
    b"words with spaces " * 4: "b'words with spaces words with spaces word'... 72 bytes",
    encode_composite([Entry(ROUTING, b"\x05greet")]): "b'\\xfe\\x00\\x00\\x06\\x05greet'",
    encode_composite([Entry("x/y", b"1")]): "b'\\x02x/y\\x00\\x00\\x011'",
}


@pytest.mark.parametrize(("metadata", "text"), READABLE.items())
def test_text_and_composite_metadata_without_credentials_is_shown(metadata: bytes, text: str) -> None:
    assert shown_metadata(metadata) == text
    assert repr(Payload(b"", metadata)) == f"Payload(b'', metadata={text})"


@given(
    st.text(),
    st.text(),
    st.lists(st.sampled_from([Entry(APPLICATION_JSON, b"{}"), Entry(ROUTING, b"\1a"), Entry("x/y", b"")])),
)
def test_whatever_credentials_stand_among_are_recognized(user: str, password: str, others: list[Entry]) -> None:
    content = encode_authentication(SimpleAuthentication(user, password))
    entries = encode_composite(others)

    assert may_hold_credentials(content)
    assert may_hold_credentials(entries + encode_composite([Entry(AUTHENTICATION, content)]) + entries)
    assert may_hold_credentials(entries + by_text(content) + entries)


def test_the_type_is_the_one_of_the_extension() -> None:
    assert (mime.AUTHENTICATION, IDS[mime.AUTHENTICATION]) == (AUTHENTICATION, AUTHENTICATION_ID)


def test_headers_with_credentials_and_cookies_are_masked() -> None:
    headers = (("authorization", f"Bearer {SECRET}"), ("x-one", "1"), ("cookie", SECRET))

    for thing in (Setup(dialect="rsocket/1.0", headers=headers), Handshake(headers=headers)):
        assert not shows(repr(thing))
        assert "('authorization', ***), ('x-one', '1'), ('cookie', ***)" in repr(thing)
    assert shown_headers(()) == "()"
    assert shown_headers((("a", "b"),)) == repr((("a", "b"),))
    assert shown_header("Authorization", SECRET) == "***"


def test_a_header_that_http_cannot_say_shows_no_token() -> None:
    with pytest.raises(ValueError, match="header 'Authorization'") as caught:
        open_transport("ws://127.0.0.1:1/", headers={"Authorization": f"Bearer {SECRET}\n"})

    assert not shows(str(caught.value))
