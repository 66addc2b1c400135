"""Spans of calls: names, parents across the wire, events and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from trio.testing import MockClock

from rsocket_trio import ApplicationError, Payload, Responder, observe, open_connection
from tests.missing import missing_module, require
from tests.serving import running_server

require(missing_module("opentelemetry.sdk"))

from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

URI = "memory://traced"


async def spans_of(calls: str) -> list[ReadableSpan]:
    """Return the spans of one call between two that are traced, in the order in which they ended."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = observe.opentelemetry(provider)
    responder = Responder()
    responder.around(spans)

    @responder.request_response("orders.{number}")
    async def order(number: int) -> int:
        with provider.get_tracer("test").start_as_current_span("inside"):
            return number

    @responder.request_response("fail")
    async def fail(request: Payload) -> bytes:
        assert trace.get_current_span().is_recording()
        raise ApplicationError("no", code=0x400)

    @responder.request_stream("numbers")
    async def numbers(request: Payload) -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number

    async with running_server(responder, URI), open_connection(URI, around=[spans]) as client:
        if calls == "stream":
            async with client.request_stream(route="numbers") as items:
                assert len([item async for item in items]) == 3
        elif calls == "fail":
            with pytest.raises(ApplicationError):
                await client.request_response(route="fail")
        else:
            await client.request_response(route="orders.7")
    return list(exporter.get_finished_spans())


async def test_the_spans_of_a_call_are_one_trace(autojump_clock: MockClock) -> None:
    inside, server, client = await spans_of("answer")
    assert [span.name for span in (inside, server, client)] == ["inside", "orders.{number}", "orders.7"]
    assert len({span.context.trace_id for span in (inside, server, client)}) == 1
    assert inside.parent is not None
    assert server.parent is not None
    assert (inside.parent.span_id, server.parent.span_id) == (server.context.span_id, client.context.span_id)
    assert (server.kind.name, client.kind.name) == ("SERVER", "CLIENT")
    assert server.attributes is not None
    assert server.attributes["rpc.system"] == "rsocket"


async def test_a_stream_is_one_span_with_its_first_item_and_its_end(autojump_clock: MockClock) -> None:
    for span in await spans_of("stream"):
        assert [event.name for event in span.events] == ["first item", "end"]


async def test_a_failed_call_is_a_failed_span(autojump_clock: MockClock) -> None:
    for span in await spans_of("fail"):
        assert span.status.status_code.name == "ERROR"
        assert span.attributes is not None
        assert span.attributes["rpc.response.status_code"] == "0x400"
