"""The table of the data source's options: each row has a name, a parser, a default, and the uses that take it.

Option names are compared without regard to case, because Spark passes them in lower case. Every value is text, whatever
type the user wrote: the parsers stand first, with errors that name the fault.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import enum
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias

import attrs

from rsocket_trio.metadata.mime import COMPOSITE_METADATA, OCTET_STREAM
from rsocket_trio.metadata.routes import MAX_TAG_BYTES
from rsocket_trio.mux.stream_state import MAX_REQUEST_N
from rsocket_trio.replay.elements import MAX_SINK_CHARACTERS, reader_name
from rsocket_trio.spark.errors import OptionError
from rsocket_trio.transports.schemes import parse_uri

Parser: TypeAlias = Callable[[str], object]
"""From an option's text to its value; ``ValueError`` says what is wrong with it, without the option's name."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_POSITION = 2**63 - 1
"""The largest position, which a column of 64 bits holds."""
NO_PASSWORDS = "user names and passwords do not belong into a URI (see option 'auth.type')"
EARLIEST = "earliest"
LATEST = "latest"

Place: TypeAlias = tuple[str, int]
"""A route and one of its partitions. In a query of one route, that of the option ``route``, the route is empty."""
Positions: TypeAlias = str | tuple[tuple[Place, int], ...]
"""``"earliest"``, ``"latest"``, or pairs of a place and a position, in the order of their places."""

Times: TypeAlias = tuple[tuple[tuple[str, int | None], int], ...]
"""Pairs of a place and a time in microseconds since 1970. ``None`` stands for all partitions, and the empty route for
that of the query, or for all.
"""

