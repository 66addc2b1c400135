"""A chat: rooms, private messages and everybody's clock, on one connection per member.

    python examples/chat.py                                  the demo: a server and three members in one process
    python examples/chat.py server --listen tcp://127.0.0.1:7878
    python examples/chat.py client ada --room lobby tcp://127.0.0.1:7878

A member's name is the data of the SETUP; a bad or taken one is refused before anything runs. The channel ``chat`` is
the membership: its request names the room, each line typed is an item one way, each line seen is an item the other
way. As long as its handler runs the member is in; however it ends (/quit, Ctrl-C, a cut cable), the others are told.
Questions are requests of their own: ``users`` and ``rooms`` are streams, ``msg``, ``join`` and ``time`` are answered
once. ``time`` goes both ways: the server asks it of its members, who serve it on the same connection.

Who does not keep up slows nobody. A room is a ``Broadcast``: a line waits for its reader's credit in the reader's own
mailbox, which holds ``MAILBOX`` lines. What comes while it is full is not kept for that reader, only counted; once he
has read what waited, he is told how many lines he missed, and goes on from there. A private message that finds the
mailbox full is refused.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import NoReturn
from weakref import WeakValueDictionary

import attrs
import trio

from rsocket_trio import (
    Canceled,
    Channel,
    Connection,
    ConnectionClosed,
    Payload,
    Rejected,
    RejectedSetup,
    Responder,
    RSocketError,
    Setup,
    current_connection,
    open_connection,
    serve,
)
from rsocket_trio.services import Broadcast, Subscription

TCP = "tcp://127.0.0.1:7878"
MAILBOX = 16
"""Lines that wait for one member."""
LONGEST_LINE = 1000
"""Characters."""
PATIENCE = 2.0
"""Seconds that a member gets to tell the time."""
NAME = re.compile(r"[\w-]{1,20}")


# The server


@attrs.define(eq=False)
class Member:
    """Somebody who is in."""

    name: str
    room: str
    connection: Connection
    lines: Subscription[str]


responder = Responder()
members: dict[str, Member] = {}
rooms_by_name: WeakValueDictionary[str, Broadcast[str]] = WeakValueDictionary()
"""A room is there for as long as it has subscribers."""


def room_called(name: str) -> Broadcast[str]:
    return rooms_by_name.setdefault(name, Broadcast(MAILBOX, "drop_newest"))


def tell(room: str, line: str) -> None:
    """Leave a line for everybody in a room."""
    room_called(room).send_nowait(line)


def missed(lines: int) -> str:
    return f"* you did not keep up and missed {lines} lines"


@contextmanager
def entered(member: Member, clock: str) -> Iterator[None]:
    """Somebody is in for as long as the block, and both its ends are told to the room."""
    if member.name in members:
        raise Rejected(f"the name {member.name!r} is taken")
    members[member.name] = member.connection.state.member = member
    tell(member.room, f"* {member.name} joined {member.room}, clock {clock}")
    try:
        yield
    finally:
        del members[member.name], member.connection.state.member
        tell(member.room, f"* {member.name} left")


@responder.setup
def log_in(setup: Setup, connection: Connection) -> None:
    name = text_of(setup.payload)
    if not NAME.fullmatch(name):
        raise RejectedSetup(f"{name!r} is no name: 1 to 20 letters, digits, - or _")
    if name in members:
        raise RejectedSetup(f"the name {name!r} is taken")
    connection.state.name = name


@responder.request_channel("chat")
async def chat(channel: Channel) -> None:
    connection = current_connection()
    room = checked_room(channel.request)
    clock = await clock_of(connection)
    async with room_called(room).subscribe(gap=missed) as lines, trio.open_nursery() as nursery:
        member = Member(connection.state.name, room, connection, lines)
        with entered(member, clock):
            nursery.start_soon(send_lines, lines, channel)
            async for item in channel:
                line = text_of(item)
                if len(line) > LONGEST_LINE:
                    lines.put_nowait(f"* not said: {len(line)} characters, limit {LONGEST_LINE}")
                else:
                    await room_called(member.room).send(f"{member.name}: {line}")
            lines.close()


async def send_lines(lines: Subscription[str], channel: Channel) -> None:
    """Send what comes, at the pace of the member's credit, until the subscription is closed."""
    async for line in lines:
        await channel.send(line)


@responder.request_stream("users")
async def users(request: Payload) -> AsyncIterator[str]:
    for member in sorted(members.values(), key=lambda member: member.name):
        yield f"{member.name} in {member.room}"


@responder.request_stream("rooms")
async def rooms(request: Payload) -> AsyncIterator[str]:
    for room, count in sorted(Counter(member.room for member in members.values()).items()):
        yield f"{room} ({count})"


@responder.request_response("msg")
def private_message(request: Payload) -> str:
    name, _, line = text_of(request).partition(" ")
    if not find(name).lines.put_nowait(f"{caller().name} to you: {line[:LONGEST_LINE]}"):
        raise Rejected(f"{name} does not keep up: the mailbox is full")
    return f"delivered to {name}"


