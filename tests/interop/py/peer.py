"""What the asyncio peers do: the behaviours that they serve, and the commands that they carry out.

README.md, one folder up, lists both. Nothing of this project is imported here: the peer is to be a stranger.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, ClassVar

from reactivestreams.publisher import Publisher
from reactivestreams.subscriber import Subscriber
from reactivestreams.subscription import Subscription
from rsocket.error_codes import ErrorCode
from rsocket.exceptions import RSocketProtocolError
from rsocket.extensions.composite_metadata import CompositeMetadata
from rsocket.extensions.helpers import composite, route
from rsocket.extensions.mimetypes import WellKnownMimeTypes
from rsocket.extensions.routing import RoutingMetadata
from rsocket.payload import Payload
from rsocket.request_handler import BaseRequestHandler

COMPOSITE = "message/x.rsocket.composite-metadata.v0"
ROUTING = "message/x.rsocket.routing.v0"
MAX_REQUEST_N = 2**31 - 1
LAST_HOLD = 100
FRAGMENT_PAUSE = 0.001
HOST = "127.0.0.1"

Result = dict[str, Any]


class Seen:
    """What this process saw as a responder, on all connections."""

    cancels: ClassVar[int] = 0
    fnf: ClassVar[list[str]] = []
    push: ClassVar[list[str]] = []
    credits: ClassVar[list[int]] = []
    setup: ClassVar[Result | None] = None


def pattern(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


# ---- what a source of items needs: credit, and room for others between its items


class Source(Publisher, Subscription):
    """Sends what ``following`` gives: an item, ``None`` for the end, ``...`` for "not yet"."""

    def __init__(self, following: Callable[[bool], Any], *, batch: int = 64, pause: float = 0.0) -> None:
        self.following = following
        self.batch = batch
        self.pause = pause
        self.credit = 0
        self.sent = 0
        self.done = False
        self.scheduled = False
        self.sink: Any = None
        self.on_done: Callable[[], None] = lambda: None

    def subscribe(self, subscriber: Subscriber) -> None:
        self.sink = subscriber
        subscriber.on_subscribe(self)

    def request(self, n: int) -> None:
        Seen.credits.append(n)
        self.credit += n
        self.wake()

    def wake(self, pause: float | None = None) -> None:
        if not self.scheduled and not self.done and self.sink is not None:
            self.scheduled = True
            asyncio.get_running_loop().call_later(self.pause if pause is None else pause, self.send)

    def must_wait(self) -> bool:
        """The library mixes the fragments of one stream's payloads, so each has to be out before the next is begun."""
        socket = getattr(self.sink, "socket", None) or getattr(self.sink, "_socket", None)
        return socket is not None and socket.get_fragment_size_bytes() and not socket._send_queue.empty()

    def send(self) -> None:
        self.scheduled = False
        for _ in range(self.batch):
            if self.done:
                return
            if self.must_wait():
                self.wake(FRAGMENT_PAUSE)
                return
            try:
                # The end needs no credit, the next item does; `following` is told which of them may come.
                item = self.following(self.credit > 0)
            except Exception as error:
                self.finish()
                self.sink.on_error(error)
                return
            if item is ...:
                return
            if item is None:
                self.finish()
                self.sink.on_complete()
                return
            self.credit -= 1
            self.sent += 1
            self.sink.on_next(item, False)
        self.wake()

    def finish(self) -> None:
        self.done = True
        self.on_done()

    def cancel(self) -> None:
        if not self.done:
            Seen.cancels += 1
            self.finish()


class Ahead:
    """The items of an iterator, as far as there is credit. One is held, so that the end is known without credit."""

    def __init__(self, items: Iterable[Payload]) -> None:
        self.items = iter(items)
        self.held: Payload | None = None
        self.error: Exception | None = None
        self.advance()

    def advance(self) -> None:
        try:
            self.held = next(self.items, None)
        except Exception as error:
            self.held, self.error = None, error

    def __call__(self, may: bool) -> Any:
        if self.held is None:
            return None if self.error is None else raising(self.error)
        if not may:
            return ...
        item = self.held
        self.advance()
        return item