Rule: TypeAlias = tuple[object, str]
"""True if something is wrong, and the error for that."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(i?b)?", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", re.IGNORECASE)
_SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_TIMES = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


# Parsers


def words(written: str) -> str:
    if not written.strip():
        raise ValueError("is empty")
    return written


def route_name(written: str) -> str:
    """Parse a route: text that is not empty and fits into its metadata entry."""
    length = len(words(written).encode())
    if length > MAX_TAG_BYTES:
        raise ValueError(f"has {length} bytes, the limit is {MAX_TAG_BYTES}")
    return written


def route_names(written: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in words(written).split(","))
    for name in names:
        try:
            route_name(name)
        except ValueError as error:
            raise ValueError(f"has a route that {error}") from None
        if names.count(name) > 1:
            raise ValueError(f"names {name!r} twice")
    return names


def name_of_reader(written: str) -> str:
    try:
        return reader_name(written)
    except ValueError:
        raise ValueError("is no name of a reader: 1 to 64 letters, digits, '-', '_' and '.'") from None


def short(longest: int) -> Parser:

    def parse(written: str) -> str:
        if len(words(written)) > longest:
            raise ValueError(f"has {len(written)} characters, the limit is {longest}")
        return written

    return parse


def encoded(written: str) -> bytes:
    """Text, as its UTF-8 bytes; or bytes in base64 behind ``base64:``."""
    rest = written.removeprefix("base64:")
    return written.encode() if rest == written else base64_bytes(rest)


def base64_bytes(written: str) -> bytes:
    try:
        return base64.b64decode(written, validate=True)
    except binascii.Error as error:
        raise ValueError(f"is not base64: {error}") from None


def flag(written: str) -> bool:
    if (word := written.strip().lower()) not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return word == "true"


def choice(*allowed: str) -> Parser:
    """Return one of some words, whatever their case."""
    by_lower = {word.lower(): word for word in allowed}

    def parse(written: str) -> str:
        try:
            return by_lower[written.strip().lower()]
        except KeyError:
            raise ValueError(f"is none of {', '.join(allowed)}") from None

    return parse


def number(low: int, high: int = MAX_POSITION) -> Parser:
    """Return a whole number."""

    def parse(written: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,20}", written.strip()):
            raise ValueError("is not a whole number")
        return between(int(written), low, high)

    return parse


def size(written: str) -> int:
    """Parse bytes: ``1048576``, ``64k``, ``4 MiB``. All units are powers of 1024."""
    match = _SIZE.fullmatch(written.strip())
    if match is None:
        raise ValueError("is not a size such as 1048576, 64k or 4 MiB")
    return between(int(Decimal(match[1]) * _SIZES[match[2].lower()]), 1, MAX_POSITION)


def seconds(written: str) -> float:
    """Return a time: ``500ms``, ``20s``, ``15m``, ``1h``; a bare number is seconds."""
    match = _TIME.fullmatch(written.strip())
    if match is None:
        raise ValueError("is not a time such as 500ms, 20s or 15m")
    value = float(match[1]) * _TIMES[(match[2] or "s").lower()]
    if not 0.001 <= value <= 2_147_483:
        raise ValueError("must be between 1ms and 24d")
    return value


def uris(written: str) -> tuple[str, ...]:
    """Return one URI, or several with commas between them."""
    result = tuple(uri.strip() for uri in written.split(",") if uri.strip())
    if not result:
        raise ValueError("is empty")
    # Other names of tls://.
    result = tuple(re.sub(r"^tcps://", "tls://", uri) for uri in result)
    for uri in result:
        try:
            parse_uri(uri)
        except ValueError as error:
            # Of a text with an @ nothing is quoted: a password may be anywhere in it, with commas and slashes as well.
            problem = NO_PASSWORDS if "@" in written else str(error).replace(uri, shown_uri(uri))
            raise ValueError(f"is wrong: {problem}") from None
    return result


def read_positions(written: str) -> Positions:
    """``earliest``, ``latest``, or JSON such as ``{"0": 1234}`` or ``{"orders": {"0": 1234}}``."""
    word = written.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    try:
        positions = json.loads(written)
    except (ValueError, RecursionError):
        raise ValueError('is neither earliest, latest nor JSON such as {"0": 1234}') from None
    return tuple(sorted(position_map(positions).items()))


def read_times(written: str) -> Times:
    """Return times: one for all, or JSON of times by partition, by route, or by both."""
    if not written.lstrip().startswith("{"):
        return ((("", None), microseconds(written.strip())),)
    try:
        times = json.loads(written)
    except (ValueError, RecursionError):
        raise ValueError('is no JSON such as {"0": 1767225600000000}') from None
    result: dict[tuple[str, int | None], int] = {}
    for name, part in times.items():
        if isinstance(part, Mapping):
            result |= {(name, partition): microseconds(time) for partition, time in partitions_of(part).items()}
        elif re.fullmatch(r"\d+", name, re.ASCII):
            result |= {("", partition): microseconds(time) for partition, time in partitions_of({name: part}).items()}
        else:
            result[name, None] = microseconds(part)
    if not result or any(not route and partition is None for route, partition in result):
        raise ValueError("names no partition and no route")
    return tuple(result.items())


def microseconds(time: object) -> int:
    """Return a time in microseconds since 1970 from such a number, or from a text as ISO 8601 has it, in UTC unless it
    says otherwise. A number of 13 digits is refused: it is one of milliseconds, as those of Kafka's source are.
    """
    if re.fullmatch(r"\d{13}", str(time), re.ASCII):
        raise ValueError(f"has a time {time} in milliseconds: it takes microseconds since 1970, such as {time}000")
    if isinstance(time, str) and not re.fullmatch(r"\d+", time, re.ASCII):
        try:
            moment = datetime.fromisoformat(time)
        except ValueError:
            raise ValueError(
                f"has a time {time!r}: neither microseconds since 1970 nor a text such as 2026-01-31T12:00:00Z"
            ) from None
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        number = (moment - EPOCH) // timedelta(microseconds=1)
    elif isinstance(time, str) or type(time) is int:
        number = int(time) if len(str(time)) < 20 else MAX_POSITION + 1
    else:
        raise ValueError(f"has a time {time!r} that is neither a number nor a text")
    if not 0 <= number <= MAX_POSITION:
        raise ValueError(f"has a time {time!r}: must be between 1970 and 2^63 - 1 microseconds later")
    return number


def position_map(positions: object) -> dict[Place, int]:
    """Return positions from JSON, by partition, or by route and partition. Raise ``ValueError`` naming the invalid
    part.
    """
    result: dict[Place, int] = {}
    for route, by_partition in by_route(positions).items():
        for partition, position in partitions_of(by_partition).items():
            if type(position) is not int or not 0 <= position <= MAX_POSITION:
                where = place_name((route, partition))
                raise ValueError(f"has a position {position!r} of {where} that is not a whole number")
            result[route, partition] = position
    return result


def by_route(content: object) -> dict[str, object]:
    """Return the parts of a JSON object by the routes that name them, all of it for an empty one if none does."""
    if isinstance(content, Mapping) and content and all(isinstance(part, Mapping) for part in content.values()):
        if not all(content):
            raise ValueError("has a route that is empty")
        return dict(content)
    return {"": content}


def place_name(place: Place) -> str:
    """Return a place for a message: the partition, with its route where the query reads several."""
    route, partition = place
    return f"partition {partition} of route {route!r}" if route else f"partition {partition}"


def partitions_of(content: object) -> dict[int, object]:
    """Return the values of a JSON object by the partitions that its keys name. Raise ``ValueError``."""
    if not isinstance(content, Mapping) or not content:
        raise ValueError('must be an object such as {"0": 1234}')
    for key in content:
        # One way to write each, so that none is named twice.
        if not re.fullmatch(r"0|[1-9]\d{0,8}", str(key), re.ASCII):
            raise ValueError(f"has a partition {key!r} that is not a whole number")
    return {int(key): value for key, value in content.items()}


def between(value: int, low: int, high: int) -> int:
    """Return the number. Raise ``ValueError`` unless it lies within its bounds."""
    if value < low and high == MAX_POSITION:
        raise ValueError(f"must be at least {low}")
    if not low <= value <= high:
        raise ValueError(f"must be between {low} and {high}")
    return value


def shown_uri(uri: str) -> str:
    """Return a URI without its query, which may be secret; of one with an ``@`` only the scheme."""
    if "@" in uri:
        scheme = re.match(r"[\w+]+://", uri)
        return f"{scheme[0]}..." if scheme else "..."
    head, mark, _ = uri.partition("?")
    return f"{head}?..." if mark else head


REDACTED: Final = "(redacted)"
SPARKS_OWN: Final = ("checkpointlocation", "queryname")
"""Options of a query that Spark adds to those of its sink."""


# The table


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


@attrs.frozen
class Row:
    """One option: ``default`` is its text if it is not given, ``None`` if there is none; a table shows another."""

    name: str
    parse: Parser
    default: str | None
    use: Use
    meaning: str
    secret: bool = False
    shown_default: str = attrs.field(default=attrs.Factory(lambda row: row.default or "-", takes_self=True))


def row(name: str, parse: Parser, default: str | None, use: Use, meaning: str, **more: Any) -> Any:
    """Return a field of ``Options`` that is a row of the table."""
    known = Row(name, parse, default, use, meaning, **more)
    return attrs.field(
        default=None if default is None else parse(default),
        metadata={Row: known},
        repr=_redacted if known.secret else _without_queries if parse is uris else True,
    )


def _redacted(value: object) -> str:
    return REDACTED if value else repr(value)


def _without_queries(values: tuple[str, ...]) -> str:
    return repr(tuple(map(shown_uri, values)))


@attrs.frozen(kw_only=True)
class Options:
    """The options of a query, parsed and checked. Can be pickled; ``repr`` shows no secret."""

    # fmt: off
    uris: tuple[str, ...] = row("path", uris, None, Use.ANY, "`tcp://`, `tls://`, `ws://`, `wss://`, `h2://`, `h2s://`, `unix://`; several with commas between them: the next is tried when one fails. Also `uri`", shown_default="required")
    route: str = row("route", route_name, None, Use.ANY, "the route, in composite metadata. A read by position takes `routes` in its place: several with commas between them", shown_default="required")
    routes: tuple[str, ...] | None = None
    route_pattern: str | None = row("routePattern", route_name, None, Use.READ, "all sources of the server that are like this, in place of `route`, also those that come later: `*` is any text, `?` one character; with `positions=server`")
    interaction: str = row("interaction", choice("stream", "channel", "response"), "stream", Use.READ, "`stream`, `channel`, or in batches `response`: a request for one row")
    request: bytes = row("requestData", encoded, "", Use.READ, "data of the request, as text; or `base64:` and bytes", shown_default="empty")
    request_metadata: bytes = row("metadataBase64", base64_bytes, "", Use.READ, "further metadata of the request: ready-made composite entries", secret=True, shown_default="empty")
    data_mime: str = row("dataMimeType", words, OCTET_STREAM, Use.ANY, "MIME type of data, in SETUP")
    metadata_mime: str = row("metadataMimeType", words, COMPOSITE_METADATA, Use.ANY, "MIME type of metadata, in SETUP", shown_default="composite metadata")
    setup_data: bytes = row("setupData", encoded, "", Use.ANY, "data of SETUP", secret=True, shown_default="empty")
    auth_type: str | None = row("auth.type", choice("simple", "bearer"), None, Use.ANY, "`simple` (user and password) or `bearer` (token), sent in SETUP")
    auth_user: str | None = row("auth.user", str, None, Use.ANY, "for `simple`", secret=True)
    auth_password: str | None = row("auth.password", str, None, Use.ANY, "for `simple`", secret=True)
    auth_token: str | None = row("auth.token", str, None, Use.ANY, "for `bearer`", secret=True)
    tls_ca: str | None = row("tls.ca", words, None, Use.ANY, "file of certificates to trust instead of the system's", secret=True)
    tls_cert: str | None = row("tls.cert", words, None, Use.ANY, "file of the client's certificate", secret=True)
    tls_key: str | None = row("tls.key", words, None, Use.ANY, "file of its key, where that is another", secret=True)
    payload: str = row("payload", choice("raw", "arrow"), "raw", Use.ANY, "`raw`: a row is a payload's bytes; `arrow`: each payload is an Arrow IPC stream")
    strict_schema: bool = row("strictSchema", flag, "false", Use.READ, "with `payload=arrow`: refuse payloads with other columns than those of the query, instead of leaving those out and reading null for absent ones")
    credit: int = row("credit", number(1, MAX_REQUEST_N), "2048", Use.READ, "payloads that the server may send ahead; refilled at half")
    positions: str | None = row("positions", choice("server", "none"), None, Use.READ, "where a read can be repeated from: the `server`, or not at all (`none`)", shown_default="none in batch; must be set in streams")
    starting_position: Positions | None = row("startingPosition", read_positions, None, Use.READ, "`earliest`, `latest`, or JSON such as `{\"0\": 1234}`, of several routes `{\"orders\": {\"0\": 1234}}`: the first position; with `positions=server`", shown_default="earliest in batch; latest in streams")
    starting_timestamp: Times | None = row("startingTimestamp", read_times, None, Use.READ, "the first row is that of this time or a later one, in place of `startingPosition`: microseconds since 1970 or ISO 8601, or JSON by partition, by route, or both, such as `{\"orders\": {\"0\": \"2026-01-31T12:00Z\"}}`; with `positions=server`")
    include_headers: bool = row("includeHeaders", flag, "false", Use.READ, "one more column of raw rows: `headers ARRAY<STRUCT<name: STRING, value: BINARY>>`")
    ending_position: Positions | None = row("endingPosition", read_positions, None, Use.BATCH_READ, "`latest`, or JSON: the position behind the last; with `positions=server`", shown_default="latest")
    ending_timestamp: Times | None = row("endingTimestamp", read_times, None, Use.BATCH_READ, "the read ends before the first row of this time or a later one, in place of `endingPosition`; written as `startingTimestamp`, with `positions=server`")
    max_rows_per_trigger: int | None = row("maxRowsPerTrigger", number(1), None, Use.STREAM_READ, "rows of a micro-batch, over all partitions", shown_default="100000 per partition")
    max_bytes_per_trigger: int | None = row("maxBytesPerTrigger", size, None, Use.STREAM_READ, "bytes of a micro-batch; with `positions=server` by the average of a sample of its rows")
    min_rows_per_trigger: int | None = row("minRowsPerTrigger", number(1), None, Use.STREAM_READ, "wait for so many rows")
    max_trigger_delay: float = row("maxTriggerDelay", seconds, "15m", Use.STREAM_READ, "but no longer than this")
    min_partitions: int | None = row("minPartitions", number(1, 100_000), None, Use.READ, "split the ranges into at least so many tasks; with `positions=server`", shown_default="the server's partitions")
    max_rows: int | None = row("maxRows", number(1), None, Use.BATCH_READ, "end the read of a live stream after so many rows; with `positions=none`")
    max_duration: float | None = row("maxDuration", seconds, None, Use.BATCH_READ, "end the read of a live stream after this time; with `positions=none`")
    fail_on_data_loss: bool = row("failOnDataLoss", flag, "true", Use.READ, "fail where rows are gone that should be there; else count them in a warning and go on")
    buffer_bytes: int = row("bufferBytes", size, "256 MiB", Use.STREAM_READ, "bytes of a live stream that may wait for Spark, at least 512 for a row; then the producer waits; with `positions=none`")
    ack_route: str | None = row("ackRoute", route_name, None, Use.STREAM_READ, "route that hears of committed positions, one micro-batch late; with `positions=server`. Of several routes each has its own: `*.ack`, where `*` stands for the route", shown_default="with `reader`: route + `.ack`")
    reader: str | None = row("reader", name_of_reader, None, Use.STREAM_READ, "name under which the server keeps how far this query is, 1 to 64 letters, digits, `-`, `_` and `.`: it drops no row before; with `positions=server`")
    delivery: str = row("delivery", choice("exactlyOnce", "atLeastOnce"), "atLeastOnce", Use.WRITE, "what is promised when tasks or the query are repeated")
    in_flight: int = row("inFlight", number(1, 1_000_000), "256", Use.WRITE, "requests of a task that wait for their answers")
    sink_id: str | None = row("sinkId", short(MAX_SINK_CHARACTERS), None, Use.WRITE, "what the server keeps its ledger by: another for each checkpoint; a batch write counts once under it", shown_default="id of the query")
    batch: int | None = row("batch", number(0), None, Use.BATCH_WRITE, "number of a batch in `foreachBatch`, with `sinkId`: counts once, as `delivery=exactlyOnce`, and is skipped if the server has it already")
    take_over: bool = row("takeOver", flag, "false", Use.WRITE, "pass the sink `sinkId` of another query to this one, once; the other never commits again")
    error_policy: str = row("errorPolicy", choice("fail", "skip"), "fail", Use.WRITE, "`skip` counts rows that the server refused, and goes on")
    read_timeout: float = row("readTimeout", seconds, "60s", Use.ANY, "for an answer, and between two payloads of a range; after it the connection is taken for lost")
    reconnect_max_attempts: int = row("reconnectMaxAttempts", number(0, 1_000_000), "5", Use.ANY, "tries in a row, without a payload between them, before a task fails; the pauses double from 0.25 s to 8 s")
    pushdown: bool = row("pushdown", flag, "false", Use.BATCH_READ, "let Spark push filters on route, partition and position down; needs `spark.sql.python.filterPushdown.enabled`")
    # fmt: on

    # No options: the same for all users.
    batch_rows: int = 8192
    """Rows of a record batch, at most; an Arrow payload is never cut."""
    batch_bytes: int = 4 * 2**20
    """Bytes after which a record batch is handed on."""
    batch_max_delay: float = 0.2
    """Seconds after which a record batch is handed on, full or not."""
    connection_idle_timeout: float = 30.0
    """Seconds for which a connection without a user is kept for the next task."""
    connect_timeout: float = 10.0
    """Seconds for one try to connect."""

    @property
    def reads_several(self) -> bool:
        """Return whether the options ``routes`` or ``routePattern`` take the place of ``route``."""
        return self.routes is not None or self.route_pattern is not None

    @property
    def shown_route(self) -> str:
        """Return what is read, for a message."""
        if self.routes is not None:
            return ",".join(self.routes)
        return self.route if self.route_pattern is None else self.route_pattern

    def of_route(self, route: str) -> Options:
        """Return the options for one of the routes that are read; an empty one is that of the option ``route``."""
        if not route:
            return self
        ack_route = None if self.ack_route is None else self.ack_route.replace("*", route)
        return attrs.evolve(self, route=route, routes=None, route_pattern=None, ack_route=ack_route)

    @property
    def fingerprint(self) -> str:
        """Return the identity of a checkpoint: the same for the same rows, wherever the server is.

        Several routes are not a part of it: offsets name them, and more may come.
        """
        parts = (self.route, self.positions, self.payload, self.interaction, self.request, self.request_metadata)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @property
    def shown_uris(self) -> str:
        """Return the URIs for a message, without their queries."""
        return ", ".join(shown_uri(uri) for uri in self.uris)


ROWS: Final[Mapping[str, tuple[str, Row]]] = {
    field.metadata[Row].name.lower(): (field.name, field.metadata[Row])
    for field in attrs.fields(Options)
    if Row in field.metadata
}
"""By the option's name in lower case: the field of ``Options`` and the row."""
KNOWN: Final[Mapping[str, tuple[str, Row]]] = {
    **ROWS,
    "routes": ("routes", Row("routes", route_names, None, Use.READ, "the plural of `route`")),
}
"""The same, and names that share a row of the table with another option."""
ALIASES: Final = {"uri": "path"}
ROUTE_OPTIONS: Final = {"route": "route", "routes": "routes", "route_pattern": "routePattern"}
"""The options that say which routes are read, one of which is needed: by their fields."""