@responder.request_response("join")
def join(request: Payload) -> str:
    member, room = caller(), checked_room(request)
    if room != member.room:
        left, member.room = room_called(member.room), room
        member.lines.move_to(room_called(room))
        left.send_nowait(f"* {member.name} left for {room}")
        tell(room, f"* {member.name} joined {room}")
    return f"you are in {room}"


@responder.request_response("time")
async def time(request: Payload) -> str:
    name = text_of(request)
    return f"{name}'s clock: {await clock_of(find(name).connection)}" if name else f"the server's clock: {now()}"


async def clock_of(connection: Connection) -> str:
    """Return the time at a member: the server asks its client, over the connection that the client opened."""
    with trio.move_on_after(PATIENCE):
        try:
            return text_of(await connection.request_response(route="time"))[:40]
        except Rejected:
            pass
    return "unknown"


def caller() -> Member:
    """Return the member who sent the request. Raise ``Rejected`` if the sender has not joined."""
    try:
        member: Member = current_connection().state.member
    except AttributeError:
        raise Rejected("join a room first") from None
    return member


def find(name: str) -> Member:
    """Return the member with this name. Raise ``Rejected`` if there is none."""
    try:
        return members[name]
    except KeyError:
        raise Rejected(f"nobody here is called {name!r}") from None


def checked_room(payload: Payload) -> str:
    """The room that a request names. Raises ``Rejected`` for what is no name."""
    room = text_of(payload)
    if not NAME.fullmatch(room):
        raise Rejected(f"{room!r} is no room: 1 to 20 letters, digits, - or _")
    return room


def text_of(payload: Payload) -> str:
    """Return the text of a payload, safe to show on a terminal."""
    text = payload.data.decode(errors="replace").strip()
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def now(zone: timezone | None = None) -> str:
    return datetime.now().astimezone(zone).strftime("%H:%M %z")


async def run_server(uris: Sequence[str]) -> None:
    async with trio.open_nursery() as nursery:
        # No grace: a membership does not end by itself.
        for uri in await nursery.start(partial(serve, responder, uris, grace=0)):
            print(f"listening {uri}", flush=True)


# The client


@asynccontextmanager
async def joined(
    name: str, uri: str, room: str = "lobby", *, zone: timezone | None = None, initial_request_n: int = 256
) -> AsyncIterator[tuple[Connection, Channel]]:
    """Be in a room for as long as the block."""
    own = Responder()

    @own.request_response("time")
    def time(request: Payload) -> str:
        return now(zone)

    async with (
        open_connection(uri, setup=name, responder=own) as connection,
        connection.request_channel(room, route="chat", initial_request_n=initial_request_n) as channel,
    ):
        yield connection, channel


async def enter_line(connection: Connection, channel: Channel, line: str) -> str | None:
    """Do what a typed line asks for; the answer, if there is one."""
    command, _, rest = line.partition(" ")
    try:
        match command:
            case "/quit":
                await channel.send_eof()
            case "/users" | "/rooms":
                async with connection.request_stream(route=command[1:]) as found:
                    return ", ".join([text_of(item) async for item in found])
            case "/msg" | "/join" | "/time":
                return text_of(await connection.request_response(rest, route=command[1:]))
            case _ if command.startswith("/"):
                return "/msg NAME text, /users, /rooms, /join ROOM, /time [NAME], /quit"
            case _ if line:
                await channel.send(line)
    except Rejected as error:
        return str(error)
    return None


async def run_client(name: str, room: str, uri: str) -> None:
    try:
        async with joined(name, uri, room) as (connection, channel), trio.open_nursery() as nursery:
            nursery.start_soon(show, channel, nursery.cancel_scope)
            async for line in typed_lines():
                if answer := await enter_line(connection, channel, line):
                    print(answer, flush=True)
                if line == "/quit":
                    break
            await channel.send_eof()
    except* (Canceled, ConnectionClosed):
        # In good order: a server that dies, or a cut cable, is ConnectionLost.
        complain("the server has closed the chat")


async def show(channel: Channel, everything: trio.CancelScope) -> None:
    async for item in channel:
        print(text_of(item), flush=True)
    everything.cancel()


async def typed_lines() -> AsyncIterator[str]:
    """Yield the lines that are typed, to the end of the input. On cancellation the reading thread is abandoned."""
    rest = b""
    while data := await trio.to_thread.run_sync(os.read, sys.stdin.fileno(), 65536, abandon_on_cancel=True):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").strip()


# The demo: the same client three times, with fingers and eyes that take turns


class Visitor:
    """A member whose reading and typing is shown."""

    def __init__(self, name: str, connection: Connection, channel: Channel) -> None:
        self.name = name
        self._connection = connection
        self._channel = channel

    async def types(self, line: str) -> None:
        print(f"{self.name:<6}> {line}")
        if answer := await enter_line(self._connection, self._channel, line):
            print(f"       {self.name:<6}= {answer}")

    async def says(self, line: str) -> None:
        await self._channel.send(line)

    async def reads(self) -> str:
        return text_of(await anext(self._channel))

    async def sees(self) -> None:
        print(f"       {self.name:<6}| {await self.reads()}")