class Queue:
    """Items that are pushed in by someone else."""

    def __init__(self) -> None:
        self.items: deque[Payload] = deque()
        self.ended = False
        self.error: Exception | None = None

    def following(self, may: bool) -> Any:
        if self.items:
            return self.items.popleft() if may else ...
        if self.error is not None:
            raise self.error
        return None if self.ended else ...


# ---- behaviours


def data_of(payload: Payload) -> bytes:
    return bytes(payload.data or b"")


def text(payload: Payload) -> str:
    return data_of(payload).decode()


def answer(value: Any) -> Payload:
    return Payload((value if isinstance(value, str) else json.dumps(value)).encode())


# The library gives metadata that is absent as empty: the two look alike here.
def hexed(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).hex()


def route_of(payload: Payload, metadata_mime: str) -> str | None:
    metadata = payload.metadata
    if not metadata or metadata_mime not in (COMPOSITE, ROUTING):
        return None
    if metadata_mime == ROUTING:
        tags = RoutingMetadata()
        tags.parse(metadata)
        return bytes(tags.tags[0]).decode()
    found = CompositeMetadata().parse(metadata).find_by_mimetype(WellKnownMimeTypes.MESSAGE_RSOCKET_ROUTING)
    return bytes(found[0].tags[0]).decode() if found else None


def numbers(count: int | None) -> Iterator[Payload]:
    number = 0
    while count is None or number < count:
        yield answer(str(number))
        number += 1


def failing(count: int) -> Iterator[Payload]:
    yield from numbers(count)
    raise RuntimeError(f"failed after {count}")


def raising(error: Exception) -> Any:
    raise error


def checked_large(payload: Payload) -> Payload:
    if data_of(payload) != pattern(271_828):
        raise RuntimeError(f"{len(data_of(payload))} bytes, and not the right ones")
    return Payload(pattern(314_159))


def checked(payload: Payload) -> Payload:
    data = data_of(payload)
    return answer({"size": len(data), "same": data == pattern(len(data))})


def drained(items: list[Any]) -> list[Any]:
    taken = list(items)
    items.clear()
    return taken


async def slept(payload: Payload, _: Any) -> Payload:
    await asyncio.sleep(int(text(payload)) / 1000)
    return answer("slept")


async def called(payload: Payload, socket: Any) -> Payload:
    return answer(await Commander(socket, COMPOSITE).run(json.loads(text(payload))))


RESPONSES: dict[str, Callable[[Payload], Payload]] = {
    "echo": lambda payload: Payload(data_of(payload), payload.metadata),
    "error": lambda payload: raising(RuntimeError(text(payload))),
    "large": checked_large,
    "check": checked,
    "cancels": lambda _: answer(str(Seen.cancels)),
    "credits": lambda _: answer(drained(Seen.credits)),
    "received": lambda _: answer({"fnf": drained(Seen.fnf), "push": drained(Seen.push)}),
    "setup": lambda _: answer(Seen.setup),
}
SLOW_RESPONSES: dict[str, Callable[[Payload, Any], Coroutine[Any, Any, Payload]]] = {"sleep": slept, "call": called}
STREAMS: dict[str, Callable[[Payload], Callable[[bool], Any]]] = {
    "count": lambda payload: Ahead(numbers(int(text(payload)))),
    "infinite": lambda _: Ahead(numbers(None)),
    "silent": lambda _: lambda may: ...,
    "sizes": lambda payload: Ahead(Payload(pattern(int(size))) for size in text(payload).split(",")),
    "fail": lambda payload: Ahead(failing(int(text(payload)))),
}


