"""The table of the data source's options: each row has a name, a parser, a default, and the uses that take it.

Option names are compared without regard to case, because Spark passes them in lower case.
"""

from __future__ import annotations

import difflib
import enum
import hashlib
from collections.abc import Mapping
from typing import Any, Final

import attrs

from rsocket_trio.metadata.mime import COMPOSITE_METADATA, OCTET_STREAM
from rsocket_trio.mux.flow_control import MAX_REQUEST_N
from rsocket_trio.replay.route_requests import LONGEST_SINK
from rsocket_trio.spark.parsing import (
    Parser,
    Positions,
    base64_bytes,
    choice,
    encoded,
    flag,
    milliseconds,
    number,
    read_positions,
    route_name,
    seconds,
    short,
    shown_uri,
    size,
    text,
    uris,
    words,
)

REDACTED: Final = "(redacted)"
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of a query that Spark hands on to its sink."""


class Use(enum.Flag):
    """The uses of a data source: batch or stream, read or write."""

    BATCH_READ = enum.auto()
    STREAM_READ = enum.auto()
    BATCH_WRITE = enum.auto()
    STREAM_WRITE = enum.auto()
    READ = BATCH_READ | STREAM_READ
    WRITE = BATCH_WRITE | STREAM_WRITE
    ANY = READ | WRITE


USE_NAMES: Final = {
    Use.BATCH_READ: "read",
    Use.STREAM_READ: "readStream",
    Use.BATCH_WRITE: "write",
    Use.STREAM_WRITE: "writeStream",
}


class OptionError(ValueError):
    """An option is unknown, missing, or has an invalid value; the message names it."""


@attrs.frozen
class Row:
    """One option: ``default`` is its text if it is not given, ``None`` if there is none."""

    name: str
    parse: Parser
    default: str | None
    use: Use
    meaning: str
    secret: bool = False
    shown_default: str = attrs.field(default=attrs.Factory(lambda self: self.default or "-", takes_self=True))


def row(
    name: str,
    parse: Parser,
    default: str | None,
    use: Use,
    meaning: str,
    *,
    secret: bool = False,
    shown_default: str | None = None,
) -> Any:
    """Return a field of ``Options`` that is a row of the table."""
    found = Row(name, parse, default, use, meaning, secret)
    if shown_default is not None:
        found = attrs.evolve(found, shown_default=shown_default)
    return attrs.field(
        default=None if default is None else parse(default),
        metadata={Row: found},
        repr=_redacted if secret else _without_queries if parse is uris else True,
    )


def _redacted(value: object) -> str:
    return REDACTED if value else repr(value)


def _without_queries(found: tuple[str, ...]) -> str:
    return repr(tuple(map(shown_uri, found)))


@attrs.frozen(kw_only=True)
class Options:
    """The options of a query, parsed and checked. Can be pickled; ``repr`` shows no secret."""

    # fmt: off
    uris: tuple[str, ...] = row("path", uris, None, Use.ANY, "`tcp://`, `tls://`, `ws://`, `wss://`, `unix://`; several with commas between them: the next is tried when one fails. Also `uri`", shown_default="required")
    route: str = row("route", route_name, None, Use.ANY, "the route, in composite metadata", shown_default="required")
    interaction: str | None = row("interaction", choice("stream", "channel", "response", "fnf"), None, Use.ANY, "source: `stream`, `channel`, `response`; sink: `response`, `channel`, `fnf`", shown_default="stream; response")
    request_data: bytes = row("requestData", encoded, "", Use.READ, "data of the request, as text", shown_default="empty")
    request_data_base64: bytes = row("requestDataBase64", base64_bytes, "", Use.READ, "data of the request, as bytes", shown_default="empty")
    request_metadata: bytes = row("metadataBase64", base64_bytes, "", Use.READ, "further metadata of the request: ready-made composite entries", secret=True, shown_default="empty")
    data_mime: str = row("dataMimeType", words, OCTET_STREAM, Use.ANY, "MIME type of data, in SETUP")
    metadata_mime: str = row("metadataMimeType", words, COMPOSITE_METADATA, Use.ANY, "MIME type of metadata, in SETUP", shown_default="composite metadata")
    setup_data: bytes = row("setupData", encoded, "", Use.ANY, "data of SETUP", secret=True, shown_default="empty")
    auth_type: str | None = row("auth.type", choice("simple", "bearer"), None, Use.ANY, "`simple` (user and password) or `bearer` (token), sent in SETUP")
    auth_user: str | None = row("auth.user", text, None, Use.ANY, "for `simple`", secret=True)
    auth_password: str | None = row("auth.password", text, None, Use.ANY, "for `simple`", secret=True)
    auth_token: str | None = row("auth.token", text, None, Use.ANY, "for `bearer`", secret=True)
    tls_ca: str | None = row("tls.ca", words, None, Use.ANY, "file of certificates to trust instead of the system's", secret=True)
    tls_cert: str | None = row("tls.cert", words, None, Use.ANY, "file of the client's certificate", secret=True)
    tls_key: str | None = row("tls.key", words, None, Use.ANY, "file of its key, where that is another", secret=True)
    payload: str = row("payload", choice("raw", "arrow"), "raw", Use.ANY, "`raw`: a row is a payload's bytes; `arrow`: each payload is an Arrow IPC stream")
    credit: int = row("credit", number(1, MAX_REQUEST_N), "2048", Use.READ, "payloads that the server may send ahead; refilled at half")
    batch_rows: int = row("batchRows", number(1, 10_000_000), "4096", Use.READ, "rows of a record batch, at most; an Arrow payload is never cut")
    batch_bytes: int = row("batchBytes", size(2**30), "4 MiB", Use.READ, "bytes after which a record batch is handed on, up to 1 GiB")
    batch_max_delay: float = row("batchMaxDelayMs", milliseconds, "200", Use.READ, "milliseconds after which a record batch is handed on, full or not")
    positions: str | None = row("positions", choice("server", "wal", "none"), None, Use.READ, "where a read can be repeated from: the `server`, a log that is written ahead (`wal`, streams only), or not at all (`none`)", shown_default="none in batch; must be set in streams")
    starting_position: Positions | None = row("startingPosition", read_positions, None, Use.READ, "`earliest`, `latest`, or JSON such as `{\"0\": 1234}`: the first position; with `positions=server`", shown_default="earliest in batch; latest in streams")
    ending_position: Positions | None = row("endingPosition", read_positions, None, Use.BATCH_READ, "`latest`, or JSON: the position behind the last; with `positions=server`", shown_default="latest")
    max_rows_per_trigger: int | None = row("maxRowsPerTrigger", number(1), None, Use.STREAM_READ, "rows of a micro-batch, over all partitions", shown_default="100000 per partition")
    max_bytes_per_trigger: int | None = row("maxBytesPerTrigger", size(), None, Use.STREAM_READ, "bytes of a micro-batch; with `positions=server` by the average of a sample of its rows")
    min_rows_per_trigger: int | None = row("minRowsPerTrigger", number(1), None, Use.STREAM_READ, "wait for so many rows")
    max_trigger_delay: float = row("maxTriggerDelay", seconds, "15m", Use.STREAM_READ, "but no longer than this")
    min_partitions: int | None = row("minPartitions", number(1, 100_000), None, Use.READ, "split the ranges into at least so many tasks; with `positions=server` or `wal`", shown_default="the server's partitions")
    max_rows: int | None = row("maxRows", number(1), None, Use.BATCH_READ, "end the read of a live stream after so many rows; with `positions=none`")
    max_duration: float | None = row("maxDuration", seconds, None, Use.BATCH_READ, "end the read of a live stream after this time; with `positions=none`")
    fail_on_data_loss: bool = row("failOnDataLoss", flag, "true", Use.READ, "fail where rows are gone that should be there; else count them in a warning and go on")
    wal_dir: str | None = row("walDir", words, None, Use.STREAM_READ, "directory of the log, on a file system that every executor sees; for `positions=wal`")
    wal_max_bytes: int = row("walMaxBytes", size(), "256 MiB", Use.STREAM_READ, "bytes of a live stream that may wait for Spark, in the log or in memory, and 100 more for each payload; then the producer waits")
    wal_sync: str = row("walSync", choice("batch", "always", "never"), "batch", Use.STREAM_READ, "when the log reaches the disk: per batch that came, per record, or when the system likes")
    ack_route: str | None = row("ackRoute", route_name, None, Use.STREAM_READ, "route that hears of committed positions, one micro-batch late; with `positions=server`")
    delivery: str = row("delivery", choice("exactlyOnce", "atLeastOnce", "bestEffort"), "atLeastOnce", Use.WRITE, "what is promised when tasks or the query are repeated")
    in_flight: int = row("inFlight", number(1, 1_000_000), "256", Use.WRITE, "requests of a task that wait for their answers")
    rows_per_request: int | None = row("rowsPerRequest", number(1, 10_000_000), None, Use.WRITE, "rows of one request", shown_default="1; arrow: a record batch")
    sink_id: str | None = row("sinkId", short(LONGEST_SINK), None, Use.WRITE, "what the server keeps its ledger by: another for each checkpoint; a batch write counts once under it", shown_default="id of the query")
    error_policy: str = row("errorPolicy", choice("fail", "skip"), "fail", Use.WRITE, "`skip` counts rows that the server refused, and goes on")
    stage_route: str | None = row("stageRoute", route_name, None, Use.WRITE, "for `exactlyOnce`", shown_default="route + `.stage`")
    commit_route: str | None = row("commitRoute", route_name, None, Use.WRITE, "for `exactlyOnce`", shown_default="route + `.commit`")
    abort_route: str | None = row("abortRoute", route_name, None, Use.WRITE, "for `exactlyOnce`", shown_default="route + `.abort`")
    keepalive_interval: float = row("keepAliveInterval", seconds, "20s", Use.ANY, "how often a connection shows that it lives")
    keepalive_max_lifetime: float = row("keepAliveMaxLifetime", seconds, "90s", Use.ANY, "silence after which a connection is dead")
    connect_timeout: float = row("connectTimeout", seconds, "10s", Use.ANY, "for one try to connect")
    read_timeout: float = row("readTimeout", seconds, "60s", Use.ANY, "for an answer, and between two payloads of a range; after it the connection is taken for lost")
    reconnect_max_attempts: int = row("reconnectMaxAttempts", number(0, 1_000_000), "5", Use.ANY, "tries in a row, without a payload between them, before a task fails; the pauses double from 0.25 s to 8 s")
    reuse_connections: bool = row("reuseConnections", flag, "true", Use.ANY, "keep connections between the tasks of a Python worker")
    connection_idle_timeout: float = row("connectionIdleTimeout", seconds, "30s", Use.ANY, "how long an unused one is kept")
    pushdown: bool = row("pushdown", flag, "false", Use.BATCH_READ, "let Spark push filters on partition and position down; needs `spark.sql.python.filterPushdown.enabled`")
    # fmt: on

    @property
    def request(self) -> bytes:
        """Data of the request of a live stream."""
        return self.request_data or self.request_data_base64

    @property
    def fingerprint(self) -> str:
        """Return the identity of a checkpoint: the same for the same rows, wherever the server is."""
        interaction = self.interaction or "stream"
        parts = (self.route, self.positions, self.payload, interaction, self.request, self.request_metadata)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @property
    def shown_uris(self) -> str:
        """Return the URIs for a message, without their queries."""
        return ", ".join(shown_uri(uri) for uri in self.uris)


ROWS: Final[Mapping[str, tuple[str, Row]]] = {
    field.metadata[Row].name.lower(): (field.name, field.metadata[Row]) for field in attrs.fields(Options)
}
"""By the option's name in lower case: the field of ``Options`` and the row."""
ALIASES: Final = {"uri": "path"}