@asynccontextmanager
async def visit(name: str, uri: str, hours: int = 0, initial_request_n: int = 256) -> AsyncIterator[Visitor]:
    zone = timezone(timedelta(hours=hours))
    async with joined(name, uri, zone=zone, initial_request_n=initial_request_n) as (connection, channel):
        yield Visitor(name, connection, channel)


async def all_see(*visitors: Visitor) -> None:
    for visitor in visitors:
        await visitor.sees()


async def demo() -> None:
    """A conversation over loopback. Each step waits for what the others see of it, so the order is always the same."""
    async with trio.open_nursery() as nursery:
        tcp, ws = await nursery.start(
            partial(serve, responder, ["tcp://127.0.0.1:0", "ws://127.0.0.1:0/chat"], grace=0)
        )
        print(f"The server listens on {tcp} and {ws}.\n")
        print("   > somebody types   | somebody sees   = the server answers\n")
        async with visit("carol", ws, hours=9, initial_request_n=4) as carol:
            await carol.sees()
            async with visit("bob", tcp, hours=-5) as bob:
                await all_see(bob, carol)
                async with visit("ada", tcp) as ada:
                    await all_see(ada, bob, carol)
                    await converse(ada, bob, carol, tcp)
                print("\nada closes her terminal.")
                await all_see(carol)
        print("\ncarol closes hers, and the server stops.")
        nursery.cancel_scope.cancel()


async def converse(ada: Visitor, bob: Visitor, carol: Visitor, uri: str) -> None:
    print("\nA second ada comes.")
    try:
        async with visit("ada", uri) as second:
            await second.sees()
    except RejectedSetup as error:
        print(f"       she is refused: {error}")

    print("\nThey talk.")
    await ada.types("hello, everybody")
    await all_see(ada, bob, carol)
    await bob.types("/msg carol psst, only you see this")
    await carol.sees()
    await bob.types("/msg dave are you there?")
    await ada.types("/users")
    await carol.types("/join kitchen")
    await all_see(ada, bob, carol)
    await ada.types("/rooms")
    await carol.types("/join lobby")
    await all_see(ada, bob, carol)
    await ada.types("/time carol")

    print("\ncarol stops reading, ada says 40 lines.")
    for number in range(1, 41):
        await ada.says(f"line {number}")
        await ada.reads()
        await bob.reads()
    print("       ada and bob have seen all 40, each as soon as it was said; carol reads again:")
    lines = [await carol.reads()]
    while not lines[-1].startswith("*"):
        lines.append(await carol.reads())
    print(f"       carol | {lines[0]} ... {lines[-2]}")
    print(f"       carol | {lines[-1]}")
    await bob.types("welcome back")
    await all_see(ada, bob, carol)

    print("\nbob leaves.")
    await bob.types("/quit")
    await all_see(ada, carol)


# The program


async def until_interrupted(program: Callable[[], Awaitable[None]]) -> bool:
    """Run to the end, or to Ctrl-C or SIGTERM: then everything is left in good order. Whether it came to its end."""
    done = False
    async with trio.open_nursery() as nursery:
        await nursery.start(cancel_on_signal, nursery.cancel_scope)
        await program()
        done = True
        nursery.cancel_scope.cancel()
    return done


async def cancel_on_signal(everything: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            everything.cancel()


class Parser(argparse.ArgumentParser):
    """Tells of wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"chat: {message}\n")


def parser() -> Parser:
    found = Parser(prog="chat", description="A chat over RSocket; without arguments a demo of itself.")
    programs = found.add_subparsers(dest="program")
    server = programs.add_parser("server", help="serve the rooms")
    server.add_argument("--listen", metavar="URI", nargs="+", default=[TCP], help=f"where to listen, default {TCP}")
    client = programs.add_parser("client", help="join a room; lines are read from standard input")
    client.add_argument("name")
    client.add_argument("uri", metavar="URI", nargs="?", default=TCP, help=f"the server, default {TCP}")
    client.add_argument("--room", default="lobby")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    given = parser().parse_args(argv)
    program: Callable[[], Awaitable[None]] = demo
    if given.program == "server":
        program = partial(run_server, given.listen)
    elif given.program == "client":
        program = partial(run_client, given.name, given.room, given.uri)
    code = 0
    try:
        done = trio.run(until_interrupted, program)
        if not done and given.program is None:
            code = 130  # a server is stopped like that, and so is a client; the demo was not seen to its end
        print(end="", flush=True)
    except* BrokenPipeError:
        # Who reads what we print has seen enough; the interpreter must not try once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except* (RSocketError, OSError) as group:
        complain(reason(group))
        code = 1
    except* ValueError as group:  # what is no URI
        complain(reason(group))
        code = 2
    return code


def reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def complain(text: str) -> None:
    print(f"chat: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