class Messages(Subscriber):
    """The requester's half of a channel. Grants four messages, then one for each that came."""

    def __init__(self, out: Queue, source: Source, name: str) -> None:
        self.out = out
        self.source = source
        self.total = 0
        self.subscription: Any = None
        self.message: Callable[[Payload, bool], None] = getattr(self, f"message_{name}")
        self.name = name

    def first(self, payload: Payload) -> None:
        if data_of(payload):
            self.message(payload, True)
            self.source.wake()

    def on_subscribe(self, subscription: Subscription) -> None:
        self.subscription = subscription
        # The connection answers a REQUEST_CHANNEL by subscribing first, and tells us of its COMPLETE after.
        asyncio.get_running_loop().call_soon(self.grant, 4)

    def grant(self, n: int) -> None:
        if self.subscription is not None:
            self.subscription.request(n)

    def on_next(self, value: Payload, is_complete: bool = False) -> None:
        self.message(value, False)
        if is_complete:
            self.on_complete()
        else:
            self.grant(1)
        self.source.wake()

    def on_complete(self) -> None:
        self.subscription = None
        if self.name == "sum":
            self.out.items.append(answer(str(self.total)))
        if self.name in ("echo", "pingpong", "sum"):
            self.out.ended = True
        self.source.wake()

    def on_error(self, exception: Exception) -> None:
        self.subscription = None
        self.source.cancel()

    def message_echo(self, payload: Payload, is_first: bool) -> None:
        self.out.items.append(payload)

    def message_pingpong(self, payload: Payload, is_first: bool) -> None:
        size, _, _ = data_of(payload).partition(b"\0")
        self.out.items.append(Payload(pattern(int(size))))

    def message_sum(self, payload: Payload, is_first: bool) -> None:
        self.total += len(data_of(payload))

    def message_fail(self, payload: Payload, is_first: bool) -> None:
        self.out.error = RuntimeError(text(payload))

    def message_half(self, payload: Payload, is_first: bool) -> None:
        Seen.fnf.append(data_of(payload).hex())

    def message_stop(self, payload: Payload, is_first: bool) -> None:
        if self.out.ended:
            return
        asyncio.get_running_loop().call_soon(self.stop)
        self.out.items.append(answer("stopped"))
        self.out.ended = True

    def stop(self) -> None:
        subscription, self.subscription = self.subscription, None
        if subscription is not None:
            subscription.cancel()


CHANNELS = ("echo", "pingpong", "sum", "fail", "half", "stop")


class Responder(BaseRequestHandler):  # type: ignore[misc,unused-ignore]  # the library has no types
    """Serves the behaviours on one connection."""

    def __init__(self, metadata_mime: str = COMPOSITE) -> None:
        super().__init__()
        self.socket: Any = None
        self.metadata_mime = metadata_mime
        self.closed = asyncio.Event()
        self.error: tuple[int, str] | None = None

    def pick(self, table: Any, payload: Payload) -> str:
        name = route_of(payload, self.metadata_mime)
        if name is None:
            name = "echo"
        if name not in table:
            raise RSocketProtocolError(ErrorCode.REJECTED, f"no route {name}")
        return name

    async def on_setup(self, data_encoding: bytes, metadata_encoding: bytes, payload: Payload) -> None:
        self.metadata_mime = metadata_encoding.decode()
        Seen.setup = {
            "metadata_mime": self.metadata_mime,
            "data_mime": data_encoding.decode(),
            "data": data_of(payload).hex(),
            "metadata": hexed(payload.metadata),
        }
        if data_of(payload) == b"refuse":
            raise RuntimeError("refused as asked")

    async def request_response(self, payload: Payload) -> asyncio.Future[Payload]:
        # The library awaits this in its receive loop, so what takes time goes into a task.
        return asyncio.ensure_future(self.respond(payload))

    async def respond(self, payload: Payload) -> Payload:
        try:
            name = self.pick(RESPONSES.keys() | SLOW_RESPONSES.keys(), payload)
            if name in SLOW_RESPONSES:
                return await SLOW_RESPONSES[name](payload, self.socket)
            return RESPONSES[name](payload)
        except asyncio.CancelledError:
            Seen.cancels += 1
            raise

    async def request_stream(self, payload: Payload) -> Source:
        name = self.pick(STREAMS, payload)
        Seen.credits.clear()
        pace = {"batch": 16, "pause": 0.001} if name == "infinite" else {}
        return Source(STREAMS[name](payload), **pace)  # type: ignore[arg-type]

    async def request_channel(self, payload: Payload) -> tuple[Source, Messages]:
        name = self.pick(CHANNELS, payload)
        Seen.credits.clear()
        out = Queue()
        source = Source(out.following)
        messages = Messages(out, source, name)
        messages.first(payload)
        out.ended = out.ended or name == "half"
        return source, messages

    async def request_fire_and_forget(self, payload: Payload) -> None:
        Seen.fnf.append(data_of(payload).hex())

    async def on_metadata_push(self, payload: Payload) -> None:
        Seen.push.append(bytes(payload.metadata).hex())

    async def on_error(self, error_code: ErrorCode, payload: Payload) -> None:
        # An error of the whole connection, which the library survives.
        self.error = (int(error_code), text(payload))
        self.closed.set()

    async def on_connection_error(self, rsocket: Any, exception: Exception) -> None:
        self.error = (0, str(exception))
        self.closed.set()

    async def on_close(self, rsocket: Any, exception: Exception | None = None) -> None:
        self.closed.set()


