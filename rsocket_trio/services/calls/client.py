"""Requests that need more than their bytes: objects, credentials, interceptors, deadlines and traces that travel on."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import trio

from rsocket_trio.connection.hooks import Contract, ServiceT, current_call_variable
from rsocket_trio.connection.request_queue import needs_call, routed
from rsocket_trio.connection.streams import Channel, Incoming, StreamObserver
from rsocket_trio.errors import RemoteProtocolError, RSocketError, Unsupported
from rsocket_trio.metadata.authentication import Auth, encode_authentication
from rsocket_trio.metadata.composite import (
    Entry,
    MetadataPair,
    check_composite,
    decode_composite,
    encode_composite,
    entries_of_pairs,
)
from rsocket_trio.metadata.mime import (
    ACCEPT_MIME_TYPES,
    AUTHENTICATION,
    COMPOSITE_METADATA,
    DEADLINE,
    MIME_TYPE,
    NO_MIME,
    encode_accepted_mimes,
    encode_data_mime,
    mime_name,
)
from rsocket_trio.metadata.route_patterns import MethodRoute
from rsocket_trio.metadata.routes import encode_deadline, with_route
from rsocket_trio.mux.stream_state import REQUEST_CHANNEL, REQUEST_RESPONSE, Interaction
from rsocket_trio.payload import PAYLOAD_LIKE, Payload, PayloadLike, as_payload, with_metadata
from rsocket_trio.services.calls.access import check_auth, fresh_credentials
from rsocket_trio.services.calls.context import Call, Interception
from rsocket_trio.services.codec_choice import (
    Encode,
    codec_of_connection,
    decode_object,
    encoded,
    is_object_type,
    reader_of,
    whole_type,
)
from rsocket_trio.values import value

if TYPE_CHECKING:
    from rsocket_trio.codecs import Codec
    from rsocket_trio.connection.engine import Engine


@value
class RequestForm:
    """The encoding of objects in the requests of a connection: made once for each connection that sends some.

    ``codec`` encodes and decodes them, ``metadata_mime`` is the MIME type of their metadata. ``names`` is the metadata
    of a request whose data is an object, which names the codec, and ``accepts`` that of a request of which only the
    answer is one; both are ``None`` where the connection's MIME type says it.
    """

    codec: Codec
    metadata_mime: str | int
    names: bytes | None = None
    accepts: bytes | None = None


def request_form(port: Engine, metadata_mime: str | int | None = None) -> RequestForm:
    """Return how requests carry objects, with metadata of this type, or of that of the connection.

    Raise ``ValueError`` if no codec covers the MIME type of the connection.
    """
    setup = port.connection.setup
    mime = setup.metadata_mime if metadata_mime is None else metadata_mime
    if mime == setup.metadata_mime and isinstance(port.request_form, RequestForm):
        return port.request_form
    codecs = port.calls.codecs if port.calls.codecs is not None else port.responder.codecs
    codec, is_named = codec_of_connection(codecs, setup.data_mime, mime)
    form = RequestForm(codec, mime)
    if is_named:
        names = encode_composite([Entry(MIME_TYPE, encode_data_mime(codec.mime))])
        accepts = encode_composite([Entry(ACCEPT_MIME_TYPES, encode_accepted_mimes([codec.mime]))])
        form = RequestForm(codec, mime, names, accepts)
    if mime == setup.metadata_mime:
        port.request_form = form
    return form


def object_request(port: Engine, payload: Any, route: str | None, kind: object) -> Payload:
    """Return a request that needs a codec and nothing else, made in fewer steps than a ``ClientCall``.

    ``payload`` is an object, or data that is sent as it is; ``kind`` is the type of the answer, ``None`` for a payload,
    as it has to be if ``payload`` is one itself.
    """
    if payload is None:
        payload = b""
    is_data = is_sent_as_it_is(payload)
    if is_data and not needs_codec(kind):
        return routed(port, payload, route)
    form = port.request_form
    if not isinstance(form, RequestForm):
        form = request_form(port)
    data, metadata = payload, form.accepts
    if not is_data:
        data, metadata = encoded(form.codec, payload.argument if type(payload) is Encode else payload), form.names
    if isinstance(route, str) and port.session.dialect.routes:
        return Payload(data, with_route(route, metadata, form.metadata_mime))
    return routed(port, Payload(data, metadata), route)


def needs_codec(kind: object) -> bool:
    """Return whether a codec reads data of type ``kind``. ``None`` stands for a payload."""
    return kind is not None and kind is not Payload and reader_of(kind) is None


def is_sent_as_it_is(payload: object) -> TypeGuard[PayloadLike]:
    """Return whether what an application sends is data as it is. An enum is an object, also one of texts."""
    return isinstance(payload, PAYLOAD_LIKE) and not isinstance(payload, Enum)


def decoder(port: Engine, kind: object, metadata_mime: str | int | None = None) -> Callable[[Payload], Any]:
    """Return the function that returns an answer or an item as ``kind``.

    It raises ``DecodeError``, a ``ValueError``, for one that does not fit.
    """
    if kind is Payload:
        return lambda payload: payload
    read = reader_of(kind)
    if read is not None:
        return lambda payload: read(payload.data)
    codec = request_form(port, metadata_mime).codec
    return lambda payload: decode_object(codec, payload.data, kind)


class ClientCall:
    """One request with what it needs, from its making to its end.

    ``payload`` is what the application sends, an object is encoded; ``kind`` is the type of answers, ``None`` for
    payloads. ``metadata`` are entries of the application, which stand before all others. ``call`` is what interceptors
    see.
    """

    __slots__ = ("_auth", "_is_composite", "_life", "_payload", "_terms", "call", "metadata_mime", "port")

    def __init__(
        self,
        port: Engine,
        interaction: Interaction,
        payload: object,
        route: str | None,
        auth: Auth | None,
        kind: object,
        metadata: Iterable[MetadataPair] = (),
    ) -> None:
        connection = port.connection
        setup = connection.setup
        self.port = port
        pattern = route.pattern if isinstance(route, MethodRoute) else None
        if pattern is not None:
            route = str(route)
        self.call = Call(route, interaction.value, "client", connection)
        self.call.pattern = pattern
        self._terms = port.calls
        self._auth = auth
        self._life: Interception | None = None
        if payload is None:
            payload = b""
        data: Any = payload if is_sent_as_it_is(payload) else None
        entries = entries_of_pairs(metadata) if metadata else []
        self.metadata_mime = setup.metadata_mime
        if isinstance(data, Payload) and data.metadata_mime not in NO_MIME:
            self.metadata_mime = mime_name(data.metadata_mime)
        self._is_composite = self.metadata_mime == COMPOSITE_METADATA
        if entries:
            if not port.session.dialect.routes:
                raise Unsupported(f"{port.session.dialect.name} has no metadata")
            check_composite("metadata=", self.metadata_mime)
        if auth is not None:
            check_auth(auth, self.metadata_mime)
        if data is None or needs_codec(kind):
            form = request_form(port, self.metadata_mime)
            # A channel sends objects later, also if its opening data is none.
            sends = data is None or (interaction is REQUEST_CHANNEL and not isinstance(data, Payload))
            entries += _entries_in((form.names if sends else form.accepts) or b"")
            if data is None:
                data = encoded(form.codec, payload.argument if isinstance(payload, Encode) else payload)
        self._payload = as_payload(data)
        if self._is_composite and self._payload.metadata:
            entries += _entries_in(self._payload.metadata)
        serving = current_call_variable.get(None)
        if isinstance(serving, Call) and serving._travelling and self._is_composite:
            entries += serving._passed_on(entry.mime for entry in entries)
        self.call.entries.extend(entries)

    def item_encoder(self, kind: object) -> Callable[[object], PayloadLike]:
        """Return the function that returns an item of a channel, of type ``kind``, as it is sent."""
        is_text, is_object = whole_type(kind)[0] is not None, is_object_type(kind)

        def encode(item: object) -> PayloadLike:
            if item is None:
                return b""
            if isinstance(item, Payload) or (is_text and isinstance(item, str)):
                return item
            if not is_object and is_sent_as_it_is(item):
                return item
            return encoded(request_form(self.port, self.metadata_mime).codec, item)

        return encode

    def item_decoder(self, kind: object) -> Callable[[Payload], Any]:
        """Return what ``decoder`` returns for this request."""
        return decoder(self.port, kind, self.metadata_mime)

    async def request(self, send: Callable[[Payload], Awaitable[Any]], kind: object = None) -> Any:
        """Return the result of ``send``, which is given the request, inside of the interceptors.

        With ``kind`` the result is an answer, decoded as that type.
        """
        await self._authenticate()
        async with Interception(self.call, self._terms.around) if self._terms.around else nullcontext():
            request = self._composed()
            self.call._count_sent(1, request.size)
            answer = await send(request)
            if isinstance(answer, Payload):
                self.call._count_received(1, answer.size)
            return answer if kind is None else self.item_decoder(kind)(answer)

    async def begin(self) -> Payload:
        """Enter the interceptors of a stream, and return its request."""
        await self._authenticate()
        if self._terms.around:
            self._life = Interception(self.call, self._terms.around)
            await self._life.__aenter__()
        try:
            request = self._composed()
        except BaseException as error:
            await self.leave(error)
            raise
        if self._life is not None:
            self.call._count_sent(1, request.size)
        return request

    @property
    def renewed(self) -> Callable[[], Payload] | None:
        """Return the function that composes the request anew after it had to wait, with the time that is left then.

        ``None`` if it carries no deadline. A new request has the size of the former one.
        """
        return self._composed if self._terms.deadlines and self._is_composite else None

    async def leave(self, error: BaseException | None, *, over: bool = True) -> None:
        """Leave the interceptors of a stream, which ended with ``error`` or without; ``over`` if it had come to an end.

        Raise what an interceptor raises in its place.
        """
        life, self._life = self._life, None
        if life is not None:
            await life.leave(error, cancelled=not over)

    def observe(self, stream: Incoming) -> None:
        """Count what comes and goes on ``stream`` if interceptors look at the call."""
        if self._life is not None:
            stream._observed_by(CountingObserver(stream, self.call))
            if isinstance(stream, Channel):
                stream._count_sent(self.call)

    async def _authenticate(self) -> None:
        if self._auth is not None:
            entry = Entry(AUTHENTICATION, encode_authentication(await fresh_credentials(self._auth)))
            self.call.entries[:] = [other for other in self.call.entries if other.mime != AUTHENTICATION] + [entry]

    def _composed(self) -> Payload:
        """Return the request with its route and its entries, as they are now."""
        entries = self.call.entries
        if not self._is_composite:
            return routed(self.port, self._payload, self.call.route)
        left = trio.current_effective_deadline() - trio.current_time() if self._terms.deadlines else math.inf
        if not math.isinf(left):
            entries = [entry for entry in entries if entry.mime != DEADLINE]
            entries.append(Entry(DEADLINE, encode_deadline(max(0.0, left))))
        request = with_metadata(self._payload, encode_composite(entries) if entries else None)
        return routed(self.port, request, self.call.route)


class ObservedCall:
    """A request of bytes for one answer of which others hear when it has ended, and nothing else is round it.

    It has no metadata but its route.
    """

    __slots__ = ("_payload", "_port", "call")

    renewed = None

    def __init__(self, port: Engine, payload: object, route: str | None) -> None:
        self._port = port
        self._payload = payload
        self.call = Call(route, REQUEST_RESPONSE.value, "client", port.connection)
        if isinstance(route, MethodRoute):
            self.call.route, self.call.pattern = str(route), route.pattern

    async def request(self, send: Callable[[Payload], Awaitable[Any]], kind: object = None) -> Any:
        """Return the result of ``send``, which is given the request; ``kind`` is ``None``."""
        call = self.call
        call.began_at = trio.current_time()
        try:
            request = routed(self._port, self._payload, call.route)
            call._count_sent(1, request.size)
            answer = await send(request)
        except BaseException as error:
            call._end(error)
            raise
        else:
            call._count_received(1, answer.size)
            call._end(None)
            return answer
        finally:
            self._port.tell_ended(call, self._port.calls.observers)


OneAnswerCall: TypeAlias = ClientCall | ObservedCall


def one_answer_call(
    port: Engine,
    payload: object,
    route: str | None,
    auth: Auth | None,
    kind: object,
    metadata: Iterable[MetadataPair],
) -> OneAnswerCall:
    """Return a request for one answer, in fewer steps where nothing is round it. The arguments are ``ClientCall``'s."""
    has_entries = isinstance(payload, Payload) and payload.metadata
    needs_more = has_entries or needs_call(port, payload, kind, auth, metadata, around=False)
    if port.calls.observers and not needs_more:
        return ObservedCall(port, payload, route)
    return ClientCall(port, REQUEST_RESPONSE, payload, route, auth, kind, metadata)


