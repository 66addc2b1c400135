"""The chat of chat.py as a typed service: the same rooms, private messages and clocks, and no bytes.

    python examples/chat_typed.py                                     the demo: a server and three members
    python examples/chat_typed.py server --listen tcp://127.0.0.1:7878
    python examples/chat_typed.py client ada tcp://127.0.0.1:7878     lines are read from standard input

``Chat`` is the contract of the server, ``Clock`` that of its members, whom the server asks for the time. A room is a
``Broadcast``: a line waits for its reader's credit in the reader's own mailbox, and one that comes while ``MAILBOX``
lines wait there is missed; its reader is told so in its place.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

import trio

from rsocket_trio import (
    Canceled,
    Connection,
    ConnectionClosed,
    Rejected,
    RejectedSetup,
    Responder,
    RSocketError,
    Setup,
    current_connection,
    open_connection,
    serve,
)
from rsocket_trio.services import (
    Broadcast,
    Service,
    Stream,
    Subscription,
    TypedChannel,
    request_channel,
    request_response,
    request_stream,
)

MAILBOX = 16
"""Lines that wait for one member."""
LONGEST_LINE = 1000
"""Characters."""
PATIENCE = 2.0
"""Seconds that a member gets to tell the time."""
NAME = re.compile(r"[\w-]{1,20}")

Lines = TypedChannel[str, str]


@dataclass
class User:
    name: str
    room: str


@dataclass
class Room:
    name: str
    members: int


class Chat(Service, Protocol, route="chat"):
    """The server. A member is in a room while its channel is open: items that it sends are said there."""

    @request_channel("enter.{room}")
    def enter(self, room: str) -> Lines: ...
    @request_stream
    def users(self) -> Stream[User]: ...
    @request_stream
    def rooms(self) -> Stream[Room]: ...
    @request_response
    async def tell(self, name: str, line: str) -> str: ...
    @request_response
    async def join(self, room: str) -> str: ...
    @request_response
    async def time(self, name: str = "") -> str: ...


class Clock(Service, Protocol, route="clock"):
    """The client of a member, as the server calls it."""

    @request_response
    async def time(self) -> str: ...


# The server


@dataclass
class Member:
    name: str
    room: str
    connection: Connection
    lines: Subscription[str]


class ChatServer:
    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        # A room is there for as long as it has subscribers.
        self._rooms: WeakValueDictionary[str, Broadcast[str]] = WeakValueDictionary()

    def log_in(self, setup: Setup, connection: Connection) -> None:
        connection.state.name = name = printable(setup.payload.text)
        if not NAME.fullmatch(name):
            raise RejectedSetup(f"{name!r} is no name: 1 to 20 letters, digits, - or _")
        if name in self._members:
            raise RejectedSetup(f"the name {name!r} is taken")

    @request_channel
    async def enter(self, channel: Lines, room: str) -> None:
        connection = current_connection()
        clock = await clock_of(connection)
        async with self._room(room).subscribe(gap=missed) as lines, trio.open_nursery() as nursery:
            member = Member(connection.state.name, room, connection, lines)
            with self._entered(member, clock):
                nursery.start_soon(send_lines, lines, channel)
                async for line in channel:
                    if len(line) > LONGEST_LINE:
                        lines.put_nowait(f"* not said: {len(line)} characters, limit {LONGEST_LINE}")
                    else:
                        await self._room(member.room).send(f"{member.name}: {printable(line)}")
                lines.close()

    @request_stream
    async def users(self) -> AsyncIterator[User]:
        for _, member in sorted(self._members.items()):
            yield User(member.name, member.room)

    @request_stream
    async def rooms(self) -> AsyncIterator[Room]:
        for room, count in sorted(Counter(member.room for member in self._members.values()).items()):
            yield Room(room, count)

    @request_response
    async def tell(self, name: str, line: str) -> str:
        line = f"{self._caller().name} to you: {printable(line[:LONGEST_LINE])}"
        if not self._find(name).lines.put_nowait(line):
            raise Rejected(f"{name} does not keep up: the mailbox is full")
        return f"delivered to {name}"

    @request_response
    async def join(self, room: str) -> str:
        member, there = self._caller(), self._room(room)
        if room != member.room:
            here, member.room = self._room(member.room), room
            member.lines.move_to(there)
            here.send_nowait(f"* {member.name} left for {room}")
            there.send_nowait(f"* {member.name} joined {room}")
        return f"you are in {room}"

    @request_response
    async def time(self, name: str = "") -> str:
        clock = await clock_of(self._find(name).connection) if name else now()
        return f"{name or 'the server'}'s clock: {clock}"

    @contextmanager
    def _entered(self, member: Member, clock: str) -> Iterator[None]:
        """Somebody is in for as long as the block, and both its ends are told to the room."""
        if member.name in self._members:
            raise Rejected(f"the name {member.name!r} is taken")
        self._members[member.name] = member.connection.state.member = member
        self._room(member.room).send_nowait(f"* {member.name} joined {member.room}, clock {clock}")
        try:
            yield
        finally:
            del self._members[member.name], member.connection.state.member
            self._room(member.room).send_nowait(f"* {member.name} left")

    def _room(self, name: str) -> Broadcast[str]:
        if not NAME.fullmatch(name):
            raise Rejected(f"{printable(name)!r} is no room: 1 to 20 letters, digits, - or _")
        return self._rooms.setdefault(name, Broadcast(MAILBOX, "drop_newest"))

    def _caller(self) -> Member:
        member: Member | None = getattr(current_connection().state, "member", None)
        if member is None:
            raise Rejected("join a room first")
        return member

    def _find(self, name: str) -> Member:
        if name not in self._members:
            raise Rejected(f"nobody here is called {printable(name)!r}")
        return self._members[name]


async def send_lines(lines: Subscription[str], channel: Lines) -> None:
    async for line in lines:
        await channel.send(line)


async def clock_of(connection: Connection) -> str:
    """Return a member's clock: the server asks its client, over the connection that the client opened."""
    with trio.move_on_after(PATIENCE):
        try:
            return printable(await connection.remote(Clock).time())[:40]
        except Rejected:
            pass
    return "unknown"


