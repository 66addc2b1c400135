"""Aeron's C library, client and media driver: found, started, joined, shared by connections, and removed at the end."""

from __future__ import annotations

import ctypes.util
import errno
import fcntl
import importlib.util
import os
import re
import select
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from rsocket_trio.extras import install_command
from rsocket_trio.transports.aeron.channels import AeronChannel
from rsocket_trio.transports.aeron.duty_cycle import DutyCycle
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.schemes import ConnectOptions, Endpoint

if TYPE_CHECKING:
    from rsocket_trio.transports.aeron.publications import AeronSubscription, ClientResource


DIRECTORY_VARIABLE = "AERON_DIR"
"""The environment variable with the directory of the media driver, as in Aeron itself."""
TERM_LENGTH = 1024 * 1024
"""Bytes of a term if the URI says nothing: a message is an eighth of it at most, three are kept for each direction."""
PEER_TIMEOUT = 10
"""Seconds of silence after which a peer counts as gone, and after which a blocked loop has ended Aeron's client."""
MANAGEMENT_TERM_LENGTH = 64 * 1024
"""Bytes of a term of a publication with one message of a handshake: a peer's may not have more."""
MAX_TERM_LENGTH = 128 * 1024 * 1024
"""Bytes of a term that a peer may send by: an eighth of it is the largest frame."""
MAX_MANAGEMENT_IMAGES = 512
"""Publications that may be received at a time on the stream of SETUPs. Each is gone a second after its end."""
REFUSED = b"a peer's publication was refused: its terms are too long, or there are too many. ".ljust(8192, b".")
"""Fills Aeron's buffer for an error: what Aeron would append, the session, would make each refusal an error of its own,
in a log that is searched for each, and goes to the standard error once it is full."""
BLOCKED = "the event loop was blocked for longer than {timeout} s, and Aeron's client has ended ({text})"
FATAL: Final = {
    1000: "the media driver in {directory} is gone ({text})",
    1001: "the media driver in {directory} gave this client up: it was not heard for {timeout} s ({text})",
    1002: BLOCKED,
}
"""The errors of Aeron's client after which it does nothing more."""
VECTOR = 16
"""Datagrams that one call of the system receives or sends at most."""
NANOSECONDS = 1_000_000_000


