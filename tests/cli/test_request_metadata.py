"""How route, credentials and texts become the metadata of one MIME type."""

from __future__ import annotations

from typing import Any

import pytest

from rsocket_trio.cli.client_command import Metadata, compose, simple
from rsocket_trio.metadata import (
    APPLICATION_JSON,
    AUTHENTICATION,
    COMPOSITE_METADATA,
    TEXT_PLAIN,
    BearerAuthentication,
    Entry,
    SimpleAuthentication,
    encode_authentication,
    encode_composite,
)
from tests.rows import Rows

TOKEN = BearerAuthentication("token")
TEXT_ENTRY = encode_composite([Entry(TEXT_PLAIN, b"a")])
TOKEN_ENTRY = encode_composite([Entry(AUTHENTICATION, encode_authentication(TOKEN))])


def test_one_text_alone_stands_as_it_is() -> None:
    assert compose(["a"], [], default_mime=TEXT_PLAIN) == Metadata(TEXT_PLAIN, b"a", None)
    assert compose(["a"], [APPLICATION_JSON], default_mime=TEXT_PLAIN) == Metadata(APPLICATION_JSON, b"a", None)
    assert compose([], [APPLICATION_JSON], default_mime=TEXT_PLAIN, setup_text="s") == Metadata(
        APPLICATION_JSON, None, b"s"
    )


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
                assert composed == Metadata(COMPOSITE_METADATA, content, setup)


def test_a_password_may_have_colons_and_is_not_shown() -> None:
    assert simple("user:a:b").password == "a:b"
    with pytest.raises(ValueError, match="user:password") as caught:
        simple("secret")
    assert "secret" not in str(caught.value)