def missed(lines: int) -> str:
    return f"* you did not keep up and missed {lines} lines"


def printable(text: str) -> str:
    """Return text of a peer, safe to show on a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text.strip())


def now(zone: timezone | None = None) -> str:
    return datetime.now().astimezone(zone).strftime("%H:%M %z")


async def run_server(
    *uris: str, signals: bool = False, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED
) -> None:
    responder, chat = Responder(), ChatServer()
    responder.setup(chat.log_in)
    responder.serve_as(Chat, chat)
    async with trio.open_nursery() as nursery:
        # No grace: a membership does not end by itself.
        task_status.started(bound := await nursery.start(partial(serve, responder, uris, grace=0, signals=signals)))
        for uri in bound:
            print(f"listening {uri}", flush=True)


# The client


@dataclass
class OwnClock:
    zone: timezone | None

    @request_response
    async def time(self) -> str:
        return now(self.zone)


@asynccontextmanager
async def joined(name: str, uri: str, zone: timezone | None = None) -> AsyncIterator[tuple[Chat, Lines]]:
    """Be in the lobby for as long as the block."""
    own = Responder()
    own.serve_as(Clock, OwnClock(zone))
    async with open_connection(uri, setup=name, responder=own) as connection:
        chat = connection.remote(Chat)
        async with chat.enter("lobby") as channel:
            yield chat, channel


async def enter_line(chat: Chat, channel: Lines, line: str) -> str | None:
    """Do what a typed line asks for; the answer, if there is one."""
    try:
        match line.split(" ", 2):
            case ["/quit"]:
                await channel.send_eof()
            case ["/users"]:
                async with chat.users() as users:
                    return ", ".join([f"{user.name} in {user.room}" async for user in users])
            case ["/rooms"]:
                async with chat.rooms() as rooms:
                    return ", ".join([f"{room.name} ({room.members})" async for room in rooms])
            case ["/msg", name, text]:
                return await chat.tell(name, text)
            case ["/join", room]:
                return await chat.join(room)
            case ["/time", *name]:
                return await chat.time(" ".join(name))
            case [command, *_] if command.startswith("/"):
                return "/msg NAME text, /users, /rooms, /join ROOM, /time [NAME], /quit"
            case _ if line:
                await channel.send(line)
    except Rejected as error:
        return str(error)
    return None


async def run_client(name: str, uri: str) -> None:
    try:
        async with joined(name, uri) as (chat, channel), trio.open_nursery() as nursery:
            nursery.start_soon(cancel_on_signal, nursery.cancel_scope)
            nursery.start_soon(show, channel, nursery.cancel_scope)
            async for line in typed_lines():
                if answer := await enter_line(chat, channel, line):
                    print(answer, flush=True)
                if line == "/quit":
                    break
            await channel.send_eof()  # and then show sees the end
    except* (Canceled, ConnectionClosed):
        # In good order: a server that dies, or a cut cable, is ConnectionLost.
        print("chat: the server has closed the chat", file=sys.stderr)


async def show(channel: Lines, everything: trio.CancelScope) -> None:
    async for line in channel:
        print(line, flush=True)
    everything.cancel()


async def cancel_on_signal(everything: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            everything.cancel()


async def typed_lines() -> AsyncIterator[str]:
    """Yield the lines that are typed, to the end of the input. The thread that waits for a key is left behind."""
    rest = b""
    while data := await trio.to_thread.run_sync(os.read, sys.stdin.fileno(), 65536, abandon_on_cancel=True):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").strip()


# The demo: the same client three times, with fingers and eyes that take turns


@dataclass
class Visitor:
    """A member whose reading and typing is shown."""

    name: str
    chat: Chat
    channel: Lines

    async def types(self, line: str) -> None:
        print(f"{self.name:<6}> {line}")
        if answer := await enter_line(self.chat, self.channel, line):
            print(f"       {self.name:<6}= {answer}")

    async def reads(self) -> str:
        return await anext(aiter(self.channel))


@asynccontextmanager
async def visit(name: str, uri: str, hours: int = 0) -> AsyncIterator[Visitor]:
    async with joined(name, uri, timezone(timedelta(hours=hours))) as (chat, channel):
        yield Visitor(name, chat, channel)


async def all_see(*visitors: Visitor) -> None:
    for visitor in visitors:
        print(f"       {visitor.name:<6}| {await visitor.reads()}")


async def demo() -> None:
    """A conversation over loopback. Each step waits for what the others see of it, so the order is always the same."""
    async with trio.open_nursery() as nursery:
        tcp, ws = await nursery.start(run_server, "tcp://127.0.0.1:0", "ws://127.0.0.1:0/chat")
        async with visit("carol", ws, hours=9) as carol:
            await all_see(carol)
            async with visit("bob", tcp, hours=-5) as bob:
                await all_see(bob, carol)
                async with visit("ada", tcp) as ada:
                    await all_see(ada, bob, carol)
                    await converse(ada, bob, carol, tcp)
                await all_see(carol)
        nursery.cancel_scope.cancel()


async def converse(ada: Visitor, bob: Visitor, carol: Visitor, uri: str) -> None:
    try:
        async with visit("ada", uri) as second:
            await second.reads()
    except RejectedSetup as error:
        print(f"A second ada is refused: {error}")
    await ada.types("hello, everybody")
    await all_see(ada, bob, carol)
    await bob.types("/msg carol psst, only you see this")
    await all_see(carol)
    await bob.types("/msg dave are you there?")
    await ada.types("/users")
    await carol.types("/join kitchen")
    await all_see(ada, bob, carol)
    await ada.types("/rooms")
    await carol.types("/join lobby")
    await all_see(ada, bob, carol)
    await ada.types("/time carol")

    print("carol stops reading, ada says 400 lines.")
    for number in range(1, 401):
        await ada.channel.send(f"line {number}")
        await ada.reads(), await bob.reads()
    print("ada and bob have seen all 400, each as soon as it was said; carol reads again:")
    lines = [await carol.reads()]
    while not lines[-1].startswith("*"):
        lines.append(await carol.reads())
    print(f"       carol | {lines[0]} ... {lines[-2]}\n       carol | {lines[-1]}")
    await bob.types("welcome back")
    await all_see(ada, bob, carol)
    await bob.types("/quit")
    await all_see(ada, carol)


def main() -> int | str:
    """Do what the command line says. Return what it ends with: a status, or what went wrong."""
    try:
        match sys.argv[1:]:
            case []:
                trio.run(demo)
            case ["server", "--listen", *uris] if uris:
                trio.run(partial(run_server, *uris, signals=True))
            case ["client", name, uri]:
                trio.run(run_client, name, uri)
            case _:
                return __doc__ or ""
    except* KeyboardInterrupt:
        status: int | str = 130
    except* (RSocketError, OSError, ValueError) as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        status = f"chat: {error}"
    else:
        status = 0
    return status


if __name__ == "__main__":
    sys.exit(main())