class MediaDriver:
    """A client of a media driver, and that driver if it is embedded. Connections over it share their duty cycle.

    It is given as ``over`` to ``open_connection`` and ``serve``. ``directory`` is where the driver has its files, and
    where other programs of this machine find it.
    """

    def __init__(self, library: AeronLibrary, directory: str | None, *, embedded: bool = True) -> None:
        """Start the driver, or join it; without a directory it is of this process alone. Raise ``OSError``."""
        self.library = library
        self.directory = directory or str(base() / f"{PREFIX}{os.getpid()}-{os.urandom(8).hex()}")
        self.is_embedded = embedded
        self.timeout = PEER_TIMEOUT
        self.duty = DutyCycle(self.drive, self.attend_client)
        self.resources: set[ClientResource] = set()
        self.management: set[AeronSubscription] = set()
        """The subscriptions to SETUPs."""
        self.refused = 0
        """The number of publications of peers that the driver was told not to receive."""
        self.orphans: set[ClientResource] = set()
        """Those that were closed before the driver had added them."""
        self.users = 0
        self.streams = 0
        self._is_private = directory is None
        self._closing = ExitStack()
        self._driver: object = None
        self._client: object = None
        self._lock: int | None = None
        self._admitted = 0
        self._supplier: Callable[..., int] | None = None
        self._on_image: object = None
        self._on_error: object = library.ffi.callback("void(void *, int, const char *)", self._note_error)
        self.received: list[bytes] = []
        """The messages that the last poll handed out, in their order."""
        self.on_message: object = library.ffi.callback("void(void *, uint8_t *, size_t, void *)", self._keep_message)
        try:
            if embedded:
                self._start()
            self._join()
        except BaseException:
            self.close("it could not be started")
            raise

    @asynccontextmanager
    async def open(self, endpoint: Endpoint, options: ConnectOptions) -> AsyncIterator[Transport]:
        # Imported here: the handshake imports this module.
        from rsocket_trio.transports.aeron.aeron_handshake import attended, dial

        if "directory" in AeronChannel.of(endpoint).parameters:
            raise ValueError(f"{endpoint}: it names the directory of another driver than that of over")
        with options.time_limit.step("not connected"):
            transport = await dial(endpoint, self)
        try:
            async with attended(transport, options.limits):
                yield transport
        finally:
            transport.cut()

    @property
    def client(self) -> object:
        """Return Aeron's client. Raise ``BrokenResourceError`` if it has ended."""
        if self.duty.fault is not None:
            raise trio.BrokenResourceError(self.duty.fault)
        return self._client

    def drive(self) -> bool:
        """Have the driver do its work, if it is embedded. Return whether there was any."""
        return self._driver is not None and self.library.api.aeron_driver_main_do_work(self._driver) > 0

    def attend_client(self) -> bool:
        """Have the client do its work, and close what was no longer wanted. Return whether there was any."""
        worked: bool = self.library.api.aeron_main_do_work(self._client) > 0
        if not worked:
            self._admitted = 0  # it knows of all images
        for orphan in tuple(self.orphans):
            try:
                is_over = orphan.is_added()
            except OSError:
                is_over = True
            if is_over:
                self.orphans.remove(orphan)
                orphan.close()
        return worked

    def acquire(self, *, blind: bool = False) -> None:
        """Count a user; ``blind`` says that what it receives comes by memory, and makes no socket readable."""
        self.users += 1
        if blind and self.duty.readable is not None:
            self.duty.readable = None
            self.duty.wake()

    def release(self) -> None:
        """Count a user less. The last one closes the driver, unless a block keeps it open."""
        self.users -= 1
        if self.users == 0:
            self.close("it was closed")

    def close(self, why: str) -> None:
        """Close client and driver, and remove the directory of a driver that was embedded here."""
        if self.duty.fault is None:
            self.duty.fault = f"the media driver in {self.directory}: {why}"
        for resource in tuple(self.resources):
            resource.lose()
        self.orphans.clear()
        self.duty.end()
        self._closing.close()
        self._client = self._driver = None

    def _remove_directory(self) -> None:
        if self._lock is not None or self._is_private:
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def _start(self) -> None:
        """Start the driver within this process. Raise ``OSError``."""
        library = self.library
        driver, ffi = library.api, library.ffi
        remove_leftovers()
        remove_if_left(Path(self.directory))
        made = ffi.new("void **")
        doing = f"no media driver in {self.directory}"
        check = partial(library.check, doing=doing)
        self._closing.callback(self._remove_directory)
        check(driver.aeron_driver_context_init(made))
        context = made[0]
        self._closing.callback(driver.aeron_driver_context_close, context)
        check(driver.aeron_driver_context_set_dir(context, os.fsencode(self.directory)))
        timeout_ns = self.timeout * NANOSECONDS
        settings = {
            "dir_warn_if_exists": False,
            "threading_mode": 3,  # invoked: its work is called for
            "term_buffer_length": TERM_LENGTH,
            "ipc_term_buffer_length": TERM_LENGTH,
            "counters_buffer_length": 2 * 1024 * 1024,  # a connection has about ten of 128 bytes
            "publication_connection_timeout_ns": timeout_ns,
            "image_liveness_timeout_ns": timeout_ns,
            "client_liveness_timeout_ns": timeout_ns,
            "publication_linger_timeout_ns": 2 * NANOSECONDS,  # those who missed something are answered
            "timer_interval_ns": NANOSECONDS // 10,  # between two looks at everything that has a timeout
            # Publications to one address share a socket: in a crowd few datagrams a turn would leave answers waiting.
            "send_to_status_poll_ratio": 1,
            "network_publication_max_messages_per_send": VECTOR,
            # As Linux allows: a window of 128 KiB takes more than that in small datagrams.
            "socket_so_rcvbuf": 212_992,
            "sender_io_vector_capacity": VECTOR,
            "receiver_io_vector_capacity": VECTOR,
            "stream_session_limit": MAX_MANAGEMENT_IMAGES,
        }
        for name, setting in settings.items():
            check(getattr(driver, f"aeron_driver_context_set_{name}")(context, setting))
        # It gives each image its congestion control, and an image that gets none is not made: each publication that
        # peers have the driver receive is a file of three terms.
        self._supplier = driver.aeron_driver_context_get_congestioncontrol_supplier(context)
        self._on_image = ffi.callback("supplier_t", self._admit, error=-1)
        check(driver.aeron_driver_context_set_congestioncontrol_supplier(context, self._on_image))
        before = _epolls()
        check(driver.aeron_driver_init(made, context))
        self._driver = made[0]
        self._closing.callback(driver.aeron_driver_close, self._driver)
        check(driver.aeron_driver_start(self._driver, True))
        self._lock = lock_directory(Path(self.directory))
        if self._is_private:
            os.chmod(self.directory, 0o700)
            if polled := _epolls() - before:
                # The sets of sockets that it polls. A driver that others can join hears of them by memory.
                epoll = select.epoll()
                self._closing.callback(epoll.close)
                self._closing.callback(trio.lowlevel.notify_closing, epoll.fileno())
                for descriptor in polled:
                    epoll.register(descriptor, select.EPOLLIN)
                self.duty.readable = epoll.fileno()

    def _admit(
        self, strategy: object, channel: object, stream: int, session: int, image: int, term_length: int, *more: object
    ) -> int:
        """Give an image its congestion control, unless its terms are too long or there are too many."""
        is_management = stream < 0
        if term_length <= (MANAGEMENT_TERM_LENGTH if is_management else MAX_TERM_LENGTH) and (
            not is_management
            or self._admitted + sum(setups.image_count for setups in self.management) < MAX_MANAGEMENT_IMAGES
        ):
            self._admitted += is_management
            assert self._supplier is not None
            return self._supplier(strategy, channel, stream, session, image, term_length, *more)
        self.refused += 1
        text = self.library.ffi.from_buffer("char[]", REFUSED)
        self.library.api.aeron_err_set(errno.ENOSPC, b"", b"", 0, b"%s", text)
        return -1

    def _join(self) -> None:
        """Become a client of the driver. Raise ``OSError``."""
        client, ffi = self.library.api, self.library.ffi
        made = ffi.new("void **")
        check = partial(self.library.check, doing=f"the media driver in {self.directory} can't be used")
        check(client.aeron_context_init(made))
        context = made[0]
        self._closing.callback(client.aeron_context_close, context)
        check(client.aeron_context_set_dir(context, os.fsencode(self.directory)))
        check(client.aeron_context_set_driver_timeout_ms(context, self.timeout * 1000))
        check(client.aeron_context_set_use_conductor_agent_invoker(context, True))
        check(client.aeron_context_set_error_handler(context, self._on_error, ffi.NULL))
        check(client.aeron_context_set_client_name(context, b"rsocket-trio"))
        check(client.aeron_init(made, context))
        self._client = made[0]
        self._closing.callback(client.aeron_close, self._client)
        check(client.aeron_start(self._client))

    def _note_error(self, _: object, code: int, text: object) -> None:
        """Note an error that Aeron reports while the client does its work."""
        if abs(code) in FATAL and self.duty.fault is None:
            # Over a driver of its own a client ends for one reason, whoever notices it first.
            fault = BLOCKED if self.is_embedded else FATAL[abs(code)]
            reason = self.library.text(text)
            self.duty.fault = fault.format(directory=self.directory, timeout=self.timeout, text=reason)

    def _keep_message(self, _: object, data: object, length: int, header: object) -> None:
        """Keep a message that a poll hands out."""
        self.received.append(self.library.ffi.buffer(data, length)[:])


