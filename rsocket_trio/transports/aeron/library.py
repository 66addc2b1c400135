"""Finds and opens the C library of Aeron: its client, and its media driver."""

from __future__ import annotations

import ctypes.util
import errno
import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from rsocket_trio.extras import install_command

LIBRARY_VARIABLE = "RSOCKET_TRIO_AERON_LIBRARY"
"""The environment variable with the path of the library."""
NO_CFFI = f"aeron needs cffi: {install_command('aeron')}"
DRIVER = "libaeron_driver.so"
"""The file of Aeron's own build that has the driver together with the client."""

DECLARATIONS = """
const char *aeron_errmsg(void);
int aeron_default_path(char *path, size_t length);

int aeron_context_init(void **context);
int aeron_context_close(void *context);
int aeron_context_set_dir(void *context, const char *directory);
int aeron_context_set_client_name(void *context, const char *name);
int aeron_context_set_driver_timeout_ms(void *context, uint64_t milliseconds);
int aeron_context_set_use_conductor_agent_invoker(void *context, bool use);
int aeron_context_set_error_handler(void *context, void (*handler)(void *, int, const char *), void *state);
int aeron_init(void **client, void *context);
int aeron_start(void *client);
int aeron_main_do_work(void *client);
int aeron_close(void *client);
int64_t aeron_next_correlation_id(void *client);
void *aeron_counters_reader(void *client);
int32_t aeron_counters_reader_find_by_type_id_and_registration_id(void *reader, int32_t type, int64_t registration);
int64_t *aeron_counters_reader_addr(void *reader, int32_t counter);

int aeron_async_add_subscription(
    void **adding, void *client, const char *channel, int32_t stream, void *, void *, void *, void *);
int aeron_async_add_subscription_poll(void **subscription, void *adding);
int aeron_subscription_close(void *subscription, void *, void *);
int aeron_subscription_poll(
    void *subscription, void (*handler)(void *, uint8_t *, size_t, void *), void *state, size_t fragments);
int aeron_subscription_image_count(void *subscription);
void *aeron_subscription_image_at_index(void *subscription, size_t index);
int aeron_subscription_image_release(void *subscription, void *image);
int aeron_subscription_try_resolve_channel_endpoint_port(void *subscription, char *channel, size_t length);
bool aeron_image_is_closed(void *image);
int aeron_image_poll(
    void *image, void (*handler)(void *, uint8_t *, size_t, void *), void *state, size_t fragments);
typedef struct
{
    void *subscription;
    const char *source_identity;
    int64_t correlation_id;
    uint8_t others[128];
} aeron_image_constants_t;
int aeron_image_constants(void *image, aeron_image_constants_t *constants);
int aeron_image_fragment_assembler_create(
    void **assembler, void (*handler)(void *, uint8_t *, size_t, void *), void *state);
int aeron_image_fragment_assembler_delete(void *assembler);
void aeron_image_fragment_assembler_handler(void *assembler, uint8_t *data, size_t length, void *header);

int aeron_async_add_exclusive_publication(void **adding, void *client, const char *channel, int32_t stream);
int aeron_async_add_exclusive_publication_poll(void **publication, void *adding);
int aeron_exclusive_publication_close(void *publication, void *, void *);
bool aeron_exclusive_publication_is_connected(void *publication);
int64_t aeron_exclusive_publication_offer(
    void *publication, const uint8_t *data, size_t length, void *, void *);
typedef struct
{
    const char *channel;
    int64_t original_registration_id;
    int64_t registration_id;
    int64_t max_possible_position;
    size_t position_bits_to_shift;
    size_t term_buffer_length;
    size_t max_message_length;
    uint8_t others[128];
} aeron_publication_constants_t;
int aeron_exclusive_publication_constants(void *publication, aeron_publication_constants_t *constants);

int aeron_driver_context_init(void **context);
int aeron_driver_context_close(void *context);
int aeron_driver_context_set_dir(void *context, const char *directory);
int aeron_driver_context_set_dir_warn_if_exists(void *context, bool warn);
int aeron_driver_context_set_threading_mode(void *context, int mode);
int aeron_driver_context_set_term_buffer_length(void *context, size_t bytes);
int aeron_driver_context_set_ipc_term_buffer_length(void *context, size_t bytes);
int aeron_driver_context_set_publication_connection_timeout_ns(void *context, uint64_t nanoseconds);
int aeron_driver_context_set_image_liveness_timeout_ns(void *context, uint64_t nanoseconds);
int aeron_driver_context_set_client_liveness_timeout_ns(void *context, uint64_t nanoseconds);
int aeron_driver_context_set_publication_linger_timeout_ns(void *context, uint64_t nanoseconds);
int aeron_driver_context_set_counters_buffer_length(void *context, size_t bytes);
int aeron_driver_context_set_timer_interval_ns(void *context, uint64_t nanoseconds);
int aeron_driver_context_set_send_to_status_poll_ratio(void *context, size_t turns);
int aeron_driver_context_set_network_publication_max_messages_per_send(void *context, size_t datagrams);
int aeron_driver_context_set_socket_so_rcvbuf(void *context, size_t bytes);
int aeron_driver_context_set_sender_io_vector_capacity(void *context, uint32_t datagrams);
int aeron_driver_context_set_receiver_io_vector_capacity(void *context, uint32_t datagrams);
int aeron_driver_context_set_stream_session_limit(void *context, int32_t images);
typedef int (*supplier_t)(
    void **, void *, int32_t stream, int32_t, int64_t, int32_t term_length, int32_t, void *, void *, void *, void *);
supplier_t aeron_driver_context_get_congestioncontrol_supplier(void *context);
int aeron_driver_context_set_congestioncontrol_supplier(void *context, supplier_t supplier);
void aeron_err_set(int code, const char *function, const char *file, int line, const char *format, ...);
int aeron_driver_init(void **driver, void *context);
int aeron_driver_start(void *driver, bool manual_main_loop);
int aeron_driver_main_do_work(void *driver);
int aeron_driver_close(void *driver);
"""
"""The part of Aeron's API that is used here. Objects are pointers that only Aeron looks behind, and structures end
with room for what is not read."""

