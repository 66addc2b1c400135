"""Metadata that peers in every language read: composite metadata, routes, credentials, MIME types. Pure functions.

The names are loaded with the first use of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rsocket_trio import late_names

if TYPE_CHECKING:
    # A name imported as itself is exported to type checkers.
    # isort: off
    from rsocket_trio.metadata.authentication import (
        BearerAuthentication as BearerAuthentication,
        Credentials as Credentials,
        OtherAuthentication as OtherAuthentication,
        SimpleAuthentication as SimpleAuthentication,
        decode_authentication as decode_authentication,
        encode_authentication as encode_authentication,
    )
    from rsocket_trio.metadata.composite import (
        Entry as Entry,
        decode_composite as decode_composite,
        encode_composite as encode_composite,
        iterate_composite as iterate_composite,
    )
    from rsocket_trio.metadata.deadline import decode_deadline as decode_deadline, encode_deadline as encode_deadline
    from rsocket_trio.metadata.mime import (
        ACCEPT_MIME_TYPES as ACCEPT_MIME_TYPES,
        APPLICATION_JSON as APPLICATION_JSON,
        AUTHENTICATION as AUTHENTICATION,
        BAGGAGE as BAGGAGE,
        COMPOSITE_METADATA as COMPOSITE_METADATA,
        DEADLINE as DEADLINE,
        IDS as IDS,
        MIME_TYPE as MIME_TYPE,
        OCTET_STREAM as OCTET_STREAM,
        ROUTING as ROUTING,
        TEXT_PLAIN as TEXT_PLAIN,
        TRACEPARENT as TRACEPARENT,
        TRACESTATE as TRACESTATE,
        TRACING_ZIPKIN as TRACING_ZIPKIN,
        WELL_KNOWN as WELL_KNOWN,
        decode_accepted_mimes as decode_accepted_mimes,
        decode_data_mime as decode_data_mime,
        decode_mime as decode_mime,
        encode_accepted_mimes as encode_accepted_mimes,
        encode_data_mime as encode_data_mime,
        encode_mime as encode_mime,
    )
    from rsocket_trio.metadata.routes import (
        RequestMetadata as RequestMetadata,
        decode_route as decode_route,
        encode_route as encode_route,
        read_request as read_request,
        route_of as route_of,
        with_route as with_route,
    )
    from rsocket_trio.metadata.tracing import (
        Trace as Trace,
        ZipkinTrace as ZipkinTrace,
        decode_baggage as decode_baggage,
        decode_trace as decode_trace,
        decode_zipkin as decode_zipkin,
        encode_baggage as encode_baggage,
        encode_zipkin as encode_zipkin,
        trace_entries as trace_entries,
    )

_HOMES = {
    "metadata.authentication": (
        "BearerAuthentication",
        "Credentials",
        "OtherAuthentication",
        "SimpleAuthentication",
        "decode_authentication",
        "encode_authentication",
    ),
    "metadata.composite": ("Entry", "decode_composite", "encode_composite", "iterate_composite"),
    "metadata.deadline": ("decode_deadline", "encode_deadline"),
    "metadata.mime": (
        "ACCEPT_MIME_TYPES",
        "APPLICATION_JSON",
        "AUTHENTICATION",
        "BAGGAGE",
        "COMPOSITE_METADATA",
        "DEADLINE",
        "IDS",
        "MIME_TYPE",
        "OCTET_STREAM",
        "ROUTING",
        "TEXT_PLAIN",
        "TRACEPARENT",
        "TRACESTATE",
        "TRACING_ZIPKIN",
        "WELL_KNOWN",
        "decode_accepted_mimes",
        "decode_data_mime",
        "decode_mime",
        "encode_accepted_mimes",
        "encode_data_mime",
        "encode_mime",
    ),
    "metadata.routes": ("RequestMetadata", "decode_route", "encode_route", "read_request", "route_of", "with_route"),
    "metadata.tracing": (
        "Trace",
        "ZipkinTrace",
        "decode_baggage",
        "decode_trace",
        "decode_zipkin",
        "encode_baggage",
        "encode_zipkin",
        "trace_entries",
    ),
}
"""The modules of the public names."""

__all__ = [name for names in _HOMES.values() for name in names]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """Load a public name."""
    return late_names.load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """The public names, and what every module has."""
    return late_names.public_names(__name__, _HOMES)
