"""Answers and items of handlers as payloads, and the error for those that can't be sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rsocket_trio.codecs import Codec
from rsocket_trio.forms import Handler, function_name, unfit
from rsocket_trio.metadata.mime import NO_MIME, mime_name
from rsocket_trio.metadata.routes import read_request
from rsocket_trio.payload import Payload, as_payload
from rsocket_trio.terms import Setup

ANSWERS = "an answer is bytes, text, a Payload, or an object: a dataclass, an attrs class, a model, a dict, a list"


def answer_payload(handler: Handler, request: Payload, setup: Setup, answer: object) -> Payload:
    """Return what a handler of bytes gave as an answer or an item, and is no payload, as one.

    ``None`` is an empty payload, an object is encoded for the call that ``request`` opened. Raise ``TypeError`` if it
    can't be encoded, and ``Invalid`` if the peer accepts no codec that is here.
    """
    if answer is None:
        return Payload()
    if hasattr(answer, "__aiter__"):
        raise unfit(handler.interaction, handler.registered, answer, "a payload: request_stream answers items")
    if handler.codecs is None:
        return as_payload(answer)  # type: ignore[arg-type]  # raises: it serves no request
    mime = setup.metadata_mime if request.metadata_mime in NO_MIME else mime_name(request.metadata_mime)
    # The number of entries was held to the connection's limit when the handler was looked for.
    entries = read_request(request.metadata, mime, len(request.metadata or b"")).mimes
    _, codec = handler.codecs().of_call(request, entries, setup)
    try:
        return Payload(codec.encode(answer))
    except (TypeError, ValueError) as error:
        raise unencodable(codec, handler.interaction, handler.registered, answer, error) from error


def unencodable(
    codec: Codec, interaction: str, function: Callable[..., Any], answer: object, error: Exception
) -> TypeError:
    """Return the error for an answer or an item of ``function``, a handler of ``interaction``.

    ``error`` is the one that ``codec`` raised for it.
    """
    what = f"{type(answer).__name__} can't be encoded as {codec.mime}: {error}"
    if isinstance(error, TypeError):
        what = f"{what}; {ANSWERS}"
    return TypeError(f"{interaction} handler {function_name(function)}: {what}")
