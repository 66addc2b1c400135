"""The keyword arguments of a server: each name, type and default, declared once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from rsocket_trio.client.options import FRAGMENT_SIZE, LIMITS
from rsocket_trio.connection.protocols import ALL
from rsocket_trio.limits import DRAIN_TIMEOUT, checked_grace
from rsocket_trio.signatures import completed, shows_options

if TYPE_CHECKING:
    from rsocket_trio.connection.recording import CaptureLike
    from rsocket_trio.limits import Limits
    from rsocket_trio.streamux.options import StreamuxOptions
    from rsocket_trio.terms import ResumeOptions
    from rsocket_trio.transports.listen import SSLContextLike


class StreamServeOptions(TypedDict, total=False):
    """The options of ``serve_stream``."""

    dialects: Annotated[Iterable[str], ALL]
    resume: Annotated[ResumeOptions | None, None]
    limits: Annotated[Limits, LIMITS]
    fragment_size: Annotated[int, FRAGMENT_SIZE]
    grace: Annotated[float, DRAIN_TIMEOUT]
    quirks: Annotated[Iterable[str], ()]
    streamux: Annotated[StreamuxOptions | None, None]
    capture: Annotated[CaptureLike | None, None]


class ServeOptions(StreamServeOptions, total=False):
    """The options of ``serve`` and ``run``: those above, and those of listening and of worker processes."""

    ssl_context: Annotated[SSLContextLike | None, None]
    unix_mode: Annotated[int | None, None]
    origins: Annotated[str | Iterable[str], ()]
    over: Annotated[object | None, None]
    workers: Annotated[int | None, None]


@shows_options
def serve_options(**options: Unpack[ServeOptions]) -> ServeOptions:
    """Return these options of a server with the defaults of all others. Iterables can be iterated again."""
    complete: Any = dict(completed(serve_options, options))
    checked_grace(complete["grace"])
    for name in ("dialects", "origins"):
        value = complete[name]
        complete[name] = (value,) if isinstance(value, str) else tuple(value)
    if not isinstance(complete["quirks"], str):
        complete["quirks"] = tuple(complete["quirks"])
    if isinstance(complete["ssl_context"], Mapping):
        complete["ssl_context"] = dict(complete["ssl_context"])
    result: ServeOptions = complete
    return result
