"""Every exception of the library, and the wire code that it stands for.

Text that a peer sent is shortened and escaped before it reaches a message or a log line.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self, TypeVar, overload

from rsocket_trio.masking import readable as readable  # noqa: PLC0414 - for those that import errors

__all__ = ["ApplicationError", "Canceled", "ConnectionClosed", "ConnectionLost", "Drained", "Invalid", "InvalidSetup"]
__all__ += ["LocalProtocolError", "NegotiationFailed", "ProtocolError", "RSocketError", "Rejected", "RejectedResume"]
__all__ += ["RejectedSetup", "RemoteProtocolError", "SetupError", "StreamError", "Unsupported", "UnsupportedSetup"]

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

DATA_LIMIT = 64 * 1024
"""Bytes of an error's data that are kept of what a peer sent."""

FIRST_APPLICATION_CODE = 0x301
LAST_APPLICATION_CODE = 0xFFFFFFFE
CONNECTION_ERROR = 0x101
CONNECTION_CLOSE = 0x102


def _with_code(text: str, code: int | None) -> str:
    if code is None:
        return text
    return f"{text} (code 0x{code:X})" if text else f"code 0x{code:X}"


class RSocketError(Exception):
    """The base class of all errors that the library raises."""

    _is_unsent = False
    """True if nothing of the request that it ended had left this side."""


class CodedError(RSocketError):
    """An error that travels as a code and data.

    ``data`` is bytes or text to send with the code. The error has ``code``, the number on the wire, ``data`` as bytes,
    and ``text``, the data as UTF-8. Of an error that a peer sent the first 64 KiB of data are kept. Raise ``TypeError``
    for other data.
    """

    default_code: ClassVar[int] = 0
    code: int
    data: bytes

    def __init__(self, data: bytes | str = b"") -> None:
        if not isinstance(data, str | bytes):
            raise TypeError(f"an error says str or bytes, not {type(data).__name__}")
        self.data = data.encode() if isinstance(data, str) else data
        self.code = self.default_code
        Exception.__init__(self, readable(self.data))

    @classmethod
    def _received(cls, code: int, data: bytes) -> Self:
        """Return the error of ``code`` and ``data`` as a peer sent it; any code is accepted."""
        error = cls.__new__(cls)
        CodedError.__init__(error, data[:DATA_LIMIT])
        error.code = code
        return error

    @property
    def text(self) -> str:
        """Return the data as UTF-8; bytes that do not decode are replaced."""
        return self.data.decode("utf-8", "replace")

    @overload
    def details_as(self, kind: type[T]) -> T: ...

    @overload
    def details_as(self, kind: object) -> Any: ...

    def details_as(self, kind: object) -> Any:
        """Return the details that the error was made with: its data, read as JSON.

        ``kind`` is their type: a class, or any annotation that a codec can decode. Raise ``ValueError`` if the data is
        no such JSON; its text begins with the path, as in "$.missing: expected int, got str". An error is one frame of
        at most ``fragment_size`` and 64 KiB: details that were longer are cut, and can't be read.
        """
        # Loaded when details are first used: most programs of bytes have none.
        from rsocket_trio.codecs import JSON, DecodeError

        try:
            return JSON.decode(self.data, kind)
        except DecodeError as error:
            if "truncated" not in error.reason:
                raise
            came = f"{len(self.data)} bytes came, and an error has no more than one frame and 64 KiB"
            raise DecodeError(error.path, f"{error.reason}: {came}" if self.data else "no data") from error

    def __str__(self) -> str:
        return _with_code(readable(self.data), None if self.code == self.default_code else self.code)


class StreamError(CodedError):
    """One stream ended with ERROR; the connection goes on.

    ``data`` is bytes or text for the peer. ``details`` is an object in its place, of any type that can be written as
    JSON: the peer gets the JSON text, whatever codec the request has, and reads it with ``details_as``. It must fit
    into one frame. Raise ``ValueError`` for details that JSON can't hold, ``TypeError`` for both data and details and
    for details of another type.

    A class with ``is_fault`` is also a failure of the handler that raises it: it is counted, logged and reported.
    """

    is_fault: ClassVar[bool] = False

    def __init__(self, data: bytes | str = b"", *, details: object = None) -> None:
        if details is not None:
            if data:
                raise TypeError("an error has data or details, not both")
            from rsocket_trio.codecs import JSON

            data = JSON.encode(details)
        super().__init__(data)


