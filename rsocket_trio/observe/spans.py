"""Spans of OpenTelemetry: one of each call, on both sides, by its conventions for RPC."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

import trio
from opentelemetry import context, trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rsocket_trio.metadata.composite import Entry
from rsocket_trio.metadata.mime import COMPOSITE_METADATA, TRACEPARENT, TRACESTATE

if TYPE_CHECKING:
    from types import TracebackType

    from opentelemetry.trace import Span, TracerProvider

    from rsocket_trio.services.calls.context import Call

PROPAGATOR: Final = TraceContextTextMapPropagator()
HEADERS: Final = {"traceparent": TRACEPARENT, "tracestate": TRACESTATE}
ONE_ANSWER: Final = ("request_response", "fire_and_forget")


class Spans:
    """An interceptor that makes a span of each call. Made by ``observe.opentelemetry``.

    The context travels in W3C's entries, where metadata is composite: a server's span is a child of its client's, and
    the spans that a handler makes are children of the server's.
    """

    def __init__(self, tracer_provider: TracerProvider | None) -> None:
        self._tracer = trace.get_tracer("rsocket_trio", tracer_provider=tracer_provider)

    def __call__(self, call: Call) -> Spanned:
        return Spanned(self._tracer, call)


class Spanned:
    """The span of one call."""

    __slots__ = ("_call", "_span", "_token", "_tracer")

    _span: Span

    def __init__(self, tracer: trace.Tracer, call: Call) -> None:
        self._tracer = tracer
        self._call = call
        self._token: Any = None

    async def __aenter__(self) -> None:
        call = self._call
        is_server = call.side == "server"
        # A peer may name any route: as the name of a span only those that the application wrote are few.
        name = (call.pattern if is_server else call.route) or call.interaction
        handshake = call.connection.handshake
        attributes = {"rpc.system": "rsocket", "rpc.method": name, "rsocket.interaction": call.interaction}
        attributes["network.transport"] = handshake.transport
        if handshake.peer_address:
            attributes["network.peer.address"] = str(handshake.peer_address)
        parent = None
        if is_server:
            names = {mime: name for name, mime in HEADERS.items()}
            carried = [(names[entry.mime], entry.content) for entry in call._travelling if entry.mime in names]
            parent = PROPAGATOR.extract({name: content.decode("latin-1") for name, content in carried})
        kind = SpanKind.SERVER if is_server else SpanKind.CLIENT
        self._span = self._tracer.start_span(name, parent, kind, attributes)
        within = trace.set_span_in_context(self._span)
        if is_server:
            self._token = context.attach(within)
        elif call.connection.setup.metadata_mime == COMPOSITE_METADATA:
            headers: dict[str, str] = {}
            PROPAGATOR.inject(headers, within)
            kept = [entry for entry in call.entries if entry.mime not in HEADERS.values()]
            call.entries[:] = kept + [Entry(HEADERS[name], text.encode()) for name, text in headers.items()]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        call, span = self._call, self._span
        if self._token is not None:
            context.detach(self._token)
        if call.interaction not in ONE_ANSWER:
            if call.first_item_at < math.inf:
                ago = trio.current_time() - call.first_item_at
                span.add_event("first item", timestamp=time.time_ns() - round(ago * 1e9))
            counts = {"rsocket.items_sent": call.items_sent, "rsocket.items_received": call.items_received}
            span.add_event("end", {**counts, "rsocket.outcome": call.outcome})
        if call.error is not None:
            span.set_attribute("error.type", type(call.error).__name__)
            if (code := getattr(call.error, "code", None)) is not None:
                span.set_attribute("rpc.response.status_code", f"0x{code:X}")
            span.set_status(Status(StatusCode.ERROR, str(call.error)))
        span.end()
