"""Requests that are sent as they are: bytes, text and payloads, with a route or without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rsocket_trio.connection.hooks import current_call_variable
from rsocket_trio.connection.request_queue import supported
from rsocket_trio.metadata.mime import NO_MIME, mime_name
from rsocket_trio.metadata.routes import with_route
from rsocket_trio.payload import Payload, as_payload

if TYPE_CHECKING:
    from rsocket_trio.connection.hooks import CallPort

PAYLOAD_TYPES: Final = frozenset({Payload, bytes, bytearray, memoryview, str})
"""The types that are sent as they are."""


def needs_call(port: CallPort, payload: object, kind: object, auth: object, metadata: object) -> bool:
    """Return whether a request needs more than its bytes.

    ``payload`` may be an object, ``kind`` the type of answers, ``auth`` credentials, and ``metadata`` entries; the
    connection of ``port`` may have interceptors, and the call that the running handler serves may carry a trace.
    """
    if (
        kind is not None
        or auth is not None
        or metadata
        or type(payload) not in PAYLOAD_TYPES
        or port.calls.around
        or port.calls.deadlines
    ):
        return True
    serving = current_call_variable.get(None)
    return serving is not None and bool(serving._travelling)


def routed(port: CallPort, payload: Any, route: str | None) -> Payload:
    """Return the payload of a request, with the route in its metadata if there is one."""
    request = payload if type(payload) is Payload else as_payload(payload)
    if route is None:
        return request
    if not isinstance(route, str):
        raise TypeError(f"a route is a str, not {type(route).__name__}")
    dialect = port.session.dialect
    if not dialect.routes:
        supported(port.session, None, "routes")
    mime = port.connection.setup.metadata_mime
    if request.metadata_mime not in NO_MIME and dialect.mime_fields:
        mime = mime_name(request.metadata_mime)
    return Payload(
        request.data,
        with_route(route, request.metadata, mime),
        metadata_type=request.metadata_type,
        data_mime=request.data_mime,
        metadata_mime=request.metadata_mime,
    )
