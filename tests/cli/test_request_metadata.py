"""How route, credentials and texts become the metadata of one MIME type."""

from __future__ import annotations

from typing import Any

import pytest

from rsocket_trio.cli.options import mime
from rsocket_trio.cli.request_metadata import Metadata, compose, simple
from rsocket_trio.metadata import (
    APPLICATION_JSON,
    AUTHENTICATION,
    COMPOSITE_METADATA,
    ROUTING,
    TEXT_PLAIN,
    BearerAuthentication,
    Entry,
    SimpleAuthentication,
    decode_composite,
    encode_authentication,
    encode_composite,
)
from tests.rows import Rows

TOKEN = BearerAuthentication("token")
TEXT_ENTRY = encode_composite([Entry(TEXT_PLAIN, b"a")])
TOKEN_ENTRY = encode_composite([Entry(AUTHENTICATION, encode_authentication(TOKEN))])


def test_nothing_said_is_composite_metadata_that_is_absent() -> None:
    assert compose([], [], default_mime=TEXT_PLAIN) == Metadata(COMPOSITE_METADATA, None, None, None)


def test_one_text_alone_stands_as_it_is() -> None:
    assert compose(["a"], [], default_mime=TEXT_PLAIN) == Metadata(TEXT_PLAIN, None, b"a", None)
    assert compose(["a"], [APPLICATION_JSON], default_mime=TEXT_PLAIN) == Metadata(APPLICATION_JSON, None, b"a", None)
    assert compose([], [APPLICATION_JSON], default_mime=TEXT_PLAIN, setup_text="s") == Metadata(
        APPLICATION_JSON, None, None, b"s"
    )


def test_a_route_makes_the_text_an_entry() -> None:
    composed = compose(["a"], [], default_mime=TEXT_PLAIN, route="r")

    assert composed == Metadata(COMPOSITE_METADATA, "r", TEXT_ENTRY, None)


def test_a_route_alone_may_be_plain_routing_metadata() -> None:
    assert compose([], [ROUTING], default_mime=TEXT_PLAIN, route="r") == Metadata(ROUTING, "r", None, None)
    assert compose([], [APPLICATION_JSON], default_mime=TEXT_PLAIN, route="r") == Metadata(
        COMPOSITE_METADATA, "r", None, None
    )


def test_several_texts_are_entries_each_of_its_type() -> None:
    composed = compose(["a", "b", "c"], [TEXT_PLAIN, APPLICATION_JSON], default_mime=TEXT_PLAIN)

    assert composed.content is not None
    assert decode_composite(composed.content) == [
        Entry(TEXT_PLAIN, b"a"),
        Entry(APPLICATION_JSON, b"b"),
        Entry(APPLICATION_JSON, b"c"),
    ]


def test_credentials_come_before_texts() -> None:
    composed = compose(["a"], [], default_mime=TEXT_PLAIN, credentials=TOKEN)

    assert composed == Metadata(COMPOSITE_METADATA, None, TOKEN_ENTRY + TEXT_ENTRY, TOKEN_ENTRY)


SETUPS: list[tuple[str, dict[str, Any], bytes | None, bytes]] = [
    ("credentials alone", {}, TOKEN_ENTRY, TOKEN_ENTRY),
    ("of a push", {"setup_only": True}, None, TOKEN_ENTRY),
    ("beside a text of the SETUP", {"setup_text": "a"}, TOKEN_ENTRY, TEXT_ENTRY + TOKEN_ENTRY),
    (
        "beside credentials of the SETUP",
        {"setup_text": "simple:ann:pw", "setup_mime": AUTHENTICATION},
        TOKEN_ENTRY,
        encode_composite([Entry(AUTHENTICATION, encode_authentication(SimpleAuthentication("ann", "pw")))]),
    ),
]


def test_credentials_are_in_the_setup_as_well() -> None:
    with Rows() as row:
        for name, terms, content, setup in SETUPS:
            with row(name):
                composed = compose([], [], default_mime=TEXT_PLAIN, credentials=TOKEN, **terms)
                assert composed == Metadata(COMPOSITE_METADATA, None, content, setup)


def test_a_setup_in_another_type_makes_all_of_it_composite() -> None:
    composed = compose(["a"], [], default_mime=TEXT_PLAIN, setup_text="bearer:token", setup_mime=AUTHENTICATION)

    assert composed == Metadata(COMPOSITE_METADATA, None, TEXT_ENTRY, TOKEN_ENTRY)


def test_composite_metadata_is_ready_made() -> None:
    ready = "\x05hallo"
    composed = compose([ready], [COMPOSITE_METADATA], default_mime=TEXT_PLAIN, credentials=TOKEN)

    assert composed.content == TOKEN_ENTRY + ready.encode()


@pytest.mark.parametrize(
    ("name", "full"), [("json", APPLICATION_JSON), ("text", TEXT_PLAIN), ("a/b", "a/b"), ("routing", ROUTING)]
)
def test_a_short_name_means_a_type(name: str, full: str) -> None:
    assert mime(name) == full


def test_a_password_may_have_colons_and_is_not_shown() -> None:
    assert simple("user:a:b").password == "a:b"
    with pytest.raises(ValueError, match="user:password") as caught:
        simple("secret")
    assert "secret" not in str(caught.value)