def _epolls() -> set[int]:
    """Return the descriptors of this process that are sets of others to poll."""
    descriptors = set()
    if sys.platform == "linux":
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                    descriptors.add(int(name))
    return descriptors


_DRIVERS: trio.lowlevel.RunVar[dict[str, MediaDriver]] = trio.lowlevel.RunVar("media drivers")
"""The drivers that this run shares, by the directory that was asked for; empty for the one of its own."""


def make_driver(library: AeronLibrary, directory: str | None, *, start: bool) -> MediaDriver:
    """Join the driver in a directory, or start one there, or one of this process alone. Raise ``OSError``."""
    if directory is None:
        return MediaDriver(library, None)
    remove_if_left(Path(directory))
    if not is_alive(Path(directory)):
        if not start:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no media driver runs in {directory}")
        try:
            return MediaDriver(library, directory)
        except OSError:
            if not is_alive(Path(directory)):
                raise
            # Another process was quicker.
    return MediaDriver(library, directory, embedded=False)


def driver_of(channel: AeronChannel, *, start: bool) -> MediaDriver:
    """Return the driver that a channel is for: that of its directory, of ``AERON_DIR``, or one of this process.

    It is the one that this run has, or is started or joined. ``start`` says that one is started if none runs there. The
    caller acquires it. Raise ``OSError``.
    """
    library = open_library()
    directory = channel.parameters.get("directory") or os.environ.get(DIRECTORY_VARIABLE) or None
    if directory is None and channel.is_ipc:
        # Where all programs of this user look for one.
        path = library.ffi.new("char[4096]")
        library.check(library.api.aeron_default_path(path, len(path)), "no default directory")
        directory = library.text(path)
    drivers = {name: driver for name, driver in _DRIVERS.get({}).items() if driver.duty.fault is None}
    _DRIVERS.set(drivers)
    name = directory or ""
    if name not in drivers:
        drivers[name] = make_driver(library, directory, start=start)
    return drivers[name]


