"""Typed handlers: what came is decoded, the function is called, and what it gives is encoded, as its plan says."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rsocket_trio.codecs import Codec, DecodeError, convert_text, decode_error
from rsocket_trio.connection.hooks import current_call_variable
from rsocket_trio.connection.streams import Channel
from rsocket_trio.connection.typed_streams import Receiving, TypedChannel
from rsocket_trio.data_types import hashed_by_type
from rsocket_trio.errors import Invalid
from rsocket_trio.forms import (
    Function,
    Handler,
    Kind,
    as_items,
    drive,
    function_name,
    shape_of,
    stands_for,
    unfit,
    with_article,
)
from rsocket_trio.payload import PAYLOAD_LIKE, Payload, PayloadLike
from rsocket_trio.services.calls.context import Call
from rsocket_trio.services.codec_choice import CodecChoices, NoCodec, Read, decode_object, encoded, reader_of
from rsocket_trio.services.signature_plan import (
    ABSENT,
    CHANNELS,
    POSITIONAL_ONLY,
    STREAMS,
    TYPED_CHANNELS,
    UNARY,
    ArgumentSource,
    Parameter,
    SignaturePlan,
    plan_of_handler,
)
from rsocket_trio.values import value

if TYPE_CHECKING:
    from rsocket_trio.metadata.routes import RequestMetadata

NO_KEYWORDS: Mapping[str, object] = {}


SERVES = dict.fromkeys(STREAMS, "an async generator, or an async function with an Outgoing")
"""The functions that an interaction takes; a channel takes the others."""


def read(decorator: str, function: object, route_parameters: Sequence[str], codecs: CodecChoices) -> Handler | None:
    """Return a typed handler, or ``None`` for a function that takes and gives bytes.

    ``decorator`` names the interaction, ``route_parameters`` are those of the route, ``codecs`` those of the responder.
    Raise ``TypeError`` for a function that does not fit, and for types that no built-in codec can read or write; both
    are named.
    """
    if not callable(function):
        return None
    plan = plan_of_handler(decorator, function, route_parameters)
    return None if plan is None else typed_handler(plan, function, codecs)


def typed_handler(plan: SignaturePlan, function: Function, codecs: CodecChoices) -> Handler:
    """Return the handler that serves ``plan`` by ``function``. Raise ``TypeError`` as ``read`` does."""
    interaction, name = plan.interaction, function_name(function)
    shape, stand_in = shape_of(function), stands_for(function)
    generates = stand_in == "async generator"
    if interaction in UNARY:
        if generates:
            raise TypeError(f"{interaction} takes one answer; {name} yields items: that is request_stream")
        kind = Kind.ASYNC if shape == "async function" else Kind.INLINE
    else:
        kind = Kind.PUSH if interaction in STREAMS else Kind.ASYNC
        if kind is Kind.ASYNC and not plan.takes(*CHANNELS):
            raise TypeError(f"{interaction} takes a parameter of Receiving, TypedChannel or Channel; {name} has none")
        sends = stand_in == "async function" and plan.takes(ArgumentSource.OUTGOING, *CHANNELS)
        if not generates and not sends:
            serves = SERVES.get(interaction, "an async function or an async generator")
            raise TypeError(f"{interaction} takes {serves}; {name} is {with_article(shape)}")
    if all(type(codec).__module__.startswith("rsocket_trio.") for codec in codecs.codecs):
        for item in (*plan.kinds, plan.reply) if plan.encodes else plan.kinds:
            if item is not Payload and getattr(item, "__origin__", None) is not Payload:
                try:
                    hashed_by_type(item)
                except TypeError as error:
                    raise TypeError(f"{interaction} handler {name}: {error}") from None
    return Handler(function, kind, interaction=interaction, typed=TypedHandler(plan, function, codecs, generates))


@attrs.frozen(eq=False)
class TypedHandler:
    """A ``function`` of the application that serves by its ``plan``, with the ``codecs`` of the responder.

    ``generates`` says that the items of a stream or channel are those that it yields.
    """

    plan: SignaturePlan
    function: Function
    codecs: CodecChoices
    generates: bool

    def __call__(self, call: Call, kind: Kind, request: Payload, metadata: RequestMetadata) -> Function:
        """Return the function of bytes that serves ``call``, in the form of ``kind``.

        ``request`` opened the call, ``metadata`` are its MIME entries. Raise ``Invalid`` if no codec covers it.
        """
        decoder, encoder = self.codecs.of_call(request, metadata.mimes, call.connection.setup)
        plan = self.plan
        if plan.decodes and isinstance(decoder, NoCodec):
            raise Invalid(decoder.reason)
        if plan.encodes and isinstance(encoder, NoCodec):
            raise Invalid(encoder.reason)
        served = TypedCall(self, call, decoder, encoder)
        if plan.interaction == "request_channel":
            return served.converse
        if kind is Kind.PUSH:
            return served.push
        return served.respond if kind is Kind.ASYNC else served.respond_inline


@value
class TypedCall:
    """One call of a typed handler: decodes what came by ``codec``, calls the function, encodes by ``answers``."""

    handler: TypedHandler
    call: Call
    codec: Codec
    answers: Codec

    async def respond(self, request: Payload) -> PayloadLike:
        """Await the handler of one ``request``, and return its answer."""
        # Reset afterwards: a worker goes on with the next call if its context is as it was.
        token = current_call_variable.set(self.call)
        try:
            args, keywords = self._arguments(request)
            return self._encoded(await self.handler.function(*args, **keywords))
        finally:
            current_call_variable.reset(token)

    def respond_inline(self, request: Payload) -> PayloadLike | Awaitable[PayloadLike]:
        """Call the plain handler of one ``request``; return its answer, or an awaitable of it."""
        current_call_variable.set(self.call)
        args, keywords = self._arguments(request)
        result = self.handler.function(*args, **keywords)
        return self._awaited(result) if inspect.isawaitable(result) else self._encoded(result)

    async def _awaited(self, result: Awaitable[object]) -> PayloadLike:
        return self._encoded(await result)

    async def push(self, request: Payload, carrier: Any) -> None:
        """Await the handler of a stream or channel, or send the items that it yields.

        ``carrier`` is the sending side of the stream, or the channel.
        """
        handler = self.handler
        token = current_call_variable.set(self.call)
        try:
            args, keywords = self._arguments(request, carrier)
            result = handler.function(*args, **keywords)
            if not handler.generates:
                await result
                return
            if not hasattr(result, "__aiter__"):
                raise unfit(handler.plan.interaction, handler.function, result, "an async generator or iterable")
            # An item that can't be encoded is raised at the ``yield``, as if the send had failed.
            await drive(as_items(result), lambda item: carrier.send(self._encoded(item)))
        finally:
            current_call_variable.reset(token)

    def converse(self, channel: Channel) -> Awaitable[None]:
        """Serve a ``channel``, whose opening payload is the request."""
        return self.push(channel.request, channel)

    def _encoded(self, result: object) -> PayloadLike:
        plan = self.handler.plan
        if result is None or plan.interaction == "fire_and_forget":
            return b""
        if isinstance(result, Payload) or (not plan.encodes and isinstance(result, PAYLOAD_LIKE)):
            data: PayloadLike = result
            return data
        return encoded(self.answers, result, f"{plan.interaction} handler {function_name(self.handler.function)}")

    def _arguments(self, request: Payload, carrier: object = None) -> tuple[Sequence[object], Mapping[str, object]]:
        """Return the arguments of the function, by position and by name. Raise ``Invalid`` for what does not fit.

        ``carrier`` is the channel, or the sending side of a stream.
        """
        plan = self.handler.plan
        if plan.takes_data_alone:
            return (self._decode(request, plan.body, plan.read),), NO_KEYWORDS
        args: list[object] = []
        keywords: dict[str, object] = {}
        body: Any = {} if plan.members else ABSENT
        if plan.body is not ABSENT and (request.data or (plan.needs_data and not plan.members)):
            body = self._decode(request, plan.body, plan.read)
        for parameter in plan.parameters:
            if parameter.source is not ArgumentSource.BODY:
                argument = self._argument(parameter, request, carrier)
            else:
                argument = body.get(parameter.name, ABSENT) if plan.members else body
            if argument is ABSENT:
                argument = parameter.default
                if argument is ABSENT:
                    raise Invalid(f"$: missing required field `{parameter.name}`")
            if parameter.binding is POSITIONAL_ONLY:
                args.append(argument)
            else:
                keywords[parameter.name] = argument
        return args, keywords

    def _decode(self, payload: Payload, kind: object, read: Read | None) -> object:
        data = payload.data
        try:
            if read is not None:
                return read(data)
            return self.codec.decode(data, kind) if data else decode_object(self.codec, data, kind)
        except ValueError as error:
            raise Invalid(str(decode_error(error))) from None

    def _argument(self, parameter: Parameter, request: Payload, carrier: Any) -> object:
        source, plan = parameter.source, self.handler.plan
        if source is ArgumentSource.ROUTE:
            try:
                return convert_text(self.call.parameters[parameter.name], parameter.kind)
            except DecodeError as error:
                raise Invalid(f"route parameter {parameter.name}: {str(error).removeprefix('$: ')}") from None
        if source is ArgumentSource.PAYLOAD:
            return request
        if source not in TYPED_CHANNELS:
            return carrier
        kind, read = parameter.kind, reader_of(parameter.kind)

        def decode(payload: Payload) -> object:
            return payload if kind is Payload else self._decode(payload, kind, read)

        first = plan.body is ABSENT and not plan.takes(ArgumentSource.PAYLOAD)
        if source is ArgumentSource.RECEIVING:
            return Receiving[object](carrier, decode, with_request=first)
        return TypedChannel[object, object](carrier, decode, encode=self._encoded, with_request=first)