# ---- commands


def failed(error: BaseException) -> Result:
    if isinstance(error, RSocketProtocolError):
        return {"ok": False, "code": int(error.error_code), "error": error.data or ""}
    return {"ok": False, "code": int(ErrorCode.APPLICATION_ERROR), "error": str(error)}


class Commander:
    """Carries out commands as the requester of one connection."""

    def __init__(self, socket: Any, metadata_mime: str) -> None:
        self.socket = socket
        self.metadata_mime = metadata_mime
        self.commands: dict[str, Callable[[Result], Coroutine[Any, Any, Result]]] = {
            "request_response": self.request_response,
            "request_stream": self.request_stream,
            "request_channel": self.request_channel,
            "fire_and_forget": self.fire_and_forget,
            "metadata_push": self.metadata_push,
            "many": self.many,
        }

    async def run(self, command: Result) -> Result:
        if command["do"] not in self.commands:
            return {"ok": False, "code": None, "error": f"unsupported: {command['do']}"}
        try:
            return await self.commands[command["do"]](command)
        except Exception as error:
            return failed(error)

    def payload(self, command: Result) -> Payload:
        metadata = None if command.get("metadata") is None else bytes.fromhex(command["metadata"])
        if command.get("route") is not None:
            tags = route(command["route"])
            metadata = composite(tags) + (metadata or b"") if self.metadata_mime == COMPOSITE else tags.serialize()
        data = pattern(command["size"]) if "size" in command else bytes.fromhex(command.get("data", ""))
        return Payload(data, metadata)

    async def request_response(self, command: Result) -> Result:
        future = asyncio.ensure_future(self.socket.request_response(self.payload(command)))
        if "cancel_after" in command:
            await asyncio.wait([future], timeout=command["cancel_after"] / 1000)
            if not future.done():
                future.cancel()
                return {"ok": True, "cancelled": True}
        reply = await future
        return {"ok": True, "data": hexed(reply.data), "metadata": hexed(reply.metadata or None)}

    async def request_stream(self, command: Result) -> Result:
        taker = Taker(command)
        stream = self.socket.request_stream(self.payload(command))
        stream.initial_request_n(taker.open()).subscribe(taker)
        return await taker.result()

    async def request_channel(self, command: Result) -> Result:
        complete = command.get("complete", True)
        items = command.get("items", [])
        messages = deque(self.payload({"data": item} if isinstance(item, str) else item) for item in items)
        taker = Taker(command)
        if complete and not messages:
            stream = self.socket.request_channel(self.payload(command), None)
            stream.initial_request_n(taker.open()).subscribe(taker)
            return await taker.result() | {"granted": 0, "sent": 0, "stopped": False}

        queue = Queue()
        extra = {"granted": 0, "stopped": False}
        sent = asyncio.Event()

        def push(n: int) -> None:
            for _ in range(min(n, len(messages))):
                queue.items.append(messages.popleft())
            queue.ended = complete and not messages
            source.wake()

        class Half(Source):
            def request(self, n: int) -> None:
                extra["granted"] += n
                super().request(n)

            def cancel(self) -> None:
                extra["stopped"] = not self.done
                super().cancel()

        source = Half(queue.following)
        source.on_done = sent.set
        if command.get("pingpong"):
            taker.on_item = lambda: push(1)
        stream = self.socket.request_channel(self.payload(command), source)
        stream.initial_request_n(taker.open()).subscribe(taker)
        push(1 if command.get("pingpong") else len(messages))
        result = await taker.result()
        if result.get("completed") and complete:
            await sent.wait()  # a responder that is done may still be listening
        # The library keeps our half open when it sends a CANCEL or receives an ERROR.
        source.done = True
        return result | extra | {"sent": source.sent}

    async def fire_and_forget(self, command: Result) -> Result:
        await self.socket.fire_and_forget(self.payload(command))
        return {"ok": True}

    async def metadata_push(self, command: Result) -> Result:
        await self.socket.metadata_push(bytes.fromhex(command["metadata"]))
        return {"ok": True}

    async def many(self, command: Result) -> Result:
        calls = [self.run(command | {"do": "request_response"}) for _ in range(command["count"])]
        replies = await asyncio.gather(*calls)
        errors = [reply for reply in replies if not reply["ok"]]
        answers = [reply["data"] for reply in replies if reply["ok"]]
        return {"ok": not errors, "answers": len(answers), "different": sorted(set(answers)), "errors": errors}