def parse_options(texts: Mapping[str, str], use: Use = Use.ANY) -> Options:
    """Parse the options of a query. Raise ``OptionError`` that names the option.

    While the use of the source is not known yet, ``use`` is ``ANY``: then every option is parsed, and the checks that
    depend on the use are left for later.
    """
    values: dict[str, Any] = {}
    for key, written in texts.items():
        name = ALIASES.get(key.lower(), key.lower())
        if name in SPARKS_OWN:
            continue
        if name not in KNOWN:
            raise OptionError(f"unknown option {key!r}{_nearest(name)}")
        field, known = KNOWN[name]
        if not known.use & use:
            raise OptionError(f"option {known.name!r} is not for {_used_for(use)}: it is for {_used_for(known.use)}")
        if field in values:
            raise OptionError(f"option {known.name!r} is given twice, also as {key!r}")
        values[field] = _parsed(known, written)
    if values.get("uris") is None:
        raise OptionError("option 'path' is missing")
    routes = [name for field, name in ROUTE_OPTIONS.items() if values.get(field) is not None]
    if not routes:
        raise OptionError("option 'route' is missing")
    if len(routes) > 1:
        raise OptionError(f"options {routes[0]!r} and {routes[1]!r} exclude each other")
    if "batch" in values:
        values.setdefault("delivery", "exactlyOnce")
    return Options(**{"route": ""} | values)


