"""Metadata that peers in every language read: composite metadata, routes, credentials, MIME types. Pure functions.

The names are loaded with the first use of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rsocket_trio import late_names

if TYPE_CHECKING:
    from rsocket_trio.metadata.authentication import (
        BearerAuthentication,
        Credentials,
        OtherAuthentication,
        SimpleAuthentication,
        decode_authentication,
        encode_authentication,
    )
    from rsocket_trio.metadata.composite import Entry, decode_composite, encode_composite, iterate_composite
    from rsocket_trio.metadata.deadline import decode_deadline, encode_deadline
    from rsocket_trio.metadata.mime import (
        ACCEPT_MIME_TYPES,
        APPLICATION_JSON,
        AUTHENTICATION,
        BAGGAGE,
        COMPOSITE_METADATA,
        DEADLINE,
        IDS,
        MIME_TYPE,
        OCTET_STREAM,
        ROUTING,
        TEXT_PLAIN,
        TRACEPARENT,
        TRACESTATE,
        TRACING_ZIPKIN,
        WELL_KNOWN,
        decode_mime,
        encode_mime,
    )
    from rsocket_trio.metadata.mimetypes_per_stream import (
        decode_accepted_mimes,
        decode_data_mime,
        encode_accepted_mimes,
        encode_data_mime,
    )
    from rsocket_trio.metadata.routes import RequestMetadata, read_request, route_of, with_route
    from rsocket_trio.metadata.routing import decode_route, encode_route
    from rsocket_trio.metadata.tracing import (
        Trace,
        ZipkinTrace,
        decode_baggage,
        decode_trace,
        decode_zipkin,
        encode_baggage,
        encode_zipkin,
        trace_entries,
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
    "metadata.composite": (
        "Entry",
        "decode_composite",
        "encode_composite",
        "iterate_composite",
    ),
    "metadata.deadline": (
        "decode_deadline",
        "encode_deadline",
    ),
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
        "decode_mime",
        "encode_mime",
    ),
    "metadata.mimetypes_per_stream": (
        "decode_accepted_mimes",
        "decode_data_mime",
        "encode_accepted_mimes",
        "encode_data_mime",
    ),
    "metadata.routes": (
        "RequestMetadata",
        "read_request",
        "route_of",
        "with_route",
    ),
    "metadata.routing": (
        "decode_route",
        "encode_route",
    ),
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

__all__ = [
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
    "BearerAuthentication",
    "Credentials",
    "Entry",
    "OtherAuthentication",
    "RequestMetadata",
    "SimpleAuthentication",
    "Trace",
    "ZipkinTrace",
    "decode_accepted_mimes",
    "decode_authentication",
    "decode_baggage",
    "decode_composite",
    "decode_data_mime",
    "decode_deadline",
    "decode_mime",
    "decode_route",
    "decode_trace",
    "decode_zipkin",
    "encode_accepted_mimes",
    "encode_authentication",
    "encode_baggage",
    "encode_composite",
    "encode_data_mime",
    "encode_deadline",
    "encode_mime",
    "encode_route",
    "encode_zipkin",
    "iterate_composite",
    "read_request",
    "route_of",
    "trace_entries",
    "with_route",
]


def __getattr__(name: str) -> object:
    """Load a public name."""
    return late_names.load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """The public names, and what every module has."""
    return late_names.public_names(__name__, _HOMES)
