"""Checks that options fit together when a query is planned: the user gets each message once and in full."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from rsocket_trio.metadata.mime import COMPOSITE_METADATA
from rsocket_trio.spark.options import EARLIEST, LATEST, OptionError, Options, Use, route_name
from rsocket_trio.spark.protocol import ACK_ROUTE, OFFSETS_ROUTE
from rsocket_trio.transports.schemes import parse_uri

SOURCES = ("stream", "channel", "response")
SINKS = ("response", "channel")
DELIVERIES = {"atLeastOnce": ("response", "channel"), "exactlyOnce": ("channel",)}
"""The interactions that can keep each delivery guarantee, the default one first."""


def checked(options: Options, use: Use) -> Options:
    """Return the options with those that depend on the use filled in. Raise ``OptionError``."""
    reads = bool(use & Use.READ)
    if options.reads_several and options.positions is None:
        options = attrs.evolve(options, positions="server")
    if options.interaction is None:
        options = attrs.evolve(options, interaction="stream" if reads else DELIVERIES[options.delivery][0])
    if options.reader is not None and options.ack_route is None and options.positions == "server":
        options = attrs.evolve(options, ack_route=("*" if options.reads_several else options.route) + ACK_ROUTE)
    if options.ack_route is not None and not options.reads_several:
        options = attrs.evolve(options, ack_route=options.ack_route.replace("*", options.route))
    for check in (_auth, _tls, _read if reads else _write, *CHECKS[use]):
        check(options)
    return attrs.evolve(options, positions="none") if reads and options.positions is None else options


def _auth(options: Options) -> None:
    simple, bearer = (options.auth_user, options.auth_password), options.auth_token
    if options.auth_type is None:
        if any(one is not None for one in (*simple, bearer)):
            raise OptionError("option 'auth.type' is missing: simple or bearer")
    elif options.auth_type == "simple":
        if None in simple:
            raise OptionError("option 'auth.type' simple needs 'auth.user' and 'auth.password'")
        if bearer is not None:
            raise OptionError("option 'auth.token' is for 'auth.type' bearer")
    elif bearer is None:
        raise OptionError("option 'auth.type' bearer needs 'auth.token'")
    elif any(one is not None for one in simple):
        raise OptionError("options 'auth.user' and 'auth.password' are for 'auth.type' simple")
    if options.auth_type is not None and options.metadata_mime != COMPOSITE_METADATA:
        raise OptionError("option 'auth.type' needs composite metadata: leave out 'metadataMimeType'")


def _tls(options: Options) -> None:
    if options.tls_key is not None and options.tls_cert is None:
        raise OptionError("option 'tls.key' needs 'tls.cert'")
    if (options.tls_ca or options.tls_cert) and not any(parse_uri(uri).uses_tls for uri in options.uris):
        raise OptionError("options 'tls.ca' and 'tls.cert' need a path that begins with tls://, wss:// or h2s://")


def _stream_read(options: Options) -> None:
    if options.positions is None:
        raise OptionError(
            "option 'positions' must be set for readStream: server where the route can replay, wal to keep a log, "
            "none to accept that rows are lost with a failure"
        )
    if options.positions != "server":
        if options.interaction == "response":
            raise OptionError("option 'interaction' response is for read: a stream of one row has no use")
        if options.starting_position not in (None, LATEST):
            raise OptionError(f"option 'startingPosition' needs positions=server, not {options.positions}")
    if options.positions == "wal" and options.wal_dir is None:
        raise OptionError("option 'walDir' is missing: positions=wal keeps its log there")
    if options.positions != "wal" and options.wal_dir is not None:
        raise OptionError("option 'walDir' is for positions=wal")
    for name, given in (("ackRoute", options.ack_route), ("reader", options.reader)):
        if options.positions != "server" and given is not None:
            raise OptionError(f"option {name!r} needs positions=server")


def _batch_read(options: Options) -> None:
    if options.positions == "wal":
        raise OptionError("option 'positions' wal is for readStream")
    if options.positions == "server":
        for name, value in (("maxRows", options.max_rows), ("maxDuration", options.max_duration)):
            if value is not None:
                raise OptionError(f"option {name!r} is for live streams: with positions=server set 'endingPosition'")
        if options.ending_position == EARLIEST:
            raise OptionError("option 'endingPosition' of 'earliest' would read nothing")
        return
    for name, given in (
        ("startingPosition", options.starting_position),
        ("endingPosition", options.ending_position),
        ("minPartitions", options.min_partitions),
        ("pushdown", options.pushdown or None),
    ):
        if given is not None:
            raise OptionError(f"option {name!r} needs positions=server")


def _read(options: Options) -> None:
    if options.interaction not in SOURCES:
        raise OptionError(f"option 'interaction' of {options.interaction!r} is for sinks: {', '.join(SOURCES)}")
    if options.include_headers and options.payload == "arrow":
        raise OptionError("option 'includeHeaders' is for payload=raw: with arrow the columns are the payload's")
    if options.starting_timestamp is not None and options.positions != "server":
        raise OptionError(f"option 'startingTimestamp' needs positions=server, not {options.positions or 'none'}")
    if options.reads_several and options.positions != "server":
        name = "routePattern" if options.routes is None else "routes"
        raise OptionError(f"option {name!r} needs positions=server, not {options.positions}")
    if options.positions == "server":
        for route in options.routes or ("",):
            _derived_route(options.of_route(route), OFFSETS_ROUTE)
        _places(options)
        if options.interaction != "stream":
            raise OptionError(f"option 'interaction' of {options.interaction!r} does not go with positions=server")
        if options.request:
            raise OptionError("option 'requestData' does not go with positions=server: the request is a range")
        if options.metadata_mime != COMPOSITE_METADATA:
            raise OptionError("positions=server needs composite metadata: leave out 'metadataMimeType'")
    if options.request_metadata and options.metadata_mime != COMPOSITE_METADATA:
        raise OptionError("option 'metadataBase64' needs composite metadata: leave out 'metadataMimeType'")


def _places(options: Options) -> None:
    """Check that positions are named as the routes are: by partition of one, and else by route as well."""
    for name, wanted in (
        ("startingPosition", options.starting_position),
        ("endingPosition", options.ending_position),
    ):
        for (route, _), _ in wanted if isinstance(wanted, tuple) else ():
            if options.reads_several and not route:
                raise OptionError(f'option {name!r} of several routes names them: {{"orders": {{"0": 1234}}}}')
            if route and not options.reads_several:
                raise OptionError(f'option {name!r} of one route names its partitions only: {{"0": 1234}}')
    for (route, partition), _ in options.starting_timestamp or ():
        if options.reads_several and not route and partition is not None:
            raise OptionError("option 'startingTimestamp' of several routes names them, or is one time")
        if route and not options.reads_several:
            raise OptionError("option 'startingTimestamp' of one route names its partitions only, or is one time")
    if options.starting_timestamp is not None and options.starting_position is not None:
        raise OptionError("options 'startingPosition' and 'startingTimestamp' exclude each other")
    if options.reads_several and options.ack_route is not None and "*" not in options.ack_route:
        raise OptionError("option 'ackRoute' of several routes has a * that stands for each of them, as in *.ack")


def _write(options: Options) -> None:
    if options.interaction not in SINKS:
        raise OptionError(f"option 'interaction' of {options.interaction!r} is for sources: {', '.join(SINKS)}")
    fitting = DELIVERIES[options.delivery]
    if options.interaction not in fitting:
        raise OptionError(
            f"option 'interaction' of {options.interaction!r} does not go with delivery={options.delivery}, which "
            f"takes {' or '.join(fitting)}"
        )
    if options.batch is not None:
        if options.sink_id is None:
            raise OptionError("option 'batch' needs 'sinkId': the server keeps the last batch of each sink")
        if options.delivery != "exactlyOnce":
            raise OptionError(f"option 'batch' needs delivery=exactlyOnce, not {options.delivery}")
    if options.take_over:
        if options.sink_id is None:
            raise OptionError("option 'takeOver' needs 'sinkId': the sink that passes to this query")
        if options.delivery != "exactlyOnce":
            raise OptionError(f"option 'takeOver' needs delivery=exactlyOnce, not {options.delivery}")
    if options.metadata_mime != COMPOSITE_METADATA:
        raise OptionError("a sink needs composite metadata: leave out 'metadataMimeType'")
    if options.delivery == "exactlyOnce":
        for suffix in (".stage", ".commit", ".abort"):
            _derived_route(options, suffix)


def _derived_route(options: Options, suffix: str) -> None:
    try:
        route_name(options.route + suffix)
    except ValueError as error:
        raise OptionError(f"option 'route' is too long: with {suffix!r} behind it, it {error}") from None


CHECKS: dict[Use, tuple[Callable[[Options], None], ...]] = {
    Use.BATCH_READ: (_batch_read,),
    Use.STREAM_READ: (_stream_read,),
    Use.BATCH_WRITE: (),
    Use.STREAM_WRITE: (),
}
