"""URIs of Aeron, and the channels and messages that are made of them."""

from __future__ import annotations

import pytest

from rsocket_trio.transports.aeron.aeron_handshake import (
    SETUP,
    SETUP_COMPLETE,
    SetupMessage,
    decode_setup_message,
    encode_setup_message,
)
from rsocket_trio.transports.aeron.channels import AeronChannel, address_of
from rsocket_trio.transports.schemes import parse_uri

# fmt: off
GOOD = [
    "aeron:ipc",
    "aeron:ipc?directory=/dev/shm/app|term-length=16m",
    "aeron:udp?endpoint=127.0.0.1:7878",
    "aeron:udp?endpoint=[::1]:7878|control=[::1]:0|mtu=8k|so-rcvbuf=2m",
]
BAD = [
    ("aeron:",                                  "an Aeron channel begins with aeron:udp? or is aeron:ipc, not ''"),
    ("aeron:udp",                               "the endpoint is missing, as in aeron:udp?endpoint=host:7878"),
    ("aeron:udp?endpoint=host",                 "the port is missing, as in aeron:udp?endpoint=host:7878"),
    ("aeron:udp?endpoint=host:70000",           "port '70000' is not a number from 0 to 65535"),
    ("aeron:udp?endpoint=::1:7",                "an IPv6 address needs brackets"),
    ("aeron:udp?endpoint=host:7|control=host",  "the port is missing"),
    ("aeron:udp?endpoint=host:7|session-id=1",  "the parameter 'session-id' is not known here, only endpoint,"),
    ("aeron:udp?endpoint=host:7|mtu",           "the parameter 'mtu' has no value"),
    ("aeron:udp?endpoint=a:7|endpoint=b:7",     "the parameter 'endpoint' is there twice"),
    ("aeron:ipc?endpoint=host:7",               "endpoint is a parameter of udp, and ipc has no address"),
    ("aeron://host:7",                          "an Aeron channel begins with aeron:udp?"),
]
MALFORMED = [
    (b"",                                                    "a message of 0 bytes, the shortest has 22"),
    (b"\2\0" + b"\1\0\0\0" + bytes(16),                      "version 2, known is 1"),
    (b"\1\0" + b"\1\0\0\0" + bytes(12) + b"\4\0\0\0" + b"a", "a channel of 4 bytes in a message of 23"),
    (b"\1\0" + b"\1\0\0\0" + bytes(12) + b"\xff" * 4,        "a channel of 4294967295 bytes in a message of 22"),
    (b"\1\0" + b"\1\0\0\0" + bytes(8) + b"\xff" * 4 + bytes(4), "stream 4294967295, the last is 2147483647"),
    (b"\1\0" + b"\1\0\0\0" + bytes(12) + b"\1\0\0\0\xff",    "invalid start byte"),
]
# fmt: on


@pytest.mark.parametrize("uri", GOOD)
def test_a_uri_is_given_back(uri: str) -> None:
    assert str(parse_uri(uri)) == uri


@pytest.mark.parametrize(("uri", "text"), BAD)
def test_a_uri_that_is_none_says_why(uri: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"^'aeron:") as caught:
        parse_uri(uri)
    assert text in str(caught.value)


def test_each_direction_has_its_own_parameters() -> None:
    channel = AeronChannel.of(parse_uri("aeron:udp?endpoint=10.0.0.7:7|term-length=16m|so-rcvbuf=2m|directory=/tmp/d"))

    assert channel.to("10.0.0.7:7", -5) == "aeron:udp?endpoint=10.0.0.7:7|session-id=-5|term-length=16m"
    assert channel.at("10.0.0.9:0", 5, 77) == "aeron:udp?endpoint=10.0.0.9:0|session-id=5|tags=77|so-rcvbuf=2m"
    assert channel.parameters["directory"] == "/tmp/d"


@pytest.mark.parametrize(
    ("message", "text", "session"),
    [
        (
            SetupMessage(SETUP, 0x0102030405060708, 4, "aeron:ipc"),
            "01 00 01 00 00 00 08 07 06 05 04 03 02 01 04 00 00 00 09 00 00 00 61 65 72 6f 6e 3a 69 70 63",
            0x05060708,
        ),
        (
            SetupMessage(SETUP_COMPLETE, 0xFFFFFFFF, 3),
            "01 00 02 00 00 00 ff ff ff ff 00 00 00 00 03 00 00 00 00 00 00 00",
            -1,
        ),
    ],
)
def test_a_message_has_the_bytes_of_the_page(message: SetupMessage, text: str, session: int) -> None:
    data = encode_setup_message(message)

    assert data.hex(" ") == text
    assert decode_setup_message(data) == message
    assert message.session == session


@pytest.mark.parametrize(("data", "text"), MALFORMED)
def test_a_message_that_is_malformed_says_why(data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decode_setup_message(data)


@pytest.mark.parametrize("channel", ["aeron:ipc", "aeron:udp?control=a:7", "aeron:udp?endpoint=a", "http://a:7", ""])
def test_a_channel_of_a_peer_without_an_address_is_refused(channel: str) -> None:
    with pytest.raises(ValueError, match=r"endpoint|port"):
        address_of(channel)


def test_a_channel_of_a_peer_with_a_name_is_refused_since_resolving_it_would_stop_the_loop() -> None:
    with pytest.raises(ValueError, match="'localhost' does not appear to be an IPv4 or IPv6 address"):
        address_of("aeron:udp?endpoint=localhost:7")
    assert address_of("aeron:udp?endpoint=[fe80::1]:7") == "[fe80::1]:7"