class ApplicationError(StreamError):
    """The handler failed, or chose a ``code`` of its own, from 0x301 to 0xFFFFFFFE.

    ``data`` and ``details`` are those of ``StreamError``. Raise ``ValueError`` for a code that the protocol reserves.
    """

    default_code = 0x201

    def __init__(self, data: bytes | str = b"", *, code: int = 0x201, details: object = None) -> None:
        if code != 0x201 and not FIRST_APPLICATION_CODE <= code <= LAST_APPLICATION_CODE:
            raise ValueError(f"error code 0x{code:X}: an application's codes are 0x201 and 0x301 to 0xFFFFFFFE")
        super().__init__(data, details=details)
        self.code = code


class Rejected(StreamError):
    """The responder certainly did not process the request; it is safe to send it again."""

    default_code = 0x202


class Canceled(StreamError):
    """The responder gave up; the request may have been processed."""

    default_code = 0x203


class Invalid(StreamError):
    """The request was not understood, or exceeds a limit."""

    default_code = 0x204


class SetupError(CodedError):
    """The connection was refused before it was established."""


class InvalidSetup(SetupError):
    """The SETUP was not understood, or names a version that the server does not speak."""

    default_code = 0x001


class UnsupportedSetup(SetupError):
    """The SETUP asks for a feature that the server does not offer."""

    default_code = 0x002


class RejectedSetup(SetupError):
    """The application of the server refused the connection; the text gives its reason."""

    default_code = 0x003


class RejectedResume(SetupError):
    """The server does not resume the session.

    ``advice`` is added to the text of the server: which outcomes that leaves open, and what to do.
    """

    default_code = 0x004
    advice = ""

    def __str__(self) -> str:
        return f"{super().__str__()}: {self.advice}" if self.advice else super().__str__()


class NegotiationFailed(SetupError):
    """The two sides of a Streamux connection share no terms; the text names the field and the values."""


class ConnectionClosed(RSocketError):
    """The connection is closing or closed by agreement: drained, or left by this side."""


class Drained(Rejected, ConnectionClosed):
    """The peer drains, or has drained: the request was refused or not sent, and is safe to send on another connection.

    It is both ``Rejected`` and ``ConnectionClosed``.
    """


GRACE_IS_OVER = "the connection is closing"
"""The text of ``Canceled`` for a stream that was open at the end of the grace period of a drain."""
DRAIN_SIGN = b"no new requests: the connection is closing"
"""The sign of a side that drains: the data of a KEEPALIVE that asks for no answer, and of the REJECTED for requests."""


class ConnectionLost(RSocketError):
    """The connection ended without agreement: by an error of the peer, by the end of the stream, a reset, or silence.

    ``text`` is the reason and ``code`` the error code, ``None`` if the peer sent none; ``__cause__`` is the exception
    of the transport.
    """

    def __init__(self, text: str = "", *, code: int | None = None) -> None:
        self.code = code
        self.text = text
        super().__init__(readable(text))

    def __str__(self) -> str:
        return _with_code(readable(self.text), self.code)


class ProtocolError(RSocketError):
    """One of the two sides broke the rules of the protocol."""


class LocalProtocolError(ProtocolError):
    """This side asked for an action that the protocol forbids at this point."""


class RemoteProtocolError(ProtocolError):
    """The peer sent a frame that the protocol forbids.

    ``text`` describes the fault; ``offset`` is its place in the frame, in bytes.
    """

    def __init__(self, text: str, *, offset: int = 0) -> None:
        self.offset = offset
        super().__init__(text)


class Unsupported(RSocketError):
    """The dialect of this connection lacks the interaction or the option. Nothing was sent."""


STREAM_ERRORS: dict[int, type[StreamError]] = {
    error.default_code: error for error in (ApplicationError, Rejected, Canceled, Invalid)
}
SETUP_ERRORS: dict[int, type[SetupError]] = {
    error.default_code: error for error in (InvalidSetup, UnsupportedSetup, RejectedSetup, RejectedResume)
}


def stream_error(code: int, data: bytes) -> StreamError:
    """Return the exception for an ERROR received on a stream. Codes outside the table are application errors."""
    return STREAM_ERRORS.get(code, ApplicationError)._received(code, data)


def connection_error(code: int, data: bytes) -> ConnectionLost:
    """Return the exception for an ERROR received on stream 0 that ends the connection."""
    reason = f": {readable(data)}" if data else ""
    return ConnectionLost(f"the peer ended the connection{reason}", code=code)


def unsent_copy(error: RSocketError) -> RSocketError:
    """The same error for a request of which nothing left this side."""
    twin = fresh_copy(error)
    twin._is_unsent = True
    return twin


def did_not_run(error: RSocketError) -> bool:
    """Return whether the request that ended with ``error`` was certainly not processed."""
    return error._is_unsent or isinstance(error, Rejected)


def fresh_copy(error: E) -> E:
    """The same error for one more task: each needs an object of its own, or their tracebacks would mix."""
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    twin.__traceback__ = None
    return twin
