"""Options: one table, checked in one place; what is wrong is named, what is secret is not shown."""

from __future__ import annotations

from typing import Any

import pytest

from rsocket_trio.spark.errors import OptionError
from rsocket_trio.spark.options import Options, Use, checked, parse_options

BASE = {"path": "tcp://127.0.0.1:7878", "route": "orders"}
SECRETS = {
    "auth.type": "simple",
    "auth.user": "hidden-user",
    "auth.password": "hidden-password",
    "tls.ca": "/hidden/ca.pem",
    "tls.cert": "/hidden/cert.pem",
    "tls.key": "/hidden/key.pem",
    "setupData": "hidden-setup",
    "path": "tls://127.0.0.1:7878",
}


def parsed(use: Use = Use.BATCH_READ, /, **given: str) -> Options:
    return parse_options(BASE | given, use)


def test_names_are_found_whatever_their_case() -> None:
    options = parse_options({"PATH": "tcp://a:1", "Route": "r", "maxrowspertrigger": "7"}, Use.STREAM_READ)

    assert (options.uris, options.route, options.max_rows_per_trigger) == (("tcp://a:1",), "r", 7)


def test_what_nobody_gives_is_the_default() -> None:
    options = parsed()

    assert options.credit == 2048
    assert (options.batch_rows, options.batch_bytes, options.batch_max_delay) == (8192, 4 * 2**20, 0.2)
    assert options.max_trigger_delay == 900.0
    assert options.fail_on_data_loss
    assert options.buffer_bytes == 256 * 2**20
    assert (options.reconnect_max_attempts, options.connect_timeout, options.read_timeout) == (5, 10.0, 60.0)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("readTimeout", "2m", "read_timeout", 120.0),
        ("failOnDataLoss", "False", "fail_on_data_loss", False),
        ("payload", "ARROW", "payload", "arrow"),
        ("startingPosition", "Latest", "starting_position", "latest"),
        ("startingPosition", '{"1": 5, "0": 7}', "starting_position", ((("", 0), 7), (("", 1), 5))),
        ("startingPosition", '{"b": {"0": 7}, "a": {"1": 5}}', "starting_position", ((("a", 1), 5), (("b", 0), 7))),
        ("requestData", "base64:aGk=", "request", b"hi"),
        ("uri", "tcp://a:1, tcps://b:2", "uris", ("tcp://a:1", "tls://b:2")),
    ],
)
def test_texts_mean(name: str, text: str, field: str, value: object) -> None:
    given = {key: one for key, one in BASE.items() if name != "uri" or key != "path"}

    assert getattr(parse_options({**given, name: text}, Use.BATCH_READ), field) == value


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("credit", "0", "between 1 and 2147483647"),
        ("readTimeout", "soon", "not a time"),
        ("failOnDataLoss", "yes", "neither true nor false"),
        ("payload", "avro", "none of raw, arrow"),
        ("startingPosition", "first", "neither earliest"),
        ("startingPosition", '{"0": -1}', "position -1 of partition 0"),
        ("dataMimeType", "a\ud800", "has at character 1 half of a surrogate pair"),
        ("requestData", "base64:%", "not base64"),
        ("path", "host:1", "not a URI"),
        ("route", "r" * 256, "has 256 bytes, the limit is 255"),
    ],
)
def test_what_can_not_be_is_refused_with_the_options_name(name: str, text: str, problem: str) -> None:
    with pytest.raises(OptionError, match=f"^option '{name}'.*{problem}"):
        parse_options({**BASE, name: text}, Use.BATCH_READ)


@pytest.mark.parametrize(
    ("use", "name", "text", "problem"),
    [
        (Use.STREAM_READ, "bufferBytes", "0", "at least 1"),
        (Use.STREAM_READ, "bufferBytes", "9" * 400, "must be between 1 and 9223372036854775807"),
        (Use.STREAM_READ, "ackRoute", "r" * 256, "has 256 bytes"),
        (Use.STREAM_READ, "reader", "a/b", "is no name of a reader: 1 to 64 letters"),
        (Use.STREAM_READ, "reader", "", "is no name of a reader"),
        (Use.BATCH_WRITE, "batch", "-1", "must be at least 0"),
        (Use.BATCH_WRITE, "sinkId", "s" * 257, "has 257 characters, the limit is 256"),
    ],
)
def test_what_is_too_long_or_too_large_is_named(use: Use, name: str, text: str, problem: str) -> None:
    with pytest.raises(OptionError, match=f"^option '{name}'.*{problem}"):
        parse_options({**BASE, name: text}, use)


@pytest.mark.parametrize("name", ["startingPosition", "startingTimestamp"])
def test_json_of_any_depth_is_refused_with_the_options_name(name: str) -> None:
    with pytest.raises(OptionError, match=f"^option '{name}' of .* JSON such as"):
        parse_options({**BASE, name: '{"a":' * 100_000}, Use.STREAM_READ)


@pytest.mark.parametrize("missing", ["path", "route"])
def test_what_is_required_is_named(missing: str) -> None:
    with pytest.raises(OptionError, match=f"option '{missing}' is missing"):
        parse_options({name: text for name, text in BASE.items() if name != missing})