@asynccontextmanager
async def open_media_driver(
    *,
    library: str | os.PathLike[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    start: bool = True,
) -> AsyncIterator[MediaDriver]:
    """Run a media driver within this process, or join one, for as long as the block.

    ``library`` is the path of Aeron's C library; without it, it is looked for. ``directory`` is that of the driver:
    one that runs there already is joined, else one is started there, which other programs can join, unless ``start``
    is False. Without a directory the driver is of this process alone. Give it as ``over`` to ``open_connection`` and
    ``serve``; connections over it end with the block. Raise ``OSError`` that names the library or the directory, and
    ``ModuleNotFoundError`` without cffi.
    """
    driver = make_driver(open_library(library), None if directory is None else os.fspath(directory), start=start)
    driver.acquire()
    try:
        async with driver.duty.attended():
            yield driver
    finally:
        driver.close("its block has ended")


PREFIX = "rsocket-trio-aeron-"
"""The beginning of the name of a directory that no one chose a name for."""
LOCK = "rsocket-trio.lock"
"""A file in the directory of an embedded driver. The process that embeds it holds a lock on it for as long as it lives,
so that one who gets the lock knows that the process is gone, in whatever namespace of processes it was."""
FILE = "cnc.dat"
"""The file that a media driver and its clients talk by."""
HEAD = struct.Struct("=ii")
"""Its version, and the bytes of its first buffer, at whose end the driver writes when it was last there."""
HEARTBEAT = struct.Struct("=q")
LAYOUT = 0
"""The major version that is understood."""
DRIVER_TIMEOUT = 10
"""Seconds after which a driver that was not there counts as gone."""


def base() -> Path:
    """Return the folder of all directories: memory, where the system has a folder for that."""
    return Path("/dev/shm") if sys.platform == "linux" and os.path.isdir("/dev/shm") else Path(tempfile.gettempdir())


def is_alive(directory: Path) -> bool:
    """Return whether a media driver runs in a directory. Raise ``OSError`` for one whose files are of another layout.

    Neither the client nor the driver is asked: one waits for a driver that is not there, and the other removes the
    directory of one that it does not understand.
    """
    try:
        with open(directory / FILE, "rb") as file:
            version, length = HEAD.unpack(file.read(HEAD.size))
            file.seek(length)  # two lines of cache of the head more, and two of the end less
            (heard,) = HEARTBEAT.unpack(file.read(HEARTBEAT.size))
    except (OSError, struct.error):
        return False
    if heard / 1000 < time.time() - DRIVER_TIMEOUT:
        return False
    if version >> 16 != LAYOUT:
        text = f"{version >> 16 & 255}.{version >> 8 & 255}.{version & 255}"
        raise OSError(
            errno.EPROTONOSUPPORT, f"the media driver in {directory} has files of layout {text}, known is 0.2"
        )
    return True


def lock_directory(directory: Path) -> int:
    """Prove that the process that made a directory lives. Return the descriptor that holds the lock. Raise ``OSError``.

    Called once the driver has made the directory.
    """
    # Locked before it has its name: whoever finds the file and gets its lock knows that its owner is gone.
    file, nameless = tempfile.mkstemp(dir=directory)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.rename(nameless, directory / LOCK)
    except OSError:
        os.close(file)
        raise
    return file


def remove_leftovers() -> None:
    """Remove the directories with a name of ours that killed processes of this user left behind."""
    for path in base().glob(f"{PREFIX}*"):
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid() and not path.is_symlink():
                remove_if_left(path)


def remove_if_left(path: Path) -> None:
    """Remove one directory if the process that embedded a driver there is gone for sure."""
    try:
        file = os.open(path / LOCK, os.O_RDWR)
    except OSError:
        return
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    os.close(file)


LIBRARY_VARIABLE = "RSOCKET_TRIO_AERON_LIBRARY"
"""The environment variable with the path of the library."""
NO_CFFI = f"aeron needs cffi: {install_command('aeron')}"
DRIVER = "libaeron_driver.so"
"""The file of Aeron's own build that has the driver together with the client."""
DECLARATIONS = Path(__file__).with_name("aeron_api.h")
"""The declarations of the functions that are used."""
REASON = re.compile(r"^\s*\((-?\d+)\) (.*)$", re.MULTILINE)
"""A reason in an error of Aeron, behind its number: above 0 that of the system, else one of Aeron's own."""


@attrs.frozen
class AeronLibrary:
    """The open library. ``api`` has the functions."""

    ffi: Any
    api: Any

    def check(self, result: int, doing: str) -> None:
        """Raise ``OSError`` with the innermost reason if a function returned that it failed at what it was doing."""
        if result < 0:
            text = self.text(self.api.aeron_errmsg())
            # Each function has a line in brackets.
            number, reason = (REASON.findall(text) or [(0, text.strip() or "no reason was given")])[-1]
            raise OSError(max(int(number), 0) or errno.EIO, f"{doing}: {reason}" if doing else reason)

    def text(self, pointer: object) -> str:
        """Return text of the library."""
        text: bytes = self.ffi.string(pointer)
        return text.decode(errors="replace")


def open_library(path: str | os.PathLike[str] | None = None) -> AeronLibrary:
    """Open the library at ``path``, or the first that is found.

    Looked for are the file that the environment variable ``RSOCKET_TRIO_AERON_LIBRARY`` names, the extension of the
    package pyaeron, and the system's ``libaeron_driver.so``. Raise ``ModuleNotFoundError`` without cffi, and
    ``OSError`` that names what was looked for.
    """
    named = os.fspath(path) if path is not None else os.environ.get(LIBRARY_VARIABLE)
    if named:
        return _opened(named)
    # The package is not imported: its extension may be of another version of Python, and none of Python's is needed.
    package = importlib.util.find_spec("pyaeron")
    folders = (package.submodule_search_locations or ()) if package is not None else ()
    places = [str(file) for folder in folders for file in sorted(Path(folder).glob("_pyaeron*.so"))]
    places.append(ctypes.util.find_library("aeron_driver") or DRIVER)
    for place in places:
        with suppress(OSError):
            return _opened(place)
    raise OSError(
        errno.ENOENT,
        f"no Aeron library: neither the argument library nor {LIBRARY_VARIABLE} names one, pyaeron is not installed "
        f"({install_command('aeron')}, on Python 3.12 or newer), and the system has none of {', '.join(places)}",
    )


@cache
def _opened(path: str) -> AeronLibrary:
    """Open one file. Raise ``OSError``, and ``ModuleNotFoundError`` without cffi."""
    try:
        from cffi import FFI
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NO_CFFI, name="cffi") from error
    ffi = FFI()
    ffi.cdef(DECLARATIONS.read_text())
    try:
        api = ffi.dlopen(path)
    except OSError as error:
        # The loader names the path, cffi names it again, and tells where else it has looked.
        text = str(error).partition(".  Additionally")[0].rpartition(f"{path}: ")[2]
        raise OSError(errno.ENOEXEC, f"the Aeron library {path} can't be opened: {text}") from None
    if getattr(api, "aeron_driver_init", None) is None:
        raise OSError(errno.ENOEXEC, f"{path} is no Aeron library with a driver: it has no aeron_driver_init")
    return AeronLibrary(ffi, api)
