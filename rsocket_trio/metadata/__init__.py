"""Metadata that peers in every language read: composite metadata, routes, credentials, MIME types. Pure functions.

The names are loaded with the first use of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rsocket_trio import late_names

if TYPE_CHECKING:
    # All public names of these modules, which define few others.
    from rsocket_trio.metadata.authentication import *  # noqa: F403
    from rsocket_trio.metadata.composite import *  # noqa: F403
    from rsocket_trio.metadata.mime import *  # noqa: F403
    from rsocket_trio.metadata.routes import *  # noqa: F403
    from rsocket_trio.metadata.tracing import *  # noqa: F403

_HOMES = {
    "metadata.authentication": (
        "BearerAuthentication, Credentials, OtherAuthentication, SimpleAuthentication, decode_authentication, "
        "encode_authentication"
    ),
    "metadata.composite": "Entry, decode_composite, encode_composite, iterate_composite",
    "metadata.mime": (
        "ACCEPT_MIME_TYPES, APPLICATION_JSON, AUTHENTICATION, BAGGAGE, COMPOSITE_METADATA, DEADLINE, IDS, MIME_TYPE, "
        "OCTET_STREAM, ROUTING, TEXT_PLAIN, TRACEPARENT, TRACESTATE, TRACING_ZIPKIN, WELL_KNOWN, "
        "decode_accepted_mimes, decode_data_mime, decode_mime, encode_accepted_mimes, encode_data_mime, encode_mime"
    ),
    "metadata.routes": (
        "RequestMetadata, decode_deadline, decode_route, encode_deadline, encode_route, read_request, route_of, "
        "with_route"
    ),
    "metadata.tracing": (
        "Trace, ZipkinTrace, decode_baggage, decode_trace, decode_zipkin, encode_baggage, encode_zipkin, trace_entries"
    ),
}
"""The modules of the public names."""

__all__ = list(late_names.public_names(_HOMES))  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = late_names.loaders(__name__, _HOMES)