@pytest.mark.parametrize(
    ("unknown", "near"), [("rout", "'route'"), ("maxRowPerTrigger", "'maxRowsPerTrigger'"), ("pathh", "'path'")]
)
def test_an_unknown_option_is_refused_with_the_nearest_name(unknown: str, near: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option '{unknown}': did you mean {near}"):
        parsed(**{unknown: "1"})


def test_an_option_given_under_both_names_is_refused() -> None:
    with pytest.raises(OptionError, match="'path' is given twice"):
        parsed(uri="tcp://b:1")


@pytest.mark.parametrize(
    ("name", "use", "message"),
    [
        ("delivery", Use.BATCH_READ, "not for read: it is for write, writeStream"),
        ("credit", Use.STREAM_WRITE, "not for writeStream: it is for read, readStream"),
        ("reader", Use.BATCH_READ, "not for read: it is for readStream"),
        ("maxRows", Use.STREAM_READ, "not for readStream: it is for read"),
    ],
)
def test_an_option_for_another_use_is_refused(name: str, use: Use, message: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name}' is {message}"):
        parse_options({**BASE, name: "1"}, use)


def test_sparks_own_options_of_a_query_are_passed_over() -> None:
    assert parsed(Use.STREAM_WRITE, checkpointLocation="/tmp/c", queryName="q").route == "orders"


def test_no_secret_is_shown() -> None:
    shown = repr(parsed(**SECRETS))

    assert "hidden" not in shown
    assert shown.count("(redacted)") == 6
    assert "auth_type='simple'" in shown


def test_the_query_of_a_uri_is_not_shown() -> None:
    with pytest.raises(OptionError) as caught:
        parsed(path="kafka://host/path?token=hidden")
    assert "hidden" not in str(caught.value)

    options = parsed(path="ws://host/path?token=hidden,tcp://other:1")
    assert options.shown_uris == "ws://host/path?..., tcp://other:1"
    assert "hidden" not in repr(options)


@pytest.mark.parametrize(
    "path",
    [
        *("tcp://ada:hidden@host:1", "tcp://other:1,ws://ada:hidden@host:1/x", "tcp://ada:hid,hidden@host:1"),
        *("tcp://ada:hidden/x@host:1", "ws://ada:hidden?x@host:1", "hidden@host:1", "ada://ada:hidden@host:1"),
    ],
)
def test_a_password_in_a_uri_is_refused_and_not_shown(path: str) -> None:
    with pytest.raises(OptionError, match=r"user names and passwords do not belong into a URI.*'auth.type'") as caught:
        parsed(path=path)

    assert "hid" not in str(caught.value)


def test_the_fingerprint_is_that_of_the_rows_and_not_of_the_server() -> None:
    same = [parsed(), parsed(path="tcp://other:1"), parsed(credit="7"), parsed(minPartitions="9")]
    other = [parsed(route="b"), parsed(payload="arrow"), parsed(positions="server"), parsed(requestData="x")]

    assert len({options.fingerprint for options in same}) == 1
    assert len({options.fingerprint for options in [same[0], *other]}) == 5


# What does not fit together


@pytest.mark.parametrize(
    ("use", "given", "message"),
    [
        (Use.BATCH_READ, {"auth.user": "u"}, "'auth.type' is missing"),
        (Use.BATCH_READ, {"auth.type": "simple", "auth.user": "u"}, "needs 'auth.user' and 'auth.password'"),
        (
            Use.BATCH_READ,
            {"auth.type": "simple", "auth.user": "u", "auth.password": "p", "auth.token": "t"},
            "'auth.token' is for",
        ),
        (
            Use.BATCH_READ,
            {"auth.type": "bearer", "auth.token": "t", "metadataMimeType": "text/plain"},
            "needs composite metadata",
        ),
        (Use.BATCH_READ, {"tls.key": "k"}, "'tls.key' needs 'tls.cert'"),
        (Use.BATCH_READ, {"tls.ca": "c"}, "need a path that begins with tls://"),
        (Use.STREAM_READ, {}, "'positions' must be set for readStream"),
        (Use.STREAM_READ, {"positions": "none", "interaction": "response"}, "is for read"),
        (Use.STREAM_READ, {"positions": "none", "startingPosition": "earliest"}, "needs positions=server"),
        (Use.BATCH_WRITE, {"batch": "1"}, "'batch' needs 'sinkId'"),
        (
            Use.BATCH_WRITE,
            {"batch": "1", "sinkId": "a", "delivery": "atLeastOnce"},
            "'batch' needs delivery=exactlyOnce",
        ),
        (Use.STREAM_READ, {"positions": "server", "interaction": "channel"}, "does not go with positions=server"),
        (Use.BATCH_READ, {"startingPosition": "earliest"}, "'startingPosition' needs positions=server"),
        (Use.BATCH_READ, {"pushdown": "true"}, "'pushdown' needs positions=server"),
        (Use.BATCH_READ, {"positions": "server", "maxRows": "2"}, "'maxRows' is for live streams"),
        (Use.BATCH_READ, {"payload": "arrow", "includeHeaders": "true"}, "'includeHeaders' is for payload=raw"),
        (Use.BATCH_READ, {"strictSchema": "true"}, "'strictSchema' is for payload=arrow"),
        (Use.BATCH_WRITE, {"delivery": "exactlyOnce", "route": "r" * 250}, "'route' is too long: with '.offsets' beh"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(use: Use, given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        checked(parsed(use, **given), use)


@pytest.mark.parametrize(
    ("given", "route"),
    [
        ({}, "log.ack"),
        ({"ackRoute": "heard"}, "heard"),
        ({"ackRoute": "*.heard"}, "log.heard"),
        ({"route": None, "routes": "a,b"}, "*.ack"),
    ],
)
def test_a_reader_acknowledges_on_the_route_of_its_source(given: dict[str, Any], route: str) -> None:
    wanted = {"path": "tcp://127.0.0.1:1", "route": "log", "positions": "server", "reader": "billing", **given}
    options = parse_options({name: text for name, text in wanted.items() if text is not None}, Use.STREAM_READ)

    assert checked(options, Use.STREAM_READ).ack_route == route