class Taker(Subscriber):
    """Takes items with the credit that a command asks for, and says what came."""

    def __init__(self, command: Result) -> None:
        self.command = command
        self.grants = deque([command.get("initial_n", MAX_REQUEST_N), *command.get("later", [])])
        self.credit = 0
        self.items: list[str] = []
        self.metadata: list[str | None] = []
        self.surplus = 0
        self.on_item: Callable[[], None] = lambda: None
        self.subscription: Any = None
        self.finished: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def open(self) -> int:
        self.credit = self.grants.popleft()
        if "cancel_after" in self.command:
            asyncio.get_running_loop().call_later(self.command["cancel_after"] / 1000, self.stop)
        return self.credit

    async def result(self) -> Result:
        ends = {"ok": True, "completed": False, "cancelled": False}
        taken = {"items": self.items, "metadata": self.metadata}
        outcome = await self.finished
        return ends | taken | {"surplus": self.surplus} | outcome

    def finish(self, outcome: Result) -> None:
        if not self.finished.done():
            self.finished.set_result(outcome)

    def stop(self) -> None:
        if not self.finished.done():
            self.subscription.cancel()
            self.finish({"cancelled": True})

    def on_subscribe(self, subscription: Subscription) -> None:
        self.subscription = subscription

    def on_next(self, value: Payload, is_complete: bool = False) -> None:
        if self.finished.done():
            return
        self.items.append(data_of(value).hex())
        self.metadata.append(hexed(value.metadata or None))
        self.credit -= 1
        self.surplus += self.credit < 0
        self.on_item()
        if is_complete:
            self.finish({"completed": True})
        elif len(self.items) == self.command.get("take"):
            self.stop()
        elif self.credit == 0:
            # The last credit may be followed by the end, and by nothing else.
            hold = self.command.get("hold", 0 if self.grants else LAST_HOLD)
            asyncio.get_running_loop().call_later(hold / 1000, self.more)

    def more(self) -> None:
        if self.finished.done():
            return
        if not self.grants:
            self.stop()
            return
        n = self.grants.popleft()
        self.credit += n
        self.subscription.request(n)

    def on_complete(self) -> None:
        self.finish({"completed": True})

    def on_error(self, exception: Exception) -> None:
        self.finish(failed(exception))


def say(message: str) -> None:
    sys.stdout.write(message + "\n")
    sys.stdout.flush()


async def lines() -> asyncio.StreamReader:
    """Standard input, which may hold commands of megabytes."""
    reader = asyncio.StreamReader(limit=2**26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader
