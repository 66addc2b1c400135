"""Requests that need more than their bytes: objects, credentials, interceptors, deadlines and traces that travel on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from rsocket_trio.codecs import Codec
from rsocket_trio.connection.hooks import current_call_variable
from rsocket_trio.connection.request_queue import routed, supported
from rsocket_trio.connection.streams import Channel, Incoming, StreamObserver
from rsocket_trio.errors import RemoteProtocolError, RSocketError
from rsocket_trio.metadata.authentication import Auth
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
    MIME_TYPE,
    NO_MIME,
    mime_name,
)
from rsocket_trio.metadata.mimetypes_per_stream import encode_accepted_mimes, encode_data_mime
from rsocket_trio.metadata.routes import with_route
from rsocket_trio.mux.stream_state import REQUEST_CHANNEL
from rsocket_trio.payload import PAYLOAD_LIKE, MetadataPush, Payload, PayloadLike, as_payload
from rsocket_trio.services.calls.access import auth_entry, check_auth, fresh_credentials
from rsocket_trio.services.calls.context import Call
from rsocket_trio.services.calls.interceptors import Interception, intercepted
from rsocket_trio.services.calls.time_left import with_time_left
from rsocket_trio.services.codec_choice import RequestForm, codec_of_connection, form_of_requests
from rsocket_trio.services.payload_types import Encode, decode_object, is_object_type, reader_of, text_type
from rsocket_trio.services.route_patterns import MethodRoute

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine
    from rsocket_trio.connection.hooks import Contract, ServiceT
    from rsocket_trio.mux.stream_state import Interaction


def request_form(port: Engine) -> RequestForm:
    """Return how requests carry objects. Raise ``ValueError`` if no codec covers the MIME type of the connection."""
    form = port.request_form
    if not isinstance(form, RequestForm):
        codecs = port.calls.codecs if port.calls.codecs is not None else port.responder.codecs
        setup = port.connection.setup
        port.request_form = form = form_of_requests(codecs, setup.data_mime, setup.metadata_mime)
    return form


def object_request(port: Engine, payload: Any, route: str | None, kind: Any) -> Payload:
    """Return a request that needs a codec and nothing else, made in fewer steps than a ``ClientCall``.

    ``payload`` is an object, or data that is sent as it is; ``kind`` is the type of the answer, ``None`` for a payload,
    as it has to be if ``payload`` is one itself.
    """
    is_data = payload is None or is_sent_as_it_is(payload)
    if payload is None:
        payload = b""
    if is_data and not needs_codec(kind):
        return routed(port, payload, route)
    form = request_form(port)
    if is_data:
        data, metadata = as_payload(payload).data, form.accepts
    else:
        data = encoded(form.codec, payload.argument if type(payload) is Encode else payload)
        metadata = form.names
    if isinstance(route, str) and port.session.dialect.routes:
        return Payload(data, with_route(route, metadata, port.connection.setup.metadata_mime))
    return routed(port, Payload(data, metadata), route)


def needs_codec(kind: Any) -> bool:
    """Return whether a codec reads data of type ``kind``. ``None`` stands for a payload."""
    return kind is not None and kind is not Payload and reader_of(kind) is None


def is_sent_as_it_is(payload: object) -> TypeGuard[PayloadLike]:
    """Return whether what an application sends is data as it is. An enum is an object, also one of texts."""
    return isinstance(payload, PAYLOAD_LIKE) and not isinstance(payload, Enum)


def encoded(codec: Codec, item: Any) -> bytes:
    """Return an object as ``codec`` writes it. Raise ``TypeError`` if it can't."""
    try:
        return codec.encode(item)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{type(item).__name__} can't be encoded as {codec.mime}: {error}") from error


def decoded(port: Engine, payload: Payload, kind: Any) -> Any:
    """Return an answer as ``kind``. Raise ``DecodeError``, a ``ValueError``, if it does not fit."""
    if kind is Payload:
        return payload
    read = reader_of(kind)
    return decode_object(request_form(port).codec, payload.data, kind) if read is None else read(payload.data)