def parse_options(given: Mapping[str, str], use: Use = Use.ANY) -> Options:
    """Parse the options of a query. Raise ``OptionError`` that names the option.

    While the use of the source is not known yet, ``use`` is ``ANY``: then every option is parsed, and the checks that
    depend on the use are left for later.
    """
    found: dict[str, Any] = {}
    for key, written in given.items():
        name = ALIASES.get(key.lower(), key.lower())
        if name in SPARKS_OWN:
            continue
        if name not in ROWS:
            raise OptionError(f"unknown option {key!r}{_nearest(name)}")
        field, known = ROWS[name]
        if not known.use & use:
            raise OptionError(f"option {known.name!r} is not for {_used_for(use)}: it is for {_used_for(known.use)}")
        if field in found:
            raise OptionError(f"option {known.name!r} is given twice, also as {key!r}")
        found[field] = _parsed(known, written)
    for field in ("uris", "route"):
        if found.get(field) is None:
            name = attrs.fields_dict(Options)[field].metadata[Row].name
            raise OptionError(f"option {name!r} is missing")
    return Options(**found)


def _parsed(known: Row, written: str) -> Any:
    try:
        written.encode()
        return known.parse(written)
    except UnicodeEncodeError as error:
        problem = f"has at character {error.start} half of a surrogate pair, which is no text"
    except ValueError as error:
        problem = str(error)
    shown = REDACTED if known.secret else repr(shown_uri(written) if known.name == "path" else written)
    # Outside the handler: the text of a secret must not come along as the context.
    raise OptionError(f"option {known.name!r} of {shown} {problem}")


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, [*ROWS, *ALIASES], n=1, cutoff=0.6)
    return f": did you mean {ROWS[ALIASES.get(near[0], near[0])][1].name!r}?" if near else ""


def _used_for(use: Use) -> str:
    return ", ".join(name for one, name in USE_NAMES.items() if one & use)