REASON = re.compile(r"^\s*\((-?\d+)\) (.*)$", re.MULTILINE)
"""A reason in an error of Aeron, behind its number: above 0 that of the system, else one of Aeron's own."""


@attrs.frozen
class Library:
    """The open library. ``api`` has the functions."""

    ffi: Any
    api: Any
    path: str

    def error(self, doing: str) -> OSError:
        """Return the library's last error, as one that says what was being done."""
        code, text = _reason(self.ffi.string(self.api.aeron_errmsg()).decode(errors="replace"))
        return OSError(code, f"{doing}: {text}" if doing else text)

    def check(self, result: int, doing: str) -> None:
        """Raise ``OSError`` if a function returned that it failed."""
        if result < 0:
            raise self.error(doing)


def _reason(text: str) -> tuple[int, str]:
    """Return number and text of the innermost reason of an error, in which each function has a line in brackets."""
    reasons = REASON.findall(text)
    if not reasons:
        return errno.EIO, text.strip() or "no reason was given"
    number, reason = reasons[-1]
    return max(int(number), 0) or errno.EIO, reason


def open_library(path: str | os.PathLike[str] | None = None) -> Library:
    """Open the library at ``path``, or the first that is found.

    Looked for are the file that the environment variable ``RSOCKET_TRIO_AERON_LIBRARY`` names, the extension of the
    package pyaeron, and the system's ``libaeron_driver.so``. Raise ``ModuleNotFoundError`` without cffi, and
    ``OSError`` that names what was looked for.
    """
    named = os.fspath(path) if path is not None else os.environ.get(LIBRARY_VARIABLE)
    return _open(named or None)


@cache
def _open(named: str | None) -> Library:
    ffi = _interface()
    if named is not None:
        return _opened(ffi, named)
    looked = list(_places())
    for found in looked:
        with suppress(OSError):
            return _opened(ffi, found)
    raise _missing(looked)


@cache
def _interface() -> Any:
    """Return cffi's view of the declarations."""
    try:
        from cffi import FFI
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NO_CFFI, name="cffi") from error
    ffi = FFI()
    ffi.cdef(DECLARATIONS)
    return ffi


def _places() -> Iterator[str]:
    """Generate the files that may be the library, the likeliest first."""
    # The package is not imported: its extension may be of another version of Python, and none of Python's is needed.
    package = importlib.util.find_spec("pyaeron")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        yield from sorted(map(str, Path(folder).glob("_pyaeron*.so")))
    yield ctypes.util.find_library("aeron_driver") or DRIVER


def _opened(ffi: Any, path: str) -> Library:
    """Open one file. Raise ``OSError``."""
    try:
        api = ffi.dlopen(path)
    except OSError as error:
        # The loader names the path, cffi names it again, and tells where else it has looked.
        text = str(error).partition(".  Additionally")[0].rpartition(f"{path}: ")[2]
        raise OSError(errno.ENOEXEC, f"the Aeron library {path} can't be opened: {text}") from None
    if getattr(api, "aeron_driver_init", None) is None:
        raise OSError(errno.ENOEXEC, f"{path} is no Aeron library with a driver: it has no aeron_driver_init")
    return Library(ffi, api, path)


def _missing(looked: list[str]) -> OSError:
    return OSError(
        errno.ENOENT,
        f"no Aeron library: neither the argument library nor {LIBRARY_VARIABLE} names one, pyaeron is not installed "
        f"({install_command('aeron')}, on Python 3.12 or newer), and the system has none of {', '.join(looked)}",
    )