class ClientCall:
    """One request with what it needs, from its making to its end.

    ``payload`` is what the application sends, an object is encoded; ``kind`` is the type of answers, ``None`` for
    payloads. ``metadata`` are entries of the application, which stand before all others. ``call`` is what interceptors
    see.
    """

    __slots__ = ("_auth", "_life", "_payload", "_terms", "call", "metadata_mime", "port")

    def __init__(
        self,
        port: Engine,
        interaction: Interaction,
        payload: object,
        route: str | None,
        auth: Auth | None,
        kind: Any,
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
        given: Any = payload if is_sent_as_it_is(payload) else None
        entries = entries_of_pairs(metadata) if metadata else []
        self.metadata_mime = setup.metadata_mime
        if isinstance(given, Payload) and given.metadata_mime not in NO_MIME:
            self.metadata_mime = mime_name(given.metadata_mime)
        if entries:
            if not port.session.dialect.routes:
                supported(port.session, None, "metadata")
            check_composite("metadata=", self.metadata_mime)
        if auth is not None:
            check_auth(auth, self.metadata_mime)
        if given is None or needs_codec(kind):
            codec, named = self._chosen()
            # A channel sends objects later, also if its opening data is none.
            sends = given is None or (interaction is REQUEST_CHANNEL and not isinstance(given, Payload))
            if named and sends:
                entries.append(Entry(MIME_TYPE, encode_data_mime(codec.mime)))
            elif named:
                entries.append(Entry(ACCEPT_MIME_TYPES, encode_accepted_mimes([codec.mime])))
        if given is None:
            given = self._encoded(payload.argument if isinstance(payload, Encode) else payload)
        self._payload = as_payload(given)
        if self.is_composite and self._payload.metadata:
            entries += _entries_in(self._payload.metadata)
        serving = current_call_variable.get(None)
        if isinstance(serving, Call) and serving._travelling and self.is_composite:
            entries += serving._passed_on(entry.mime for entry in entries)
        self.call.entries.extend(entries)

    @property
    def is_composite(self) -> bool:
        """Return whether the request can carry entries."""
        return self.metadata_mime == COMPOSITE_METADATA

    def item_encoder(self, kind: Any) -> Callable[[Any], PayloadLike]:
        """Return the function that returns an item of a channel, of type ``kind``, as it is sent."""
        is_text, is_object = text_type(kind) is not None, is_object_type(kind)

        def encode(item: Any) -> PayloadLike:
            if item is None:
                return b""
            if isinstance(item, Payload) or (is_text and isinstance(item, str)):
                return item
            return item if not is_object and is_sent_as_it_is(item) else self._encoded(item)

        return encode

    def item_decoder(self, kind: Any) -> Callable[[Payload], Any]:
        """Return the function that returns an answer or an item as ``kind``.

        It raises ``DecodeError``, a ``ValueError``, for one that does not fit.
        """
        if kind is Payload:
            return lambda payload: payload
        read = reader_of(kind)
        if read is not None:
            return lambda payload: read(payload.data)
        codec, _ = self._chosen()
        return lambda payload: decode_object(codec, payload.data, kind)

    def _encoded(self, item: Any) -> bytes:
        """Return an object as the connection's codec writes it. Raise ``TypeError`` if it can't."""
        return encoded(self._chosen()[0], item)

    def _chosen(self) -> tuple[Codec, bool]:
        """Return the codec of the request, and whether it has to name it. Raise ``ValueError`` if there is none."""
        codecs = self._terms.codecs if self._terms.codecs is not None else self.port.responder.codecs
        return codec_of_connection(codecs, self.call.connection.setup.data_mime, self.metadata_mime)

    async def request(self, send: Callable[[Payload], Awaitable[Any]], kind: Any = None) -> Any:
        """Return the result of ``send``, which is given the request, inside of the interceptors.

        With ``kind`` the result is an answer, decoded as that type.
        """
        await self._authenticate()
        if not self._terms.around:
            answer = await send(self._composed())
            return answer if kind is None else self.item_decoder(kind)(answer)

        async def body() -> Any:
            request = self._composed()
            self.call._count_sent(request)
            answer = await send(request)
            if isinstance(answer, Payload):
                self.call._count_received(answer)
            return answer if kind is None else self.item_decoder(kind)(answer)

        return await intercepted(self.call, self._terms.around, body)

    async def begin(self) -> Payload:
        """Enter the interceptors of a stream, and return its request."""
        await self._authenticate()
        if self._terms.around:
            self._life = Interception(self.call)
            await self._life.enter(self._terms.around)
        try:
            request = self._composed()
        except BaseException as error:
            await self.leave(error)
            raise
        if self._life is not None:
            self.call._count_sent(request)
        return request

    @property
    def renewed(self) -> Callable[[], Payload] | None:
        """Return the function that composes the request anew after it had to wait, with the time that is left then.

        ``None`` if it carries no deadline. A new request has the size of the former one.
        """
        return self._composed if self._terms.deadlines and self.is_composite else None

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
            entry = auth_entry(await fresh_credentials(self._auth))
            self.call.entries[:] = [each for each in self.call.entries if each.mime != AUTHENTICATION] + [entry]

    def _composed(self) -> Payload:
        """Return the request with its route and its entries, as they are now."""
        entries: Sequence[Entry] = self.call.entries
        if not self.is_composite:
            return routed(self.port, self._payload, self.call.route)
        if self._terms.deadlines:
            entries = with_time_left(entries)
        given = self._payload
        request = Payload(
            given.data,
            encode_composite(entries) if entries else None,
            metadata_type=given.metadata_type,
            data_mime=given.data_mime,
            metadata_mime=given.metadata_mime,
        )
        return routed(self.port, request, self.call.route)


client_call: Final = ClientCall
"""Begins a request, as the hook of a connection does."""


def remote_of(
    contract: Contract[ServiceT], requester: object, auth: Auth | None, metadata: Iterable[MetadataPair]
) -> ServiceT:
    """Return an object with the methods of ``contract``, each of which is a request of ``requester``."""
    from rsocket_trio.services import contracts

    return contracts.remote_of(contract, requester, auth, metadata)


def _entries_in(metadata: bytes) -> list[Entry]:
    """Return the entries that the caller gave. Raise ``ValueError`` if they are malformed."""
    try:
        return decode_composite(metadata, limit=len(metadata))
    except RemoteProtocolError as error:
        raise ValueError(f"metadata of the request: {error}") from None


class CountingObserver(StreamObserver):
    """Counts what comes on a stream for ``call``, and passes it on to ``inner``, the stream's own observer."""

    __slots__ = ("_call", "_inner")

    def __init__(self, inner: StreamObserver, call: Call) -> None:
        self._inner = inner
        self._call = call

    @property
    def _unread(self) -> int:
        return self._inner._unread

    def _on_item(self, payload: Payload, complete: bool) -> None:
        self._call._count_received(payload)
        self._inner._on_item(payload, complete)

    def _on_items(self, payloads: Sequence[Payload]) -> None:
        self._call._count_all_received(payloads)
        self._inner._on_items(payloads)

    def _on_push(self, push: MetadataPush) -> bool:
        return self._inner._on_push(push)

    def _on_complete(self) -> None:
        self._inner._on_complete()

    def _on_error(self, error: RSocketError) -> None:
        self._call.error = error
        self._inner._on_error(error)

    def _on_cancel(self) -> None:
        self._inner._on_cancel()

    def _on_credit(self) -> None:
        self._inner._on_credit()

    def _on_eof(self) -> None:
        self._inner._on_eof()
