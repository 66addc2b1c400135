"""Metrics and traces of calls and connections, for ``around``: Prometheus and OpenTelemetry.

Each library is loaded when its function is called. Both results are for ``Responder.around`` and for ``around=`` of
clients: spans are interceptors, metrics hear of the calls and of the connections there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rsocket_trio.extras import install_command

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from rsocket_trio.observe.metrics import Metrics
    from rsocket_trio.observe.spans import Spans

__all__ = ["opentelemetry", "prometheus"]


def prometheus(registry: CollectorRegistry | None = None) -> Metrics:
    """Return the metrics of this process in ``registry``, Prometheus' own by default; the same for the same registry.

    Raise ``ImportError`` that names the extra ``metrics`` without prometheus-client.
    """
    try:
        from rsocket_trio.observe.metrics import metrics_in
    except ModuleNotFoundError as error:
        raise ImportError(f"metrics need prometheus_client: {install_command('metrics')}") from error
    return metrics_in(registry)


def opentelemetry(tracer_provider: TracerProvider | None = None) -> Spans:
    """Return an interceptor that makes a span of each call, by ``tracer_provider`` or the one that is set globally.

    Raise ``ImportError`` that names the extra ``otel`` without opentelemetry-api.
    """
    try:
        from rsocket_trio.observe.spans import Spans
    except ModuleNotFoundError as error:
        raise ImportError(f"spans need opentelemetry: {install_command('otel')}") from error
    return Spans(tracer_provider)