def _parsed(known: Row, written: str) -> object:
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
    near = difflib.get_close_matches(name, [*KNOWN, *ALIASES], n=1, cutoff=0.6)
    return f": did you mean {KNOWN[ALIASES.get(near[0], near[0])][1].name!r}?" if near else ""


def _used_for(use: Use) -> str:
    return ", ".join(name for flag, name in USE_NAMES.items() if flag & use)


# Options that belong together

POSITIONS_MISSING = (
    "option 'positions' must be set for readStream: server where the route can be read by position, none to accept "
    "that rows are lost with a failure (rsocket-trio record keeps them)"
)
NEEDS_COMPOSITE = "needs composite metadata: leave out 'metadataMimeType'"
NEED_SERVER: Final = (
    *("startingPosition", "endingPosition", "startingTimestamp", "endingTimestamp", "minPartitions"),
    *("pushdown", "ackRoute", "reader", "routes", "routePattern"),
)
"""The options of a read that have a meaning only where the server replays."""
LONGEST_SUFFIX: Final = ".offsets"
"""The longest of the names that are put behind a route that is read by position or written exactly once."""


def checked(options: Options, use: Use) -> Options:
    """Return the options of a query that is planned, with those that depend on the use filled in.

    Raise ``OptionError`` for options that do not fit together: the user gets each message once and in full.
    """
    reads = bool(use & Use.READ)
    if options.reads_several and options.positions is None:
        options = attrs.evolve(options, positions="server")
    if options.reader is not None and options.ack_route is None and options.positions == "server":
        options = attrs.evolve(options, ack_route=("*" if options.reads_several else options.route) + ".ack")
    if options.ack_route is not None and not options.reads_several:
        options = attrs.evolve(options, ack_route=options.ack_route.replace("*", options.route))
    for is_wrong, problem in (*_of_connections(options), *(_of_reads(options, use) if reads else _of_writes(options))):
        if is_wrong:
            raise OptionError(problem)
    return attrs.evolve(options, positions="none") if reads and options.positions is None else options