def remote_of(
    contract: Contract[ServiceT], requester: object, auth: Auth | None, metadata: Iterable[MetadataPair]
) -> ServiceT:
    from rsocket_trio.services import contracts

    return contracts.remote_of(contract, requester, auth, metadata)


def _entries_in(metadata: bytes) -> list[Entry]:
    """Return the entries that the caller gave. Raise ``ValueError`` if they are malformed."""
    try:
        return decode_composite(metadata, limit=len(metadata))
    except RemoteProtocolError as error:
        raise ValueError(f"metadata of the request: {error}") from None


class CountingObserver(StreamObserver):
    """Counts what comes on a stream for ``call``, and passes it on to ``inner``, the stream's own observer.

    All that is not counted goes to ``inner`` directly.
    """

    def __init__(self, inner: StreamObserver, call: Call) -> None:
        self._inner = inner
        self._call = call
        for name in ("_on_push", "_on_complete", "_on_cancel", "_on_credit", "_on_eof"):
            setattr(self, name, getattr(inner, name))

    @property
    def _unread(self) -> int:
        return self._inner._unread

    def _on_item(self, payload: Payload, complete: bool) -> None:
        self._call._count_received(1, payload.size)
        self._inner._on_item(payload, complete)

    def _on_items(self, payloads: Sequence[Payload]) -> None:
        self._call._count_received(len(payloads), sum(payload.size for payload in payloads))
        self._inner._on_items(payloads)

    def _on_error(self, error: RSocketError) -> None:
        self._call.error = error
        self._inner._on_error(error)
