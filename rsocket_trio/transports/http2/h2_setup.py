"""h2 with the settings of this side, and the words for what it says."""

from __future__ import annotations

import logging
from typing import Final, TypeAlias

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings

from rsocket_trio.transports.first_bytes import PREFACE
from rsocket_trio.transports.http2.frame_intake import HEAD_LIMIT, MAX_FRAME
from rsocket_trio.transports.http2.lanes import DEFAULT_WINDOW, STREAM_WINDOW

CONNECTION_WINDOW: Final = 16 * STREAM_WINDOW
"""Bytes that a peer may send ahead of all readers together: 15 streams that nobody reads leave room for the others."""
CLOSED_STREAMS: Final = 1024
"""Streams that h2 remembers after they closed, for frames that cross."""

Headers: TypeAlias = list[tuple[str, str]]
"""Names in lower case, and values; the pseudo-header fields first."""

if logging.getLogger("hpack").level == logging.NOTSET:
    # It logs every header at DEBUG, credentials as well.
    logging.getLogger("hpack").setLevel(logging.INFO)


class SmallH2(H2Connection):
    """h2 with a shorter memory of closed streams."""

    MAX_CLOSED_STREAMS = CLOSED_STREAMS


def begun_h2(*, client: bool, streams: int) -> H2Connection:
    """Return h2 with this side's settings, which it is about to send. A server allows so many ``streams``."""
    h2 = SmallH2(H2Configuration(client_side=client))
    values = {
        SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        SettingCodes.MAX_FRAME_SIZE: MAX_FRAME,
        SettingCodes.MAX_HEADER_LIST_SIZE: HEAD_LIMIT,
    }
    if client:
        values[SettingCodes.ENABLE_PUSH] = 0
    said = values if client else {**values, SettingCodes.MAX_CONCURRENT_STREAMS: streams}
    h2.local_settings = Settings(client=client, initial_values=said)
    h2.max_inbound_frame_size = MAX_FRAME
    h2.initiate_connection()
    if not client:
        h2.receive_data(PREFACE)  # ``FrameIntake`` takes that of the client
    h2.increment_flow_control_window(CONNECTION_WINDOW - DEFAULT_WINDOW)
    # A stream too many would end the connection. It is refused by itself: the peer may not know of the limit yet.
    h2.local_settings = Settings(client=client, initial_values=values)
    return h2


def as_text(field: bytes | str) -> str:
    """Return a part of a header. Latin-1 keeps every byte."""
    return field if isinstance(field, str) else field.decode("latin-1")


def name_of(code: ErrorCodes | int) -> str:
    """Return the name of an error code (RFC 9113, 7), or its number."""
    try:
        return ErrorCodes(code).name
    except ValueError:
        return f"0x{code:X}"
