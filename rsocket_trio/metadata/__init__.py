"""Metadata that peers in every language read: composite metadata, routes, credentials, MIME types. Pure functions."""

from __future__ import annotations

from rsocket_trio.metadata.authentication import (
    Authentication,
    BearerAuthentication,
    OtherAuthentication,
    SimpleAuthentication,
    decode_authentication,
    encode_authentication,
)
from rsocket_trio.metadata.composite import Entry, decode_composite, encode_composite, iterate_composite
from rsocket_trio.metadata.mime import (
    ACCEPT_MIME_TYPES,
    AUTHENTICATION,
    BAGGAGE,
    COMPOSITE_METADATA,
    DEADLINE,
    IDS,
    JSON,
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

__all__ = [
    "ACCEPT_MIME_TYPES",
    "AUTHENTICATION",
    "BAGGAGE",
    "COMPOSITE_METADATA",
    "DEADLINE",
    "IDS",
    "JSON",
    "MIME_TYPE",
    "OCTET_STREAM",
    "ROUTING",
    "TEXT_PLAIN",
    "TRACEPARENT",
    "TRACESTATE",
    "TRACING_ZIPKIN",
    "WELL_KNOWN",
    "Authentication",
    "BearerAuthentication",
    "Entry",
    "OtherAuthentication",
    "RequestMetadata",
    "SimpleAuthentication",
    "decode_accepted_mimes",
    "decode_authentication",
    "decode_composite",
    "decode_data_mime",
    "decode_mime",
    "decode_route",
    "encode_accepted_mimes",
    "encode_authentication",
    "encode_composite",
    "encode_data_mime",
    "encode_mime",
    "encode_route",
    "iterate_composite",
    "read_request",
    "route_of",
    "with_route",
]