def _of_connections(options: Options) -> Iterator[Rule]:
    kind, bearer = options.auth_type, options.auth_token
    simple = [part is not None for part in (options.auth_user, options.auth_password)]
    yield kind is None and (any(simple) or bearer is not None), "option 'auth.type' is missing: simple or bearer"
    yield kind == "simple" and not all(simple), "option 'auth.type' simple needs 'auth.user' and 'auth.password'"
    yield kind == "simple" and bearer is not None, "option 'auth.token' is for 'auth.type' bearer"
    yield kind == "bearer" and bearer is None, "option 'auth.type' bearer needs 'auth.token'"
    yield kind == "bearer" and any(simple), "options 'auth.user' and 'auth.password' are for 'auth.type' simple"
    yield kind and not _is_composite(options), f"option 'auth.type' {NEEDS_COMPOSITE}"
    yield options.tls_key is not None and options.tls_cert is None, "option 'tls.key' needs 'tls.cert'"
    yield (
        (options.tls_ca or options.tls_cert) and not any(parse_uri(uri).uses_tls for uri in options.uris),
        "options 'tls.ca' and 'tls.cert' need a path that begins with tls://, wss:// or h2s://",
    )


def _is_composite(options: Options) -> bool:
    return options.metadata_mime == COMPOSITE_METADATA


