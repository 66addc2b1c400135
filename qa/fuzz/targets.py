"""Targets: decoders of a peer's bytes, the errors they may raise, and the properties of all that they accept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from qa.fuzz.mutation import LARGEST
from rsocket_trio.errors import LocalProtocolError

SLOW: Final = 0.010
"""Seconds of processor time that no input of most targets may take."""
MAX_TEXT_BYTES: Final = 1024
"""Characters that an error may have, whatever a peer sent."""
MORE: Final = b"\xaa"
"""Bytes that are put behind bytes that were accepted."""


class Finding(Exception):
    """Something that must not be, and the bytes that show it."""

    def __init__(self, target: str, what: str, data: bytes) -> None:
        self.data = data
        super().__init__(f"{target}: {what}; bytes {data.hex() or 'none'}")


@attrs.frozen
class Target:
    """A decoder with its encoder, and what is allowed to either."""

    name: str
    seeds: Sequence[bytes]
    read: Callable[[bytes], Any]
    """From bytes to what they mean."""
    write: Callable[[Any], bytes]
    """Its mirror."""
    refusals: tuple[type[Exception], ...]
    """The errors that ``read`` may raise, and no others."""
    unsayable: Callable[[Any], bool] = lambda content: False
    """True for values that may be read but that ``write`` must refuse, with ``LocalProtocolError``."""
    as_written: Callable[[Any], Any] = lambda content: content
    """The part of the content for which its document has a place."""
    longer: Callable[[Any], Sequence[Any]] | None = None
    """The meaning that the same bytes and ``MORE`` may have, given that of the bytes alone: a decoder that reads past
    the end of a field says something else."""
    canonical: bool = False
    """True if a value that was read is written as it stood, or else shorter."""
    on_refusal: Callable[[bytes], object] = lambda data: None
    """A further check of refused bytes: it may raise nothing."""
    largest: int = LARGEST
    """Bytes of the longest input."""
    slow: float = SLOW
    """Seconds of processor time that no input may take."""
    one_run_in: int = 1
    """Large inputs take longer: of so many runs it gets one."""

    def check(self, data: bytes) -> bool:
        """Return whether the bytes were accepted. Raise ``Finding`` for whatever must not be."""
        start = time.thread_time()
        accepted = self.judge(data)
        if time.thread_time() - start > self.slow and self.is_slow(data):
            raise Finding(self.name, f"took more than {self.slow * 1000:g} ms", data)
        return accepted

    def judge(self, data: bytes) -> bool:
        """The same without a look at the clock, for what is slowed down by instruments."""
        try:
            return self._check(data)
        except Finding:
            raise
        except Exception as error:
            raise Finding(self.name, f"raised {error!r}", data) from error

    def is_slow(self, data: bytes) -> bool:
        """Return whether it takes too long each time, and not because the machine or the collector was busy once."""
        for _ in range(5):
            start = time.thread_time()
            self._check(data)
            if time.thread_time() - start <= self.slow:
                return False
        return True

    def _check(self, data: bytes) -> bool:
        try:
            content = self.read(data)
        except self.refusals as error:
            self._check_refusal(error, data)
            return False
        if self.longer is not None and self.read(data + MORE) not in self.longer(content):
            raise Finding(self.name, f"read {content!r}, and with one byte more {self.read(data + MORE)!r}", data)
        try:
            written = self.write(content)
        except LocalProtocolError as error:
            if not self.unsayable(content):
                raise Finding(self.name, f"read {content!r}, and can't write it: {error}", data) from error
            return True
        if self.unsayable(content):
            raise Finding(self.name, f"wrote {content!r}, which may not be said", data)
        if self.canonical and not (written == data or len(written) < len(data)):
            raise Finding(self.name, f"read {content!r}, and wrote it as {written.hex()}", data)
        again = self.read(written)
        if again != self.as_written(content):
            raise Finding(self.name, f"read {content!r}, wrote it as {written.hex()}, and read {again!r}", data)
        return True

    def _check_refusal(self, error: Exception, data: bytes) -> None:
        self.on_refusal(data)
        if len(str(error)) > MAX_TEXT_BYTES:
            raise Finding(self.name, f"refused in {len(str(error))} characters", data)
        offset = getattr(error, "offset", 0)
        if not 0 <= offset <= len(data):
            raise Finding(self.name, f"refused at offset {offset}: {error}", data)
