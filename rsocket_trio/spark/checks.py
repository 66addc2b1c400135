"""Checks that options fit together when a query is planned: the user gets each message once and in full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import attrs

from rsocket_trio.metadata.mime import COMPOSITE_METADATA
from rsocket_trio.spark.options import EARLIEST, LATEST, OptionError, Options, Use, route_name
from rsocket_trio.spark.protocol import ABORT_ROUTE, ACK_ROUTE, COMMIT_ROUTE, OFFSETS_ROUTE, STAGE_ROUTE
from rsocket_trio.transports.schemes import parse_uri

Rule: TypeAlias = tuple[object, str]
"""A rule: true if something is wrong, and the error for that."""
POSITIONS_MISSING = (
    "option 'positions' must be set for readStream: server where the route can replay, none to accept that rows are "
    "lost with a failure"
)
NEEDS_COMPOSITE = "needs composite metadata: leave out 'metadataMimeType'"


def checked(options: Options, use: Use) -> Options:
    """Return the options with those that depend on the use filled in. Raise ``OptionError``."""
    reads = bool(use & Use.READ)
    if options.reads_several and options.positions is None:
        options = attrs.evolve(options, positions="server")
    if options.reader is not None and options.ack_route is None and options.positions == "server":
        options = attrs.evolve(options, ack_route=("*" if options.reads_several else options.route) + ACK_ROUTE)
    if options.ack_route is not None and not options.reads_several:
        options = attrs.evolve(options, ack_route=options.ack_route.replace("*", options.route))
    for is_wrong, problem in (*_of_connections(options), *(_of_reads(options, use) if reads else _of_writes(options))):
        if is_wrong:
            raise OptionError(problem)
    return attrs.evolve(options, positions="none") if reads and options.positions is None else options


def _of_connections(options: Options) -> Iterator[Rule]:
    kind, bearer = options.auth_type, options.auth_token
    simple = [one is not None for one in (options.auth_user, options.auth_password)]
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
    yield from _of_replayed_reads(options) if options.positions == "server" else _of_live_reads(options, streams)


def _of_live_reads(options: Options, streams: bool) -> Iterator[Rule]:
    for name, is_given in (
        ("startingPosition", options.starting_position not in (None, LATEST if streams else None)),
        ("endingPosition", options.ending_position is not None),
        ("startingTimestamp", options.starting_timestamp is not None),
        ("endingTimestamp", options.ending_timestamp is not None),
        ("minPartitions", options.min_partitions is not None),
        ("pushdown", options.pushdown),
        ("ackRoute", options.ack_route is not None),
        ("reader", options.reader is not None),
        ("routes", options.routes is not None),
        ("routePattern", options.route_pattern is not None),
    ):
        yield is_given, f"option {name!r} needs positions=server, not {options.positions or 'none'}"
    has_no_use = streams and options.interaction == "response"
    yield has_no_use, "option 'interaction' response is for read: a stream of one row has no use"


def _of_replayed_reads(options: Options) -> Iterator[Rule]:
    for name, value in (("maxRows", options.max_rows), ("maxDuration", options.max_duration)):
        yield value is not None, f"option {name!r} is for live streams: with positions=server set 'endingPosition'"
    yield options.ending_position == EARLIEST, "option 'endingPosition' of 'earliest' would read nothing"
    yield from _of_derived_routes(options, options.routes or ("",), (OFFSETS_ROUTE,))
    yield from _of_places(options)
    yield (
        options.interaction != "stream",
        f"option 'interaction' {options.interaction} does not go with positions=server",
    )
    yield options.request, "option 'requestData' does not go with positions=server: the request is a range"
    yield not _is_composite(options), f"positions=server {NEEDS_COMPOSITE}"


def _of_places(options: Options) -> Iterator[Rule]:
    """Yield whether positions and times are named as the routes are: by partition of one, and else by route as well."""
    several = options.reads_several
    for edge, wanted, times in (
        ("starting", options.starting_position, options.starting_timestamp),
        ("ending", options.ending_position, options.ending_timestamp),
    ):
        name, by_time = f"option '{edge}Position'", f"option '{edge}Timestamp'"
        has_both = wanted is not None and times is not None
        yield has_both, f"options '{edge}Position' and '{edge}Timestamp' exclude each other"
        for (route, _), _ in wanted if isinstance(wanted, tuple) else ():
            yield several and not route, f'{name} of several routes names them: {{"orders": {{"0": 1234}}}}'
            yield route and not several, f'{name} of one route names its partitions only: {{"0": 1234}}'
        for (route, partition), _ in times or ():
            is_nowhere = several and not route and partition is not None
            yield is_nowhere, f"{by_time} of several routes names them, or is one time"
            yield route and not several, f"{by_time} of one route names its partitions only, or is one time"
    yield (
        several and options.ack_route is not None and "*" not in options.ack_route,
        "option 'ackRoute' of several routes has a * that stands for each of them, as in *.ack",
    )


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
        yield from _of_derived_routes(options, ("",), (STAGE_ROUTE, COMMIT_ROUTE, ABORT_ROUTE))


def _of_derived_routes(options: Options, routes: Iterable[str], suffixes: Iterable[str]) -> Iterator[Rule]:
    for route in routes:
        for suffix in suffixes:
            try:
                route_name(options.of_route(route).route + suffix)
            except ValueError as error:
                yield True, f"option 'route' is too long: with {suffix!r} behind it, it {error}"