def _of_reads(options: Options, use: Use) -> Iterator[Rule]:
    is_arrow, streams = options.payload == "arrow", use is Use.STREAM_READ
    yield options.strict_schema and not is_arrow, "option 'strictSchema' is for payload=arrow: raw columns are fixed"
    yield options.include_headers and is_arrow, "option 'includeHeaders' is for payload=raw: arrow has its own columns"
    yield options.request_metadata and not _is_composite(options), f"option 'metadataBase64' {NEEDS_COMPOSITE}"
    yield streams and options.positions is None, POSITIONS_MISSING
    if options.positions == "server":
        yield from _of_replayed_reads(options)
        return
    if streams and options.starting_position == LATEST:
        options = attrs.evolve(options, starting_position=None)
    for name in NEED_SERVER:
        is_given = getattr(options, KNOWN[name.lower()][0]) not in (None, False)
        yield is_given, f"option {name!r} needs positions=server, not {options.positions or 'none'}"
    has_no_use = streams and options.interaction == "response"
    yield has_no_use, "option 'interaction' response is for read: a stream of one row has no use"


def _of_replayed_reads(options: Options) -> Iterator[Rule]:
    for name, value in (("maxRows", options.max_rows), ("maxDuration", options.max_duration)):
        yield value is not None, f"option {name!r} is for live streams: with positions=server set 'endingPosition'"
    yield options.ending_position == EARLIEST, "option 'endingPosition' of 'earliest' would read nothing"
    yield from _of_length(options.routes or (options.route,))
    several = options.reads_several
    for edge, positions, times in (
        ("starting", options.starting_position, options.starting_timestamp),
        ("ending", options.ending_position, options.ending_timestamp),
    ):
        name, has_both = f"option '{edge}Position'", positions is not None and times is not None
        yield has_both, f"options '{edge}Position' and '{edge}Timestamp' exclude each other"
        for (route, _), _ in positions if isinstance(positions, tuple) else ():
            yield several and not route, f'{name} of several routes names them: {{"orders": {{"0": 1234}}}}'
            yield route and not several, f'{name} of one route names its partitions only: {{"0": 1234}}'
        name = f"option '{edge}Timestamp'"
        for (route, partition), _ in times or ():
            is_nowhere = several and not route and partition is not None
            yield is_nowhere, f"{name} of several routes names them, or is one time"
            yield route and not several, f"{name} of one route names its partitions only, or is one time"
    yield (
        several and options.ack_route is not None and "*" not in options.ack_route,
        "option 'ackRoute' of several routes has a * that stands for each of them, as in *.ack",
    )
    is_stream = options.interaction == "stream"
    yield not is_stream, f"option 'interaction' {options.interaction} does not go with positions=server"
    yield options.request, "option 'requestData' does not go with positions=server: the request is a range"
    yield not _is_composite(options), f"positions=server {NEEDS_COMPOSITE}"


def _of_writes(options: Options) -> Iterator[Rule]:
    exactly_once = options.delivery == "exactlyOnce"
    for name, is_given, why in (
        ("batch", options.batch is not None, "the server keeps the last batch of each sink"),
        ("takeOver", options.take_over, "the sink that passes to this query"),
    ):
        yield is_given and options.sink_id is None, f"option {name!r} needs 'sinkId': {why}"
        yield is_given and not exactly_once, f"option {name!r} needs delivery=exactlyOnce, not {options.delivery}"
    yield not _is_composite(options), f"a sink {NEEDS_COMPOSITE}"
    if exactly_once:
        yield from _of_length((options.route,))


def _of_length(routes: Iterable[str]) -> Iterator[Rule]:
    for route in routes:
        length = len((route + LONGEST_SUFFIX).encode())
        problem = f"with {LONGEST_SUFFIX!r} behind it, it has {length} bytes, the limit is {MAX_TAG_BYTES}"
        yield length > MAX_TAG_BYTES, f"option 'route' is too long: {problem}"
