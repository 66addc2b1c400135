"""A server of RSocket 1.0 made of bytes, with switches: each makes it wrong in one way that a case has to catch.

It is independent of the library: frames are read and written here as the document draws them. Without a switch it is
right, and has every interaction of ``catalogue.NEEDS``. ``python -m qa.wrong PORT [SWITCH]`` serves it to
anybody.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from itertools import accumulate
from typing import Final, NoReturn, Protocol

import attrs
import trio

# Types and flags
SETUP, LEASE, KEEPALIVE, REQUEST_RESPONSE, REQUEST_FNF, REQUEST_STREAM, REQUEST_CHANNEL = range(1, 8)
REQUEST_N, CANCEL, PAYLOAD, ERROR, METADATA_PUSH, RESUME, RESUME_OK = range(8, 15)
EXT = 0x3F
REQUESTS: Final = (REQUEST_RESPONSE, REQUEST_FNF, REQUEST_STREAM, REQUEST_CHANNEL)
WITH_METADATA: Final = (SETUP, *REQUESTS, PAYLOAD)
I, M, F, C, N = 0x200, 0x100, 0x080, 0x040, 0x020  # noqa: E741
R, L = F, C
"""Resume or respond, and lease: the same bits on other types."""

# Codes
INVALID_SETUP, UNSUPPORTED_SETUP, REJECTED_SETUP, REJECTED_RESUME = range(1, 5)
CONNECTION_ERROR, CONNECTION_CLOSE = 0x101, 0x102
APPLICATION_ERROR, REJECTED, CANCELED, INVALID = range(0x201, 0x205)

VERSION: Final = 0x0001_0000
LEASE_TIME, LEASES_EVERY, LEASE_REQUESTS = 2.0, 3.0, 3
"""Seconds that a lease lasts, seconds from one to the next, and its requests."""
GRANT: Final = 16
"""Items that the requester of a channel may send ahead."""
UINT31: Final = 0x7FFF_FFFF


class Act(Enum):
    """The reaction to a situation that a rule describes."""

    SERVE = "serve the frame as if nothing were wrong with it"
    SKIP = "skip the frame"
    CLOSE = "close the connection without a word"
    FAIL = "send an ERROR of the connection, and close it"
    REFUSE = "send an ERROR of the stream, and go on"


@attrs.frozen
class Reaction:
    """A reaction, with the code of the ERROR that is sent, if one is."""

    act: Act
    code: int = 0


SERVE, SKIP, CLOSE = Reaction(Act.SERVE), Reaction(Act.SKIP), Reaction(Act.CLOSE)
INVALID_SETUP_ENDS, REJECTED_SETUP_ENDS = Reaction(Act.FAIL, INVALID_SETUP), Reaction(Act.FAIL, REJECTED_SETUP)
UNSUPPORTED_SETUP_ENDS = Reaction(Act.FAIL, UNSUPPORTED_SETUP)
REJECTED_RESUME_ENDS = Reaction(Act.FAIL, REJECTED_RESUME)
END = Reaction(Act.FAIL, CONNECTION_ERROR)
REFUSE = Reaction(Act.REFUSE, INVALID)


class Rule(Enum):
    """The situations in which a server has to decide, and what is right in each."""

    # fmt: off
    # The first frame
    FIRST_IS_A_REQUEST       = "the first frame is a request", INVALID_SETUP_ENDS
    FIRST_IS_ANOTHER         = "the first frame is neither SETUP nor RESUME nor a request", INVALID_SETUP_ENDS
    FIRST_IS_UNKNOWN         = "the first frame is of an unknown type", INVALID_SETUP_ENDS
    FIRST_IS_UNKNOWN_WITH_I  = "the first frame is of an unknown type and has I", INVALID_SETUP_ENDS
    FIRST_IS_SHORT           = "the first frame is shorter than a header", INVALID_SETUP_ENDS
    FIRST_HAS_RESERVED_BIT   = "the stream id of the first frame has its reserved bit", INVALID_SETUP_ENDS
    SETUP_ON_A_STREAM        = "a first SETUP is on a stream", INVALID_SETUP_ENDS
    RESUME_ON_A_STREAM       = "a first RESUME is on a stream", INVALID_SETUP_ENDS
    SETUP_CUT_SHORT          = "SETUP ends before its times do", INVALID_SETUP_ENDS
    SETUP_CUT_SHORT_WITH_I   = "SETUP ends before its times do and has I", INVALID_SETUP_ENDS
    MIME_CUT_SHORT           = "SETUP ends before its MIME types do", INVALID_SETUP_ENDS
    TOKEN_CUT_SHORT          = "SETUP ends before its resume token does", INVALID_SETUP_ENDS
    SETUP_METADATA           = "SETUP ends before its metadata does", INVALID_SETUP_ENDS
    SETUP_METADATA_WITH_I    = "SETUP ends before its metadata does and has I", INVALID_SETUP_ENDS
    OTHER_MINOR_VERSION      = "SETUP is of another minor version", INVALID_SETUP_ENDS
    OTHER_MAJOR_VERSION      = "SETUP is of another major version", INVALID_SETUP_ENDS
    NO_INTERVAL              = "the keepalive time of SETUP is 0", INVALID_SETUP_ENDS
    NO_LIFETIME              = "the lifetime of SETUP is 0", INVALID_SETUP_ENDS
    LIFETIME_RESERVED_BIT    = "the lifetime of SETUP is 0 but for the reserved bit", INVALID_SETUP_ENDS
    ASKS_FOR_LEASES          = "SETUP asks for leases", UNSUPPORTED_SETUP_ENDS
    HAS_A_TOKEN              = "SETUP has a resume token", REJECTED_SETUP_ENDS
    HAS_AN_EMPTY_TOKEN       = "SETUP has a resume token of no bytes", REJECTED_SETUP_ENDS
    SETUP_WITH_I             = "SETUP has I", SERVE
    SETUP_WITH_SPARE_FLAGS   = "SETUP has flags without a meaning", SERVE
    MIME_IS_NO_TEXT          = "a MIME type of SETUP is no ASCII", SERVE
    RESUMES                  = "the first frame is RESUME, and names no session", REJECTED_RESUME_ENDS
    RESUMES_OTHER_VERSION    = "the first frame is RESUME of another version", REJECTED_RESUME_ENDS
    FIRST_RESUME_CUT_SHORT   = "the first frame is RESUME and ends before its fields do", INVALID_SETUP_ENDS
    TOKEN_IN_USE             = "SETUP has the token of another session", REJECTED_SETUP_ENDS
    RESUMES_FROM_BEFORE      = "RESUME is from before what the client confirmed", REJECTED_RESUME_ENDS
    RESUMES_FROM_BEYOND      = "RESUME is from beyond what was sent", REJECTED_RESUME_ENDS
    RESUMES_AMID_A_FRAME     = "RESUME is from amid a frame", REJECTED_RESUME_ENDS
    RESUMES_WITH_A_GAP       = "the client does not keep what the server lacks", REJECTED_RESUME_ENDS
    RESUMES_WITH_THE_GONE    = "the client keeps what it did not keep any more", REJECTED_RESUME_ENDS
    # Frames that can't be read
    SHORTER_THAN_A_HEADER    = "a frame is shorter than a header", END
    UNKNOWN_TYPE             = "a frame is of an unknown type", END
    TYPE_0                   = "a frame is of the reserved type 0", END
    UNKNOWN_TYPE_WITH_I      = "a frame is of an unknown type and has I", SKIP
    RESERVED_BIT             = "a stream id has its reserved bit", END
    MALFORMED_WITH_I         = "a frame ends before its fields do and has I", SKIP
    RESERVED_BIT_WITH_I      = "a stream id has its reserved bit and the frame has I", SKIP
    METADATA_TOO_LONG        = "metadata is longer than its frame", END
    METADATA_TOO_LONG_WITH_I = "metadata is longer than its frame, which has I", SKIP
    METADATA_LENGTH_SHORT    = "a frame ends before the length of its metadata does", END
    KEEPALIVE_CUT_SHORT      = "KEEPALIVE ends before its position does", END
    LEASE_CUT_SHORT          = "LEASE ends before its fields do", END
    STREAM_CUT_SHORT         = "REQUEST_STREAM ends before its number does", END
    CHANNEL_CUT_SHORT        = "REQUEST_CHANNEL ends before its number does", END
    REQUEST_N_CUT_SHORT      = "REQUEST_N ends before its number does", END
    ERROR_CUT_SHORT          = "ERROR ends before its code does", END
    EXT_CUT_SHORT            = "EXT ends before its type does", END
    RESUME_OK_CUT_SHORT      = "RESUME_OK ends before its position does", END
    LATER_RESUME_CUT_SHORT   = "RESUME after SETUP ends before its fields do", END
    LATER_SETUP_CUT_SHORT    = "a second SETUP ends before its fields do", END
    # Frames of the connection
    SECOND_SETUP             = "a second SETUP comes", SKIP
    LATER_SETUP_ON_A_STREAM  = "SETUP comes on a stream", SKIP
    LATER_RESUME             = "RESUME comes after SETUP", END
    LATER_RESUME_ON_A_STREAM = "RESUME comes on a stream", SKIP
    LATE_RESUME_OK           = "RESUME_OK comes", SKIP
    NO_LEASES_AGREED         = "LEASE comes, and none was agreed", SKIP
    LEASE_ON_A_STREAM        = "LEASE comes on a stream", SKIP
    KEEPALIVE_ON_A_STREAM    = "KEEPALIVE comes on a stream", SKIP
    KEEPALIVE_UNASKED        = "KEEPALIVE without R comes, and none was asked for", SKIP
    KEEPALIVE_RESERVED_BIT   = "the position of KEEPALIVE has its reserved bit", SERVE
    KEEPALIVE_SPARE_FLAGS    = "KEEPALIVE has flags without a meaning", SERVE
    PUSH_ON_A_STREAM         = "METADATA_PUSH comes on a stream", SKIP
    UNKNOWN_EXT              = "EXT is of an unknown type", END
    UNKNOWN_EXT_WITH_I       = "EXT is of an unknown type and has I", SKIP
    EXT_ON_A_STREAM          = "EXT of an unknown type comes on a stream", END
    SETUP_ERROR_LATE         = "ERROR of a SETUP or RESUME comes later", SKIP
    STREAM_CODE_ON_0         = "ERROR on stream 0 has a code of streams", CLOSE
    UNKNOWN_CODE_ON_0        = "ERROR on stream 0 has an unknown code", CLOSE
    CONNECTION_FAILED        = "ERROR of the connection comes", CLOSE
    CLOSING_WHEN_IDLE        = "CONNECTION_CLOSE comes, and no stream is open", CLOSE
    # Frames of streams
    REQUEST_ON_0             = "a request is on stream 0", SKIP
    ID_OF_OURS               = "a request has an id of the server", SKIP
    ID_IN_USE                = "a request has an id that is in use", SKIP
    ID_HALFWAY               = "a request has an id that waits for fragments", SKIP
    NO_CREDIT_AT_ALL         = "a request is for 0 items", REFUSE
    COUNT_RESERVED_BIT       = "a request is for 0 items but for the reserved bit", REFUSE
    REQUEST_SPARE_FLAGS      = "a request has flags without a meaning", SERVE
    CLOSING                  = "a request comes after CONNECTION_CLOSE", Reaction(Act.REFUSE, REJECTED)
    FORGET_WHEN_CLOSING      = "a fire-and-forget comes after CONNECTION_CLOSE", SKIP
    CANCEL_UNKNOWN           = "CANCEL is for no stream", SKIP
    ERROR_UNKNOWN            = "ERROR is for no stream", SKIP
    PAYLOAD_UNKNOWN          = "PAYLOAD is for no stream", SKIP
    REQUEST_N_UNKNOWN        = "REQUEST_N is for no stream", SKIP
    CANCEL_ON_0              = "CANCEL is on stream 0", SKIP
    PAYLOAD_ON_0             = "PAYLOAD is on stream 0", SKIP
    REQUEST_N_ON_0           = "REQUEST_N is on stream 0", SKIP
    CANCEL_PAST              = "CANCEL is for a stream that is over", SKIP
    ERROR_PAST               = "ERROR is for a stream that is over", SKIP
    PAYLOAD_PAST             = "PAYLOAD is for a stream that is over", SKIP
    REQUEST_N_PAST           = "REQUEST_N is for a stream that is over", SKIP
    CANCEL_BYTES_BEHIND      = "bytes stand behind CANCEL", SERVE
    REQUEST_N_BYTES_BEHIND   = "bytes stand behind REQUEST_N", SERVE
    REQUEST_N_SPARE_FLAGS    = "REQUEST_N has flags without a meaning", SERVE
    REQUEST_N_RESERVED_BIT   = "the number of REQUEST_N has its reserved bit", SERVE
    REQUEST_N_OF_0           = "REQUEST_N is for 0 items", SKIP
    REQUEST_N_FOR_ANSWER     = "REQUEST_N is for a request/response", SKIP
    ITEM_UNASKED             = "an item comes from the requester of no channel", SKIP
    COMPLETE_UNASKED         = "COMPLETE comes from the requester of no channel", SKIP
    PAYLOAD_OF_NOTHING       = "PAYLOAD has neither N nor C", SKIP
    BEYOND_GRANT             = "an item comes that was not granted", REFUSE
    METADATA_AFTER_DATA      = "metadata comes in fragments after data", REFUSE
    # fmt: on

    def __init__(self, situation: str, right: Reaction) -> None:
        self.situation = situation
        self.right = right


NO_RULES: Final[Mapping[Rule, Reaction]] = {}


class Switch(Enum):
    """The faults: what the server does wrong, the case that catches it, and the rules that it breaks, if it has some.

    ``mild`` is true where the documents leave a milder verdict than failure: another code, or no ERROR before the end.
    """

    # The connection as a whole. These break most cases, so none is shown to catch anything by them.
    SAYS_NOTHING = "it reads and never answers", "served-a-request-with-spare-flags"
    CLOSES_AT_ONCE = "it closes every connection at once", "served-keepalive-with-all-spare-flags"
    TALKS_NONSENSE = "it answers SETUP with a page of HTTP", "served-an-unknown-type-with-i"
    GARBAGE = "it answers SETUP with frames of random bytes", "served-an-unknown-type-with-i"
    NO_KEEPALIVE = "it does not answer KEEPALIVE", "served-keepalive-with-all-spare-flags"
    LENGTH_COUNTS_ITSELF = "the length of its frames counts its own bytes", "served-a-request-with-spare-flags"
    FLOODS = "it grants credit for a stream 100,000 times and hangs", "served-an-unknown-type-with-i"
    ENDS_BY_ITSELF = "it closes after the first KEEPALIVE", "served-keepalive-with-all-spare-flags"

    # The end of a connection
    NO_WORD_BEFORE_THE_END = "it closes without ERROR", "served-an-unknown-type", NO_RULES, True
    STAYS_AFTER_ERROR = "it does not close after ERROR", "served-an-unknown-type"
    SPEAKS_AFTER_ERROR = "it sends LEASE behind the last ERROR", "first-setup-of-version-2-0"
    TWO_ERRORS = "it sends the last ERROR twice", "first-resume"
    ERROR_WITHOUT_CODE = "its last ERROR has no code", "first-setup-with-a-lifetime-of-0"
    ERROR_ON_A_STREAM = "its last ERROR is on stream 1", "served-keepalive-without-a-position"
    LITTLE_ENDIAN_CODE = (
        "the code of its last ERROR stands the wrong way round",
        "first-resume-cut-short",
        NO_RULES,
        True,
    )
    ERROR_ANSWERED = "it answers an ERROR of the connection with ERROR", "ticking-connection-error"
    DIES_AMID_A_FRAME = "it dies amid the answer to a request", "served-a-request-with-spare-flags"
    HANGS_AFTER_A_REQUEST = "it hangs once a request came", "served-a-request-with-spare-flags"
    DIES_AT_A_STREAM = "it dies when a stream is requested", "served-request-stream-with-spare-flags"

    # The first frame
    ANY_FIRST_REQUEST = (
        "it serves a request without SETUP",
        "first-a-first-request-response",
        {Rule.FIRST_IS_A_REQUEST: SERVE},
    )
    ANY_FIRST_FRAME = (
        "it skips a first frame that is neither SETUP nor a request",
        "first-a-first-keepalive",
        {Rule.FIRST_IS_ANOTHER: SKIP},
    )
    UNKNOWN_FIRST_FRAME = (
        "it skips a first frame of an unknown type",
        "first-a-first-frame-of-an-unknown-type",
        {Rule.FIRST_IS_UNKNOWN: SKIP},
    )
    UNKNOWN_FIRST_FRAME_WITH_I = (
        "it lets the flag I excuse a first frame of an unknown type",
        "first-a-first-ext-with-i",
        {Rule.FIRST_IS_UNKNOWN_WITH_I: SKIP},
    )
    SHORT_FIRST_FRAME = (
        "it skips a first frame that is shorter than a header",
        "first-a-frame-of-5-bytes",
        {Rule.FIRST_IS_SHORT: SKIP},
    )
    FIRST_RESERVED_BIT = (
        "it ignores the reserved bit of the first stream id",
        "first-setup-with-the-reserved-bit-of-the-stream-id",
        {Rule.FIRST_HAS_RESERVED_BIT: SERVE},
    )
    SETUP_ANYWHERE = (
        "it takes SETUP on a stream",
        "first-setup-on-a-stream",
        {Rule.SETUP_ON_A_STREAM: SERVE},
    )
    RESUME_ANYWHERE = (
        "it takes a RESUME on a stream for one",
        "first-resume-on-a-stream",
        {Rule.RESUME_ON_A_STREAM: REJECTED_RESUME_ENDS},
        True,
    )
    SETUP_OF_ANY_LENGTH = (
        "it takes a SETUP without its times",
        "first-setup-a-byte-short-of-its-times",
        {Rule.SETUP_CUT_SHORT: SERVE},
    )
    SETUP_EXCUSED = (
        "it skips a SETUP that can't be read if it has I",
        "first-setup-without-its-fields-with-i",
        {Rule.SETUP_CUT_SHORT_WITH_I: SKIP, Rule.SETUP_METADATA_WITH_I: SKIP},
    )
    NO_MIME_TYPES = (
        "it takes a SETUP whose MIME types are cut short",
        "first-setup-without-mime-types",
        {Rule.MIME_CUT_SHORT: SERVE},
    )
    HALF_A_TOKEN = (
        "it takes a SETUP whose resume token is cut short",
        "first-setup-with-a-resume-token-cut-short",
        {Rule.TOKEN_CUT_SHORT: SERVE},
    )
    SETUP_METADATA_CLIPPED = (
        "it clips the metadata of SETUP to what is there",
        "first-setup-with-metadata-longer-than-the-frame",
        {Rule.SETUP_METADATA: SERVE},
    )
    ANY_MINOR_VERSION = (
        "it takes every version 1.x",
        "first-setup-of-version-1-1",
        {Rule.OTHER_MINOR_VERSION: SERVE},
    )
    ANY_MAJOR_VERSION = (
        "it takes every major version",
        "first-setup-of-version-65535-65535",
        {Rule.OTHER_MAJOR_VERSION: SERVE},
    )
    VERSION_UNSUPPORTED = (
        "it answers another version with UNSUPPORTED_SETUP",
        "first-setup-of-version-0-2",
        {Rule.OTHER_MAJOR_VERSION: UNSUPPORTED_SETUP_ENDS, Rule.OTHER_MINOR_VERSION: UNSUPPORTED_SETUP_ENDS},
        True,
    )
    NO_INTERVAL = (
        "it takes a keepalive time of 0",
        "first-setup-with-a-keepalive-time-of-0",
        {Rule.NO_INTERVAL: SERVE},
    )
    NO_LIFETIME = (
        "it takes a lifetime of 0",
        "first-setup-with-a-lifetime-of-0",
        {Rule.NO_LIFETIME: SERVE},
    )
    RESERVED_BIT_IN_LIFETIME = (
        "it reads the reserved bit of a lifetime as part of it",
        "first-setup-with-only-the-reserved-bit-of-a-lifetime",
        {Rule.LIFETIME_RESERVED_BIT: SERVE},
    )
    LEASES_UNGRANTED = (
        "it agrees to leases and grants none",
        "first-setup-with-l-where-no-leases-are-granted",
        {Rule.ASKS_FOR_LEASES: SERVE},
    )
    LEASES_REJECTED = (
        "it answers a wish for leases with REJECTED_SETUP",
        "first-setup-with-l-where-no-leases-are-granted",
        {Rule.ASKS_FOR_LEASES: REJECTED_SETUP_ENDS},
        True,
    )
    TOKEN_IGNORED = (
        "it ignores a resume token",
        "first-setup-with-a-resume-token",
        {Rule.HAS_A_TOKEN: SERVE},
    )
    EMPTY_TOKEN_IGNORED = (
        "it takes an empty resume token for none",
        "first-setup-with-an-empty-resume-token",
        {Rule.HAS_AN_EMPTY_TOKEN: SERVE},
    )
    SETUP_WITH_I_REFUSED = (
        "it refuses a SETUP with I",
        "first-setup-with-i",
        {Rule.SETUP_WITH_I: INVALID_SETUP_ENDS},
    )
    SPARE_SETUP_FLAGS_REFUSED = (
        "it refuses a SETUP with spare flags",
        "first-setup-with-spare-flags",
        {Rule.SETUP_WITH_SPARE_FLAGS: INVALID_SETUP_ENDS},
    )
    MIME_IS_TEXT = (
        "it refuses MIME types that are no text",
        "first-setup-with-mime-types-that-are-no-text",
        {Rule.MIME_IS_NO_TEXT: INVALID_SETUP_ENDS},
    )
    RESUME_TAKEN = (
        "it takes RESUME for SETUP",
        "first-resume",
        {Rule.RESUMES: SERVE},
    )
    RESUME_VERSION = (
        "it takes RESUME of another version for SETUP",
        "first-resume-of-another-version",
        {Rule.RESUMES_OTHER_VERSION: SERVE},
    )
    HALF_A_RESUME = (
        "it answers a RESUME that is cut short as a whole one",
        "first-resume-cut-short",
        {Rule.FIRST_RESUME_CUT_SHORT: REJECTED_RESUME_ENDS},
        True,
    )

    # Frames that can't be read
    SHORT_FRAMES_SKIPPED = (
        "it skips frames that are shorter than a header",
        "served-a-frame-of-0-bytes",
        {Rule.SHORTER_THAN_A_HEADER: SKIP},
    )
    UNKNOWN_TYPES_SKIPPED = (
        "it skips frames of unknown types without I",
        "served-an-unknown-type",
        {Rule.UNKNOWN_TYPE: SKIP},
    )
    TYPE_0_SKIPPED = (
        "it skips frames of type 0",
        "served-the-reserved-type-0",
        {Rule.TYPE_0: SKIP},
    )
    I_MEANS_NOTHING = (
        "it does not know the flag I on unknown types",
        "served-an-unknown-type-with-i",
        {Rule.UNKNOWN_TYPE_WITH_I: END},
    )
    I_EXCUSES_NOTHING = (
        "it ends for a malformed frame with I",
        "served-keepalive-without-a-position-with-i",
        {Rule.MALFORMED_WITH_I: END},
    )
    I_EXCUSES_NO_METADATA = (
        "it ends for metadata that is too long in a frame with I",
        "served-a-request-with-metadata-a-byte-too-long-with-i",
        {Rule.METADATA_TOO_LONG_WITH_I: END},
    )
    I_EXCUSES_NO_RESERVED_BIT = (
        "it ends for the reserved bit of a stream id in a frame with I",
        "ticking-cancel-with-the-reserved-bit-of-the-stream-id-with-i",
        {Rule.RESERVED_BIT_WITH_I: END},
    )
    RESERVED_BIT_SERVED = (
        "it ignores the reserved bit of stream ids",
        "served-a-request-with-the-reserved-bit-of-the-stream-id",
        {Rule.RESERVED_BIT: SERVE},
    )
    METADATA_CLIPPED = (
        "it clips metadata to what is there",
        "served-a-request-with-metadata-a-byte-too-long",
        {Rule.METADATA_TOO_LONG: SERVE},
    )
    METADATA_REFUSED = (
        "it answers metadata that is too long on its stream",
        "talking-an-item-with-metadata-too-long",
        {Rule.METADATA_TOO_LONG: REFUSE},
    )
    METADATA_LENGTH_AS_DATA = (
        "it reads a length of metadata that is cut short as data",
        "served-a-request-with-m-and-two-bytes-left",
        {Rule.METADATA_LENGTH_SHORT: SERVE},
    )
    SHORT_KEEPALIVE = (
        "it answers a KEEPALIVE whose position is cut short",
        "served-keepalive-with-7-bytes-of-position",
        {Rule.KEEPALIVE_CUT_SHORT: SERVE},
    )
    SHORT_LEASE = (
        "it skips a LEASE that is cut short",
        "served-lease-of-7-bytes",
        {Rule.LEASE_CUT_SHORT: SKIP},
    )
    SHORT_STREAM = (
        "it refuses a REQUEST_STREAM that is cut short on its stream",
        "served-request-stream-without-a-count",
        {Rule.STREAM_CUT_SHORT: REFUSE},
    )
    SHORT_CHANNEL = (
        "it refuses a REQUEST_CHANNEL that is cut short on its stream",
        "served-request-channel-without-a-count",
        {Rule.CHANNEL_CUT_SHORT: REFUSE},
    )
    SHORT_REQUEST_N = (
        "it skips a REQUEST_N that is cut short",
        "ticking-request-n-without-a-number",
        {Rule.REQUEST_N_CUT_SHORT: SKIP},
    )
    SHORT_ERROR = (
        "it skips an ERROR that is cut short",
        "served-error-without-a-code",
        {Rule.ERROR_CUT_SHORT: SKIP},
    )
    SHORT_EXT = (
        "it skips an EXT that is cut short",
        "served-ext-without-a-type",
        {Rule.EXT_CUT_SHORT: SKIP},
    )
    SHORT_RESUME_OK = (
        "it skips a RESUME_OK that is cut short",
        "served-resume-ok-cut-short",
        {Rule.RESUME_OK_CUT_SHORT: SKIP},
    )
    SHORT_LATER_RESUME = (
        "it skips a later RESUME that is cut short",
        "served-resume-with-a-token-longer-than-the-frame",
        {Rule.LATER_RESUME_CUT_SHORT: SKIP},
    )
    SHORT_LATER_SETUP = (
        "it skips a second SETUP that is cut short",
        "served-setup-without-fields-once-more",
        {Rule.LATER_SETUP_CUT_SHORT: SKIP},
    )

    # Frames of the connection
    SECOND_SETUP_REFUSED = (
        "it refuses a second SETUP with REJECTED_SETUP",
        "ticking-a-second-setup",
        {Rule.SECOND_SETUP: REJECTED_SETUP_ENDS},
    )
    SECOND_SETUP_TAKEN = (
        "it takes a second SETUP and its times for the first",
        "served-a-second-setup-of-another-version",
        {Rule.SECOND_SETUP: SERVE},
    )
    LATER_SETUP_ON_A_STREAM = (
        "it ends for a SETUP on a stream",
        "ticking-setup-on-a-stream",
        {Rule.LATER_SETUP_ON_A_STREAM: END},
    )
    LATER_RESUME_SKIPPED = (
        "it skips RESUME after SETUP",
        "served-resume-after-setup",
        {Rule.LATER_RESUME: SKIP},
    )
    LATER_RESUME_ON_A_STREAM = (
        "it ends for a RESUME on a stream",
        "ticking-resume-on-a-stream",
        {Rule.LATER_RESUME_ON_A_STREAM: END},
    )
    LATE_RESUME_OK = (
        "it ends for a RESUME_OK",
        "served-resume-ok",
        {Rule.LATE_RESUME_OK: END},
    )
    LEASE_UNAGREED = (
        "it ends for a LEASE that was not agreed",
        "served-lease-that-was-not-agreed",
        {Rule.NO_LEASES_AGREED: END},
    )
    LEASE_ON_A_STREAM = (
        "it refuses a LEASE on a stream on that stream",
        "ticking-lease-on-a-stream",
        {Rule.LEASE_ON_A_STREAM: REFUSE},
    )
    KEEPALIVE_ON_A_STREAM = (
        "it ends for KEEPALIVE on a stream",
        "ticking-keepalive-on-a-stream",
        {Rule.KEEPALIVE_ON_A_STREAM: END},
    )
    KEEPALIVE_UNASKED = (
        "it ends for a KEEPALIVE without R that it did not ask for",
        "served-keepalive-without-r-that-nobody-asked-for",
        {Rule.KEEPALIVE_UNASKED: END},
    )
    KEEPALIVE_RESERVED_BIT = (
        "it ends for the reserved bit of a position",
        "served-keepalive-with-the-reserved-bit-of-its-position",
        {Rule.KEEPALIVE_RESERVED_BIT: END},
    )
    KEEPALIVE_SPARE_FLAGS = (
        "it does not answer a KEEPALIVE with spare flags",
        "served-keepalive-with-all-spare-flags",
        {Rule.KEEPALIVE_SPARE_FLAGS: SKIP},
    )
    PUSH_ON_A_STREAM = (
        "it refuses a METADATA_PUSH on a stream on that stream",
        "ticking-metadata-push-on-a-stream",
        {Rule.PUSH_ON_A_STREAM: REFUSE},
    )
    EXT_SKIPPED = (
        "it skips every EXT",
        "served-ext-of-an-unknown-type",
        {Rule.UNKNOWN_EXT: SKIP, Rule.EXT_ON_A_STREAM: SKIP},
    )
    EXT_REFUSED = (
        "it answers an EXT on a stream there",
        "ticking-ext-of-an-unknown-type-on-a-stream",
        {Rule.EXT_ON_A_STREAM: REFUSE},
    )
    EXT_WITH_I_ENDS = (
        "it ends for an EXT with I",
        "served-ext-of-an-unknown-type-with-i",
        {Rule.UNKNOWN_EXT_WITH_I: END},
    )
    SETUP_ERRORS_END = (
        "it closes for the ERROR of a SETUP that it accepted",
        "ticking-error-invalid-setup",
        {Rule.SETUP_ERROR_LATE: CLOSE},
    )
    STREAM_CODE_SKIPPED = (
        "it skips an ERROR on stream 0 with a code of streams",
        "served-error-with-a-stream-s-code-on-stream-0",
        {Rule.STREAM_CODE_ON_0: SKIP},
    )
    UNKNOWN_CODE_SKIPPED = (
        "it skips an ERROR on stream 0 with an unknown code",
        "served-error-of-code-0-on-stream-0",
        {Rule.UNKNOWN_CODE_ON_0: SKIP},
    )
    CONNECTION_ERROR_SKIPPED = (
        "it goes on after an ERROR of the connection",
        "ticking-connection-error",
        {Rule.CONNECTION_FAILED: SKIP},
    )
    CLOSE_SKIPPED = (
        "it does not close after CONNECTION_CLOSE",
        "served-connection-close-with-no-stream-open",
        {Rule.CLOSING_WHEN_IDLE: SKIP},
    )
    KEEPALIVE_ANSWERED_TWICE = "it answers KEEPALIVE twice", "keepalive-several"
    KEEPALIVE_FORGETS_DATA = "it answers KEEPALIVE without its data", "served-keepalive-with-all-spare-flags"
    KEEPALIVE_ASKS_BACK = "it answers KEEPALIVE with R", "served-keepalive-with-all-spare-flags"
    KEEPALIVE_WITHOUT_POSITION = "it answers KEEPALIVE without a position", "served-keepalive-with-all-spare-flags"

    # Ids
    STREAM_0_SERVED = (
        "it answers requests on stream 0",
        "served-a-request-on-stream-0",
        {Rule.REQUEST_ON_0: SERVE},
    )
    STREAM_0_ENDS = (
        "it ends for a request on stream 0",
        "served-a-stream-on-stream-0",
        {Rule.REQUEST_ON_0: END},
    )
    ANY_ID_SERVED = (
        "it answers requests with ids of its own",
        "served-a-request-with-an-id-of-ours",
        {Rule.ID_OF_OURS: SERVE},
    )
    ID_OF_OURS_ENDS = (
        "it ends for a request with an id of its own",
        "served-a-fire-and-forget-with-an-id-of-ours",
        {Rule.ID_OF_OURS: END},
    )
    ID_OF_OURS_REFUSED = (
        "it refuses a request with an id of its own on that stream",
        "served-a-channel-with-an-id-of-ours",
        {Rule.ID_OF_OURS: REFUSE},
    )
    ID_TAKEN_OVER = (
        "a request takes over an id that is in use",
        "ticking-a-stream-on-an-id-in-use",
        {Rule.ID_IN_USE: SERVE},
    )
    ID_IN_USE_ENDS = (
        "it ends for a request with an id in use",
        "waiting-a-fire-and-forget-on-an-id-in-use",
        {Rule.ID_IN_USE: END},
    )
    ID_IN_USE_REFUSED = (
        "it refuses a request with an id in use, which ends the stream",
        "talking-a-channel-on-an-id-in-use",
        {Rule.ID_IN_USE: REFUSE},
    )
    HALFWAY_TAKEN_OVER = (
        "a request takes over an id that waits for fragments",
        "halfway-a-request-on-an-id-that-waits-for-fragments",
        {Rule.ID_HALFWAY: SERVE},
    )
    HALFWAY_REFUSED = (
        "it refuses a request with an id that waits for fragments",
        "halfway-another-type-on-an-id-that-waits-for-fragments",
        {Rule.ID_HALFWAY: REFUSE},
    )

    # Frames for streams that are not open
    CANCEL_UNKNOWN_ENDS = (
        "it ends for a CANCEL of no stream",
        "served-cancel-on-an-unknown-stream",
        {Rule.CANCEL_UNKNOWN: END},
    )
    ERROR_UNKNOWN_ENDS = (
        "it ends for an ERROR of no stream",
        "served-error-on-an-unknown-stream",
        {Rule.ERROR_UNKNOWN: END},
    )
    PAYLOAD_UNKNOWN_ENDS = (
        "it ends for a PAYLOAD of no stream",
        "served-payload-on-an-unknown-stream",
        {Rule.PAYLOAD_UNKNOWN: END},
    )
    PAYLOAD_UNKNOWN_REFUSED = (
        "it answers a PAYLOAD of no stream with ERROR",
        "served-a-fragment-on-an-unknown-stream",
        {Rule.PAYLOAD_UNKNOWN: REFUSE},
    )
    REQUEST_N_UNKNOWN_REFUSED = (
        "it answers a REQUEST_N of no stream with ERROR",
        "served-request-n-on-an-unknown-stream",
        {Rule.REQUEST_N_UNKNOWN: REFUSE},
    )
    CANCEL_ON_0_ENDS = (
        "it takes CANCEL on stream 0 for the end of the connection",
        "ticking-cancel-on-stream-0",
        {Rule.CANCEL_ON_0: CLOSE},
    )
    PAYLOAD_ON_0_ENDS = (
        "it ends for PAYLOAD on stream 0",
        "ticking-payload-on-stream-0",
        {Rule.PAYLOAD_ON_0: END},
    )
    REQUEST_N_ON_0_ENDS = (
        "it ends for REQUEST_N on stream 0",
        "ticking-request-n-on-stream-0",
        {Rule.REQUEST_N_ON_0: END},
    )
    CANCEL_PAST_ENDS = (
        "it ends for a CANCEL that crossed the end of its stream",
        "past-cancel-for-a-stream-that-is-over",
        {Rule.CANCEL_PAST: END},
    )
    ERROR_PAST_ENDS = (
        "it ends for an ERROR that crossed the end of its stream",
        "past-error-for-a-stream-that-is-over",
        {Rule.ERROR_PAST: END},
    )
    PAYLOAD_PAST_REFUSED = (
        "it answers a PAYLOAD that crossed the end of its stream with ERROR",
        "past-an-item-for-a-stream-that-is-over",
        {Rule.PAYLOAD_PAST: REFUSE},
    )
    REQUEST_N_PAST_ENDS = (
        "it ends for a REQUEST_N that crossed the end of its stream",
        "past-credit-for-a-stream-that-is-over",
        {Rule.REQUEST_N_PAST: END},
    )

    # Frames of open streams
    CANCEL_OF_EXACTLY_6_BYTES = (
        "it ends for bytes behind CANCEL",
        "waiting-bytes-after-cancel",
        {Rule.CANCEL_BYTES_BEHIND: END},
    )
    REQUEST_N_OF_EXACTLY_10_BYTES = (
        "it ends for bytes behind REQUEST_N",
        "ticking-bytes-after-request-n",
        {Rule.REQUEST_N_BYTES_BEHIND: END},
    )
    REQUEST_N_SPARE_FLAGS = (
        "it skips a REQUEST_N with spare flags",
        "ticking-request-n-with-all-flags",
        {Rule.REQUEST_N_SPARE_FLAGS: SKIP},
    )
    REQUEST_N_RESERVED_BIT = (
        "it skips a REQUEST_N whose number has its reserved bit",
        "ticking-request-n-with-the-reserved-bit",
        {Rule.REQUEST_N_RESERVED_BIT: SKIP},
    )
    REQUEST_N_OF_0_ENDS = (
        "it ends for REQUEST_N of 0 items",
        "ticking-request-n-for-0-items",
        {Rule.REQUEST_N_OF_0: END},
    )
    REQUEST_N_OF_0_REFUSED = (
        "it refuses REQUEST_N of 0 items on its stream",
        "ticking-request-n-with-only-the-reserved-bit",
        {Rule.REQUEST_N_OF_0: REFUSE},
    )
    REQUEST_N_FOR_ANSWER = (
        "it refuses a request/response that is granted credit",
        "waiting-credit-for-a-request-response",
        {Rule.REQUEST_N_FOR_ANSWER: REFUSE},
    )
    REQUEST_SPARE_FLAGS = (
        "it ends for a request with spare flags",
        "served-request-stream-with-spare-flags",
        {Rule.REQUEST_SPARE_FLAGS: END},
    )
    NO_CREDIT_SERVED = (
        "it waits for credit where a request is for 0 items",
        "served-request-stream-for-0-items",
        {Rule.NO_CREDIT_AT_ALL: SERVE},
    )
    NO_CREDIT_ENDS = (
        "it ends the connection where a request is for 0 items",
        "served-request-channel-for-0-items",
        {Rule.NO_CREDIT_AT_ALL: END},
    )
    COUNT_RESERVED_BIT = (
        "it skips a request for 0 items but for the reserved bit",
        "served-request-stream-with-only-the-reserved-bit-of-the-count",
        {Rule.COUNT_RESERVED_BIT: SKIP},
    )
    ITEM_UNASKED_ENDS = (
        "it ends for an item of the requester of a stream",
        "ticking-an-item-of-the-requester-of-a-stream",
        {Rule.ITEM_UNASKED: END},
    )
    ITEM_UNASKED_REFUSED = (
        "it refuses an item of the requester of a request/response on its stream",
        "waiting-an-item-of-the-requester-of-a-request",
        {Rule.ITEM_UNASKED: REFUSE},
    )
    COMPLETE_UNASKED_ENDS_IT = (
        "it refuses COMPLETE of the requester of a stream on its stream",
        "ticking-complete-of-the-requester-of-a-stream",
        {Rule.COMPLETE_UNASKED: REFUSE},
    )
    PAYLOAD_OF_NOTHING_IS_AN_ITEM = (
        "it takes a PAYLOAD with neither N nor C for an item",
        "talking-payload-with-neither-c-nor-n",
        {Rule.PAYLOAD_OF_NOTHING: SERVE},
    )
    OVERRUN_SERVED = (
        "it takes items beyond its grant",
        "talking-items-beyond-the-grant",
        {Rule.BEYOND_GRANT: SERVE},
    )
    OVERRUN_ENDS = (
        "it ends the connection for items beyond its grant",
        "talking-items-beyond-the-grant",
        {Rule.BEYOND_GRANT: END},
    )
    METADATA_AFTER_DATA = (
        "it takes metadata after data",
        "halfway-metadata-after-data",
        {Rule.METADATA_AFTER_DATA: SERVE},
    )
    ENDS_FOR_METADATA_AFTER_DATA = (
        "it ends the connection for metadata after data",
        "halfway-metadata-after-data",
        {Rule.METADATA_AFTER_DATA: END},
    )

    # What it sends on streams
    UNUSED_BITS_SET = "it sets bits that should be 0", "bits-that-should-be-0"
    STREAM_0_USED = "it answers requests on stream 0", "past-complete-for-a-stream-that-is-over"
    NEXT_ID_USED = "it answers requests on the next stream id", "served-a-request-with-spare-flags"
    METADATA_NOT_ECHOED = "it answers without metadata", "served-a-request-with-empty-metadata"
    EMPTY_METADATA_DROPPED = "it takes empty metadata for none", "served-a-request-with-empty-metadata"
    METADATA_WITHOUT_FLAG = "it sends metadata without the flag M", "served-a-request-with-empty-metadata"
    DATA_LOST = "it answers without data", "served-a-request-with-spare-flags"
    NOT_COMPLETED = "its answers do not complete", "served-a-request-with-spare-flags"
    ANSWERED_TWICE = "it answers a request twice", "served-a-request-with-spare-flags"
    COMPLETED_WITHOUT_NEXT = "its answers have no flag N", "served-a-request-with-spare-flags"
    MORE_THAN_GRANTED = "it sends one item more than was granted", "ticking-keepalive-on-a-stream"
    FEWER_THAN_GRANTED = "it keeps the last item that was granted to itself", "ticking-request-n-with-all-flags"
    NO_SUMS = "REQUEST_N has no effect", "ticking-request-n-with-the-reserved-bit"
    COUNTS_TWICE = "each item goes out twice", "served-request-stream-with-spare-flags"
    STREAM_NOT_COMPLETED = "its streams do not complete", "served-request-stream-with-spare-flags"
    STREAM_COMPLETED_TWICE = "its streams complete twice", "served-request-stream-with-spare-flags"
    FIRST_ITEM_LOST = "its channels forget the first item", "talking-payload-with-neither-c-nor-n"
    ITEMS_NOT_SENT_BACK = "its channels send back the first item only", "talking-payload-with-neither-c-nor-n"

    # Fragments
    LAST_FRAGMENT_FIRST = (
        "it joins fragments in the wrong order",
        "halfway-a-request-with-f-on-an-id-that-waits-for-fragments",
    )
    ONLY_THE_LAST_FRAGMENT = (
        "it keeps the last fragment only",
        "halfway-a-request-on-an-id-that-waits-for-fragments",
    )
    ONLY_THE_FIRST_FRAGMENT = (
        "it keeps the first fragment only",
        "halfway-another-type-on-an-id-that-waits-for-fragments",
    )
    FRAGMENT_ANSWERED = (
        "it answers the first fragment as a whole request",
        "halfway-a-request-on-an-id-that-waits-for-fragments",
    )

    # Sizes and portions
    WHOLE_FRAMES_ONLY = "it drops what is no whole frame at the end of a read", "setup-byte-by-byte"
    ONE_REQUEST_A_READ = "it takes one request of each read", "requests-in-one-write"
    LENGTH_OF_16_BITS = "it reads 16 bits of a length", "request-of-64-kib"
    FRAMES_OF_500_KB = "it skips frames above 500,000 bytes", "request-of-1-mib"
    METADATA_LENGTH_OF_8_BITS = "it reads 8 bits of the length of metadata", "request-with-metadata-of-256-bytes"
    DATA_IS_TEXT = "it answers with text, and data that is none loses by that", "request-with-any-bytes"
    METADATA_ALONE_LOST = "it drops metadata where there is no data", "request-with-metadata-alone"
    EMPTY_UNANSWERED = "it does not answer a request without data", "request-without-data"

    # Many at once
    ONE_AT_A_TIME = "it rejects a request while a stream is open", "request-beside-one-that-waits"
    FIFTY_STREAMS = "it rejects requests while 50 streams are open", "streams-a-hundred"
    FIFTY_REQUESTS = "it answers 50 requests of a connection", "requests-a-hundred-at-once"
    HUNDRED_REQUESTS = "it answers 100 requests of a connection", "requests-300-one-by-one"
    HUNDRED_STREAMS = "it serves 100 streams of a connection", "streams-300-one-by-one"
    HUNDRED_CHANNELS = "it serves 100 channels of a connection", "channels-300-one-by-one"
    FEW_FORGETS = "it ends after 500 fire-and-forgets", "forget-a-thousand"
    FEW_KEEPALIVES = "it ends after 500 KEEPALIVEs", "keepalive-a-thousand"
    FEW_GRANTS = "it ends after 500 REQUEST_Ns", "credit-a-thousand-grants"
    NONSENSE_COUNTED = "it ends after 30 frames that it had to skip", "senseless-frames-a-hundred"

    # SETUP
    SPEAKS_UNASKED = "it sends an item of no stream to a client that says nothing for 0.4 s", "setup-is-not-answered"
    IMPATIENT = "it closes if no SETUP comes in half a second", "setup-is-waited-for"
    MIME_NEEDED = "it refuses empty MIME types", "setup-with-empty-mime-types"
    MIME_OF_127_BYTES = "it refuses MIME types above 127 bytes", "setup-with-longest-mime-types"
    MIME_REGISTERED = "it refuses MIME types that it does not know", "setup-with-ordinary-mime-types"
    SETUP_DATA_REFUSED = "it refuses data of SETUP", "setup-with-data"
    SETUP_METADATA_REFUSED = "it refuses metadata of SETUP", "setup-with-metadata"
    SETUP_OF_1_KIB = "it refuses a SETUP above 1 KiB", "setup-of-32-kib"
    SHORT_INTERVAL_REFUSED = "it refuses an interval below 10 ms", "setup-with-the-shortest-interval"
    TIMES_LIMITED = "it refuses a lifetime above a day", "setup-with-the-largest-times"
    INTERVAL_BELOW_LIFETIME = (
        "it refuses an interval above the lifetime",
        "setup-with-an-interval-above-the-lifetime",
    )
    SERVES_AFTER_ERROR = "it serves what stands behind a fault", "connection-ends-at-a-fault"
    RESUME_UNKNOWN = (
        "it answers RESUME with REJECTED_SETUP",
        "resume-with-an-unknown-token",
        {Rule.RESUMES: REJECTED_SETUP_ENDS},
        True,
    )

    # Time
    NO_END_OF_LIFE = "it waits for a client that is silent", "lifetime-of-300-ms"
    LIFE_OF_1_SECOND = "it takes every client for dead after a second", "lifetime-of-90-s"
    LIFE_OF_INTERVAL = "it takes the interval for the lifetime", "lifetime-renewed-by-keepalive"
    LIFE_FROM_SETUP = "it counts the lifetime from SETUP", "lifetime-renewed-by-keepalive"
    LIFE_BY_KEEPALIVE = "only KEEPALIVE with R is a sign of life for it", "lifetime-renewed-by-a-fire-and-forget"

    # Frames without an answer
    FORGET_ANSWERED = "it answers a fire-and-forget", "forget-is-never-answered"
    FORGET_COMPLETED = "it completes a fire-and-forget", "forget-without-data"
    PUSH_ANSWERED = "it sends METADATA_PUSH back", "metadata-push-is-never-answered"
    PUSH_NEEDS_FLAG = "it ends for METADATA_PUSH without M", "metadata-push-without-its-flag"
    PUSH_NEEDS_CONTENT = "it ends for METADATA_PUSH without content", "metadata-push-without-content"
    KEEPALIVE_IS_TEXT = "it answers KEEPALIVE with text", "keepalive-with-any-bytes"
    KEEPALIVE_OF_1_KIB = "it answers KEEPALIVE with 1 KiB at most", "keepalive-with-4-kib"
    KEEPALIVE_NEEDS_DATA = "it does not answer KEEPALIVE without data", "keepalive-with-nothing"
    KEEPALIVE_OF_2_BYTES = "it does not answer KEEPALIVE with one byte", "keepalive-with-one-byte"
    KEEPALIVE_ECHOES_POSITION = "it answers KEEPALIVE with the client's position", "keepalive-with-position-1"
    KEEPALIVE_HAS_A_POSITION = "it answers KEEPALIVE with a position of its own", "keepalive-with-position-0"
    KEEPALIVE_ONCE = "it answers the first of several KEEPALIVEs in a read", "keepalive-several"
    KEEPALIVE_WHEN_IDLE = "it does not answer KEEPALIVE while streams are open", "keepalive-beside-a-request-that-waits"

    # Errors
    ERROR_TEXT_CHECKED = "it skips an ERROR whose text is no text", "connection-error-that-is-no-text"
    ERROR_TEXT_LIMITED = "it skips an ERROR whose text is long", "connection-error-with-a-long-text"
    ERROR_WAITS = (
        "it stays for open streams after an ERROR of the connection",
        "connection-error-with-a-request-that-waits",
    )
    CLOSES_WITH_STREAMS = "it closes at CONNECTION_CLOSE though streams are open", "connection-close-with-a-stream-open"
    CLOSING_SERVED = (
        "it serves requests after CONNECTION_CLOSE",
        "connection-close-and-new-requests",
        {Rule.CLOSING: SERVE},
    )
    FORGET_REJECTED = (
        "it rejects a fire-and-forget after CONNECTION_CLOSE",
        "connection-close-and-new-requests",
        {Rule.FORGET_WHEN_CLOSING: Reaction(Act.REFUSE, REJECTED)},
    )
    REQUESTER_ERROR_SKIPPED = "it skips ERROR of the requester of a channel", "channel-failed-by-its-requester"
    REQUESTER_CODE_CHECKED = (
        "it skips ERROR of a requester with a code that is no stream's",
        "channel-failed-with-code-0x301",
    )
    REQUESTER_ERROR_ENDS = "it ends for ERROR of a requester", "channel-failed-beside-another"

    # Ids
    IDS_ONCE = "it skips requests with an id that was used before", "ids-again-after-the-end"
    IDS_IN_ORDER = "it skips requests with an id below the last one", "ids-out-of-order"
    IDS_OF_16_BITS = "it answers on ids of 16 bits", "ids-the-largest"
    IDS_WITHOUT_GAPS = "it skips requests whose id leaves out others", "ids-with-gaps"

    # Credit
    COUNTS_FROM_1 = "its streams begin with the second item", "stream-of-one-item"
    HUNDRED_ITEMS = "its streams end after 100 items", "stream-of-300-items"
    EMPTY_STREAM_OPEN = "it does not complete a stream without items", "stream-without-items"
    COMPLETE_NEEDS_CREDIT = "COMPLETE of its streams waits for credit", "stream-that-uses-up-its-credit"
    METADATA_STOPS_STREAM = "it fails streams with metadata", "stream-with-metadata"
    LARGE_NUMBER_IS_NONE = "it takes the largest number of items for none", "credit-of-the-largest-number"
    CREDIT_CAPPED = "it holds credit to 2 items", "stream-within-its-credit"
    CREDIT_REPLACED = "REQUEST_N takes the place of what is left", "credit-that-is-not-used-adds-up"
    CREDIT_SHARED = "it adds credit to its first stream", "credit-of-two-streams"
    CREDITLESS_STREAMS_END = "it ends streams that have no credit", "stream-without-credit-stays"

    # Leases
    LEASE_ONCE = "it grants one lease and no other", "lease-is-granted-again"
    LEASE_UNASKED = "it grants leases to who asks for none", "lease-is-not-granted-unasked"
    LEASE_ON_STREAM_1 = "its LEASE is on stream 1", "lease-is-granted"
    LEASE_SERVES_TWO = "it serves 2 of 3 requests of a lease", "lease-serves-as-many-requests-as-it-says"
    LEASE_NOT_KEPT = "it serves requests beyond a lease", "lease-beyond-its-number"
    LEASE_BEYOND_ENDS = "it ends for a request beyond a lease", "lease-beyond-its-number-at-once"
    LEASE_FREE_STREAMS = "streams take no permit", "lease-beyond-its-number-by-a-stream"
    LEASE_FREE_CHANNELS = "channels take no permit", "lease-beyond-its-number-by-a-channel"
    LEASE_FORGET_REJECTED = "it answers a fire-and-forget beyond a lease", "lease-beyond-its-number-by-a-forget"
    LEASE_FREE_FORGETS = "fire-and-forget takes no permit", "lease-counts-each-interaction"
    LEASE_COUNTS_FRAGMENTS = "each fragment takes a permit", "lease-counts-a-request-in-fragments-once"
    LEASE_COUNTS_CREDIT = "REQUEST_N takes a permit", "lease-counts-no-credit-and-no-items"
    LEASE_COUNTS_PUSHES = "METADATA_PUSH takes a permit", "lease-counts-no-frames-of-the-connection"
    LEASE_WITHOUT_END = "its leases do not end by time", "lease-is-over-after-its-time"
    LEASE_ENDS_STREAMS = "credit comes too late after a lease", "lease-that-is-over-lets-streams-go-on"
    LEASES_ADD_UP = "permits that were not used stay", "lease-that-is-over-is-not-added-to-the-next"
    LEASE_NEVER_FORGIVES = "it rejects every request after one beyond a lease", "lease-after-a-rejection"
    LEASE_OF_CLIENT_ENDS = "it ends for a LEASE of the client", "lease-of-the-client"
    LEASE_METADATA_ENDS = "it ends for a LEASE with metadata", "lease-of-the-client-with-metadata"

    # Cancellation
    CANCEL_SKIPPED = "CANCEL has no effect", "stream-cancelled"
    CANCEL_ANSWERED = "it answers CANCEL with ERROR", "request-cancelled"
    CANCEL_COMPLETED = "it answers CANCEL with COMPLETE", "request-cancelled-at-once"
    CANCEL_ENDS_ALL = "CANCEL ends every stream", "stream-cancelled-beside-another"
    CANCEL_ENDS_CONNECTION = "CANCEL of a request/response ends the connection", "request-cancelled-beside-others"
    CANCEL_TWICE_ENDS = "it ends for a second CANCEL", "request-cancelled-twice", {Rule.CANCEL_PAST: CLOSE}

    # Channels
    NOTHING_GRANTED = "it grants nothing to a channel's requester", "channel-is-granted-credit"
    NOTHING_GRANTED_ANEW = "it does not grant anew", "channel-is-granted-more-as-it-goes"
    GRANTS_LATE = "it takes no item in the read that opens the channel", "channel-with-an-item-ahead-of-its-grant"
    CHANNEL_WITHOUT_CREDIT = "its channels send more than was granted", "channel-keeps-to-its-credit"
    CHANNEL_METADATA_LOST = "its channels drop metadata", "channel-with-metadata"
    EMPTY_ITEMS_LOST = "its channels drop empty items", "channel-with-empty-items"
    OPENING_COMPLETE_SKIPPED = "it does not see that a channel opens complete", "channel-completed-as-it-opens"
    COMPLETE_SKIPPED = "its channels do not complete", "channel-completed-by-its-requester"
    LAST_ITEM_LOST = "it drops an item that completes", "channel-completed-with-its-last-item"
    LATE_ITEMS_SENT_BACK = "it sends back items behind COMPLETE", "channel-items-behind-its-completion"
    COMPLETE_DROPS_ITEMS = "COMPLETE drops what waits for credit", "channel-items-that-wait-behind-completion-in-one"
    COMPLETE_KEEPS_ONE_GRANT = (
        "behind COMPLETE one more grant counts, and what waits for others is dropped",
        "channel-items-that-wait-behind-completion-in-two",
    )
    COMPLETE_KEEPS_TWO_GRANTS = (
        "behind COMPLETE two more grants count, and what waits for others is dropped",
        "channel-items-that-wait-behind-completion-in-three",
    )
    CANCEL_KEEPS_ITEMS = "items that wait outlive CANCEL", "channel-items-that-wait-end-with-cancel"
    ERROR_KEEPS_ITEMS = "items that wait outlive ERROR of the requester", "channel-items-that-wait-end-with-error"
    CANCEL_DROPS_ITEMS_OF_ALL = (
        "CANCEL drops the items that wait on every channel",
        "channel-items-that-wait-beside-cancel",
    )
    ERROR_DROPS_ITEMS_OF_ALL = (
        "ERROR drops the items that wait on every channel",
        "channel-items-that-wait-beside-error",
    )
    COMPLETE_OF_CHANNEL_NEEDS_CREDIT = (
        "COMPLETE of its channels waits for one more credit",
        "channel-that-uses-up-its-credit",
    )
    CONTENT_OF_COMPLETE = "it takes the content of a COMPLETE for an item", "payload-that-completes-with-content"

    # Fragments
    FRAGMENTS_MIXED = "it gives fragments to the oldest request", "fragments-of-three-requests"
    FRAGMENTS_LIMITED = "it joins 50 fragments at most", "request-in-100-fragments"
    JOINED_LIMITED = "it joins 500,000 bytes at most", "payload-of-1-mib-in-fragments"
    LATER_METADATA_LOST = "it drops the metadata of later fragments", "fragments-with-metadata-in-several"
    EMPTY_METADATA_LOST = "it drops empty metadata of fragments", "fragments-with-empty-metadata"
    FRAGMENT_NEEDS_NEXT = "it skips fragments without N", "fragments-without-next"
    EMPTY_FRAGMENT_ENDS = "an empty fragment is the last one for it", "fragments-that-are-empty"
    FRAGMENTS_SENT_BACK = "its channels send each fragment back", "fragments-of-an-item"
    COMPLETE_IN_FRAGMENTS_SKIPPED = "it skips C on fragments of a request", "fragments-that-complete-a-channel"
    FOLLOWS_OUTWEIGHS_COMPLETE = "it waits for more behind F and C", "channel-with-follows-and-complete"
    FRAGMENTS_ALONE = "it drops fragments when another frame comes", "requests-amid-fragments"
    FRAGMENTS_NOT_CANCELLED = "CANCEL and ERROR do not end an unfinished request", "cancel-amid-fragments-of-a-stream"
    CREDIT_LOST_AMID_FRAGMENTS = "it skips REQUEST_N amid fragments", "credit-amid-fragments"
    FORGET_FRAGMENTS_ANSWERED = "it answers a fire-and-forget in fragments", "forget-in-fragments"

    # Resumption
    NOTHING_SENT_AGAIN = "it sends nothing again", "resume-with-an-answer-lost"
    LAST_SENT_AGAIN = "it sends the last lost frame again alone", "resume-a-stream-whose-items-were-lost"
    SENT_AGAIN_BACKWARDS = "it sends lost frames again from the last one on", "resume-two-streams"
    ALL_SENT_AGAIN = "it sends all frames again", "resume-with-an-answer-taken"
    STREAMS_END_WITH_THEIR_CONNECTION = "it forgets the streams of a session", "resume-a-stream"
    SESSIONS_END_WITH_THEIR_CONNECTION = "it forgets a session with its connection", "resume-with-nothing-lost"
    SESSIONS_OF_1_SECOND = "it forgets a session after a second", "resume-after-a-while"
    RESUMED_ONCE = "it resumes a session once", "resume-three-times"
    OLD_CONNECTION_STAYS = "it leaves the old connection of a session open", "resume-of-a-connection-that-lives"
    RESUME_OK_OF_0 = "it says 0 in RESUME_OK", "counting-a-fire-and-forget"
    ALL_FRAMES_COUNT = "it counts frames of all types", "counting-keepalive-without-r"
    LENGTHS_COUNT = "it counts the lengths of frames", "counting-cancel"
    PARTS_COUNT = "it counts the part of a frame that came", "resume-behind-a-request-cut-short"
    CANCELS_FORGOTTEN = "cancelled streams go on in a resumed session", "resume-a-cancelled-stream"
    KEEPALIVE_SAYS_NOTHING = "it says 0 in KEEPALIVE", "keepalive-says-how-far-the-server-got"
    KEEPALIVE_CONFIRMS_ALL = "any KEEPALIVE confirms all it has sent", "keepalive-confirms-a-part"
    TOKENS_OF_1_KIB = "it refuses tokens above 1 KiB", "resume-with-a-long-token-of-its-session"
    TOKENS_FOR_EVER = "it never takes a token again", "token-of-a-session-that-is-over"
    ENDED_SESSIONS_RESUMED = "it resumes what the client has ended", "resume-behind-a-client-that-closes"
    REFUSALS_END_SESSIONS = "each refusal ends its session", "resume-from-before-a-keepalive"
    REFUSALS_END_NOTHING = "no refusal ends its session", "resume-behind-a-refusal"
    TOKENS_SHARED = (
        "it takes a token that is in use",
        "token-in-use",
        {Rule.TOKEN_IN_USE: SERVE},
    )
    RESUMED_FROM_BEFORE = (
        "it resumes from before what was confirmed, as far as it can",
        "resume-from-before-a-resume",
        {Rule.RESUMES_FROM_BEFORE: SERVE},
    )
    RESUMED_FROM_BEYOND = (
        "it resumes from beyond what it has sent",
        "resume-from-far-beyond",
        {Rule.RESUMES_FROM_BEYOND: SERVE},
    )
    RESUMED_AMID_A_FRAME = (
        "it resumes from amid a frame",
        "resume-from-amid-a-frame",
        {Rule.RESUMES_AMID_A_FRAME: SERVE},
    )
    RESUMED_WITH_A_GAP = (
        "it resumes although frames of the client are lost",
        "resume-with-a-gap",
        {Rule.RESUMES_WITH_A_GAP: SERVE},
    )
    RESUMED_WITH_THE_GONE = (
        "it resumes although the client keeps too much",
        "resume-with-what-is-not-kept-any-more",
        {Rule.RESUMES_WITH_THE_GONE: SERVE},
    )

    def __init__(
        self, fault: str, caught_by: str, rules: Mapping[Rule, Reaction] = NO_RULES, mild: bool = False
    ) -> None:
        self.fault = fault
        self.caught_by = caught_by
        self.rules = rules
        self.mild = mild

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


GENERAL: Final = frozenset(
    {
        Switch.SAYS_NOTHING,
        Switch.CLOSES_AT_ONCE,
        Switch.TALKS_NONSENSE,
        Switch.GARBAGE,
        Switch.NO_KEEPALIVE,
        Switch.LENGTH_COUNTS_ITSELF,
        Switch.FLOODS,
        Switch.ENDS_BY_ITSELF,
        Switch.KEEPALIVE_FORGETS_DATA,
        Switch.KEEPALIVE_ASKS_BACK,
        Switch.KEEPALIVE_WITHOUT_POSITION,
    }
)
"""Faults that break nearly every case, so that none is shown to catch anything by them."""


@attrs.frozen
class Frame:
    """A frame with a whole header."""

    stream_id: int
    type: int
    flags: int
    body: bytes

    @property
    def excused(self) -> bool:
        """Return whether the peer says that the frame may be skipped."""
        return bool(self.flags & I)


@attrs.frozen
class Item:
    """A payload."""

    metadata: bytes | None
    data: bytes

    def __add__(self, more: Item) -> Item:
        """Return what two fragments are together."""
        parts = [part for part in (self.metadata, more.metadata) if part is not None]
        return Item(b"".join(parts) if parts else None, self.data + more.data)


@attrs.define(eq=False)
class Stream:
    """A stream that the client opened."""

    id: int
    type: int
    room: int
    """Items that the client granted and that were not sent yet."""
    request: Item
    joining: bool
    """True if fragments of the request are still to come."""
    completed: bool = False
    """True if a channel's requester has completed."""
    pieces: int = 0
    """Fragments that were joined to others."""
    sent: int = 0
    total: float = math.inf
    waiting: list[Item] = attrs.field(factory=list)
    """Items of a channel that are to be sent back."""
    part: Item | None = None
    """An item of a channel whose last fragment did not come yet."""
    granted: int = 0
    """Items that the client may still send."""
    served: int = 0
    """Items that were sent back and are to be granted anew."""
    grants: int = 0
    """Grants that came behind the requester's COMPLETE."""


class Dropped(Exception):
    """The frame has no effect any more."""


class Over(Exception):
    """The connection is to be closed."""


class Died(Exception):
    """The connection broke off."""


LENGTHS: Final = {
    KEEPALIVE: (8, Rule.KEEPALIVE_CUT_SHORT),
    LEASE: (8, Rule.LEASE_CUT_SHORT),
    REQUEST_STREAM: (4, Rule.STREAM_CUT_SHORT),
    REQUEST_CHANNEL: (4, Rule.CHANNEL_CUT_SHORT),
    REQUEST_N: (4, Rule.REQUEST_N_CUT_SHORT),
    ERROR: (4, Rule.ERROR_CUT_SHORT),
    EXT: (4, Rule.EXT_CUT_SHORT),
    RESUME_OK: (8, Rule.RESUME_OK_CUT_SHORT),
}
"""The bytes that the fixed fields of a type take, and what it is when they are not there."""
MEANINGS: Final = {
    KEEPALIVE: I | R,
    REQUEST_RESPONSE: I | M | F,
    REQUEST_FNF: I | M | F,
    REQUEST_STREAM: I | M | F,
    REQUEST_CHANNEL: I | M | F | C,
    REQUEST_N: I,
}
"""The flags that mean something."""


UNUSED: Final = {
    LEASE: 0x0FF,
    KEEPALIVE: 0x17F,
    REQUEST_N: 0x1FF,
    PAYLOAD: 0x01F,
    ERROR: 0x1FF,
    RESUME_OK: 0x1FF,
}
"""The flags that mean nothing in what a server sends."""
WITH_RESERVED_BIT: Final = (LEASE, KEEPALIVE, REQUEST_N)
"""The types whose first field has a reserved bit."""


COUNTED: Final = (*REQUESTS, REQUEST_N, CANCEL, PAYLOAD, ERROR)
"""The types whose frames count for positions, on streams."""
ENDING: Final = (Rule.RESUMES_FROM_BEYOND, Rule.RESUMES_AMID_A_FRAME, Rule.RESUMES_WITH_A_GAP)
"""The situations that end a session whose client waits for it."""


@attrs.define(eq=False)
class Book:
    """The sessions that can be resumed, by their tokens."""

    sessions: dict[bytes, Session] = attrs.field(factory=dict)
    used: set[bytes] = attrs.field(factory=set)


class Session:
    """The server's side of a connection, or of a session with a token: it takes frames, and ``out`` is what it sends.

    Without a book nothing can be resumed.
    """

    def __init__(self, switch: Switch | None, book: Book | None = None, *, leases: bool = False) -> None:
        self._switch = switch
        self._book = book
        self._token: bytes | None = None
        self._said: list[bytes] = []
        self._kept: list[bytes] = []
        self._first = 0
        self._received = 0
        self._confirmed = 0
        self._client_keeps_from = 0
        self._times = 0
        self._left_at = math.inf
        self._cancelled: dict[int, Stream] = {}
        self._leases = leases
        self._permits = 0
        self._lease_end = math.inf
        self._rejected = False
        self._accepted = False
        self._closing = False
        self._streams: dict[int, Stream] = {}
        self._past: set[int] = set()
        self._counts: Counter[int] = Counter()
        self._skipped = 0
        self._highest = -1
        self._answered = False
        self._handlers: Mapping[int, Callable[[Frame], None]] = {
            SETUP: self._second_setup,
            LEASE: self._lease,
            KEEPALIVE: self._keepalive,
            **dict.fromkeys(REQUESTS, self._request),
            REQUEST_N: self._request_n,
            CANCEL: self._cancel,
            PAYLOAD: self._payload,
            ERROR: self._error,
            METADATA_PUSH: self._metadata_push,
            RESUME: self._later_resume,
            RESUME_OK: self._resume_ok,
            EXT: self._ext,
        }
        self.lifetime = math.inf
        self.next_lease = math.inf
        """The time at which the next lease is granted, infinite without leases."""
        self.hangs = False
        self.out: list[bytes] = []
        self.carrier: trio.SocketStream | None = None
        """The connection that it has."""
        self.taken_over: Session | None = None
        """The session that its first frame resumes."""

    def receive(self, data: bytes) -> None:
        """Take one frame. Raise ``Over`` if the connection is to be closed then."""
        if self._has(Switch.FRAMES_OF_500_KB) and len(data) > 500_000:
            return
        try:
            if self._accepted:
                self._received += self._length_of(data)
                self._count(self._read(data))
                self._serve(self._checked(self._read(data)))
            else:
                self._begin(self._read(data))
        except Dropped:
            pass

    def _count(self, frame: Frame) -> None:
        """Keep the counts that some faults are about, and react to frames as these do."""
        self._counts[frame.type] += 1
        limits = {
            Switch.FEW_FORGETS: REQUEST_FNF,
            Switch.FEW_KEEPALIVES: KEEPALIVE,
            Switch.FEW_GRANTS: REQUEST_N,
        }
        if self._switch in limits and self._counts[limits[self._switch]] > 500:
            self.fail(CONNECTION_ERROR)
        if self._has(Switch.FRAGMENTS_ALONE) and frame.type not in (PAYLOAD, KEEPALIVE):
            for stream in [one for one in self._streams.values() if one.joining and one.id != frame.stream_id]:
                self._end(stream.id)

    def expire(self) -> NoReturn:
        """End the connection of a client that is silent. Raise ``Over``."""
        if self._has(Switch.SPEAKS_UNASKED) and self._accepted:
            self._send(PAYLOAD, N, 201, b"hello?")
            raise Dropped
        self.fail(CONNECTION_ERROR)

    def settle(self) -> None:
        """Grant again what was served, once everything that came together was taken."""
        self._answered = False
        for stream in self._streams.values():
            if stream.served and not self._has(Switch.NOTHING_GRANTED_ANEW):
                stream.granted += stream.served
                self._send(REQUEST_N, 0, stream.id, stream.served.to_bytes(4, "big"))
                stream.served = 0

    def fail(self, code: int) -> NoReturn:
        """Send an ERROR of the connection and end it. Raise ``Over``."""
        if self._has(Switch.NO_WORD_BEFORE_THE_END):
            raise Over
        number = code.to_bytes(4, "little" if self._has(Switch.LITTLE_ENDIAN_CODE) else "big")
        body = b"" if self._has(Switch.ERROR_WITHOUT_CODE) else number + b"no"
        for _ in range(2 if self._has(Switch.TWO_ERRORS) else 1):
            self._send(ERROR, 0, 1 if self._has(Switch.ERROR_ON_A_STREAM) else 0, body)
        if self._has(Switch.SPEAKS_AFTER_ERROR):
            self._send(LEASE, 0, 0, bytes(8))
        if self._has(Switch.STAYS_AFTER_ERROR):
            raise Dropped
        if self._has(Switch.SERVES_AFTER_ERROR):
            self._accepted = True
            raise Dropped
        raise Over

    # Resumption

    def _length_of(self, data: bytes) -> int:
        """Return by how much a frame that came moves the position."""
        counts = len(data) >= 6 and data[4] >> 2 in COUNTED and data[:4] != bytes(4)
        return (len(data) + 3 * self._has(Switch.LENGTHS_COUNT)) * (counts or self._has(Switch.ALL_FRAMES_COUNT))

    def _claim(self, token: bytes, book: Book) -> None:
        """Begin a session with this token."""
        if self._has(Switch.TOKENS_OF_1_KIB) and len(token) > 1024:
            self.fail(REJECTED_SETUP)
        if token in (book.used if self._has(Switch.TOKENS_FOR_EVER) else book.sessions):
            self._meet(Rule.TOKEN_IN_USE)
        self._token = token
        book.sessions[token] = self
        book.used.add(token)

    def forget(self) -> None:
        """Let nobody resume it."""
        if self._book is not None and self._token is not None and self._book.sessions.get(self._token) is self:
            del self._book.sessions[self._token]

    def part(self, rest: bytes) -> None:
        """Take note of the end of its connection, which brought this part of a frame last."""
        self.carrier, self._left_at = None, trio.current_time()
        if self._has(Switch.PARTS_COUNT):
            self._received += max(0, len(rest) - 3)
        if self._has(Switch.SESSIONS_END_WITH_THEIR_CONNECTION):
            self.forget()

    def _resume(self, body: bytes) -> None:
        """Take over the session that a RESUME names, or refuse it."""
        end = 6 + int.from_bytes(body[4:6], "big")
        received, keeps_from = struct.unpack_from(">QQ", body, end)
        session = self._book.sessions.get(body[6:end]) if self._book is not None else None
        if session is not None and (
            (self._has(Switch.RESUMED_ONCE) and session._times)
            or (self._has(Switch.SESSIONS_OF_1_SECOND) and trio.current_time() > session._left_at + 1)
        ):
            session = None
        if session is None:
            self._meet(Rule.RESUMES)
            return
        rule = session._objection(received, keeps_from)
        if rule is not None:
            ends = rule in ENDING and session.carrier is None and not self._has(Switch.REFUSALS_END_NOTHING)
            if ends or self._has(Switch.REFUSALS_END_SESSIONS):
                session.forget()
            self._meet(rule)
        session._go_on(received, keeps_from)
        self.taken_over = session

    def _objection(self, received: int, keeps_from: int) -> Rule | None:
        """Return what keeps a client from going on from these positions."""
        if received < self._confirmed:
            return Rule.RESUMES_FROM_BEFORE
        if keeps_from < self._client_keeps_from:
            return Rule.RESUMES_WITH_THE_GONE
        if received > max(self._starts()):
            return Rule.RESUMES_FROM_BEYOND
        if received not in self._starts():
            return Rule.RESUMES_AMID_A_FRAME
        return Rule.RESUMES_WITH_A_GAP if keeps_from > self._received else None

    def _starts(self) -> list[int]:
        """Return where the frames begin that are kept, and where the next one will."""
        return list(accumulate(map(len, self._kept), initial=self._first))

    def _confirm(self, position: int) -> None:
        """Keep nothing any more in front of this position, if a frame begins there."""
        if position in self._starts():
            while self._first < position:
                self._first += len(self._kept.pop(0))
            self._confirmed = position

    def _go_on(self, received: int, keeps_from: int) -> None:
        """Say that the session goes on, and send again what was lost."""
        self._confirm(received)
        self._client_keeps_from = keeps_from
        self._times += 1
        again = list(self._said if self._has(Switch.ALL_SENT_AGAIN) else self._kept)
        if self._has(Switch.NOTHING_SENT_AGAIN):
            again = []
        elif self._has(Switch.LAST_SENT_AGAIN):
            del again[:-1]
        elif self._has(Switch.SENT_AGAIN_BACKWARDS):
            again.reverse()
        if self._has(Switch.STREAMS_END_WITH_THEIR_CONNECTION):
            self._streams.clear()
        elif self._has(Switch.CANCELS_FORGOTTEN):
            self._streams |= self._cancelled
        position = 0 if self._has(Switch.RESUME_OK_OF_0) else self._received
        self.out.clear()
        self._send(RESUME_OK, 0, 0, position.to_bytes(8, "big"))
        self.out += again

    # Rules

    def _has(self, switch: Switch) -> bool:
        return self._switch is switch

    def _reaction(self, rule: Rule) -> Reaction:
        """Return what the server does in a situation."""
        return rule.right if self._switch is None else self._switch.rules.get(rule, rule.right)

    def _meet(self, rule: Rule, stream_id: int = 0) -> None:
        """React as the rule says. Raise ``Dropped`` or ``Over`` unless the frame is to be served."""
        reaction = self._reaction(rule)
        if reaction.act is Act.SERVE:
            return
        if reaction.act is Act.FAIL:
            self.fail(reaction.code)
        if reaction.act is Act.CLOSE:
            raise Over
        if reaction.act is Act.REFUSE:
            self._refuse(stream_id, reaction.code)
        self._skipped += 1
        if self._has(Switch.NONSENSE_COUNTED) and self._skipped > 30:
            self.fail(CONNECTION_ERROR)
        raise Dropped

    def _refuse(self, stream_id: int, code: int) -> None:
        """End a stream by ERROR."""
        self._send(ERROR, 0, stream_id, code.to_bytes(4, "big") + b"no")
        self._end(stream_id)

    def _end(self, stream_id: int) -> None:
        if self._streams.pop(stream_id, None) is not None:
            self._past.add(stream_id)

    # Frames out

    def _send(self, kind: int, flags: int, stream_id: int, body: bytes = b"") -> None:
        if self._has(Switch.UNUSED_BITS_SET):
            flags |= UNUSED.get(kind, 0)
            body = bytes([body[0] | 0x80]) + body[1:] if kind in WITH_RESERVED_BIT else body
        self.out.append(struct.pack(">IH", stream_id, kind << 10 | flags) + body)
        if self._token is not None and kind in COUNTED and stream_id:
            self._kept.append(self.out[-1])
            self._said.append(self.out[-1])

    def _send_payload(self, stream_id: int, flags: int, item: Item) -> None:
        metadata = item.metadata
        if self._has(Switch.STREAM_0_USED):
            stream_id = 0
        elif self._has(Switch.NEXT_ID_USED):
            stream_id += 2
        dropped = self._has(Switch.EMPTY_METADATA_DROPPED) and not metadata
        if self._has(Switch.IDS_OF_16_BITS):
            stream_id &= 0xFFFF
        if self._has(Switch.METADATA_ALONE_LOST) and not item.data:
            metadata = None
        if metadata is None or dropped or self._has(Switch.METADATA_NOT_ECHOED):
            body = b""
        else:
            body = len(metadata).to_bytes(3, "big") + metadata
            flags |= 0 if self._has(Switch.METADATA_WITHOUT_FLAG) else M
        data = b"" if self._has(Switch.DATA_LOST) else item.data
        if self._has(Switch.DATA_IS_TEXT):
            data = as_text(data)
        self._send(PAYLOAD, flags, stream_id, body + data)

    # Frames in

    def _read(self, data: bytes) -> Frame:
        """Return the frame with its header read, the reserved bit of the stream id left out."""
        if len(data) < 6:
            self._meet(Rule.SHORTER_THAN_A_HEADER if self._accepted else Rule.FIRST_IS_SHORT)
            raise Dropped
        stream_id, word = struct.unpack_from(">IH", data)
        frame = Frame(stream_id & UINT31, word >> 10, word & 0x3FF, data[6:])
        if stream_id > UINT31:
            later = Rule.RESERVED_BIT_WITH_I if frame.excused else Rule.RESERVED_BIT
            self._meet(later if self._accepted else Rule.FIRST_HAS_RESERVED_BIT)
        return frame

    def _checked(self, frame: Frame) -> Frame:
        """Return a frame of a known type with all its fixed fields."""
        if frame.type not in self._handlers:
            if frame.excused:
                self._meet(Rule.UNKNOWN_TYPE_WITH_I)
            self._meet(Rule.UNKNOWN_TYPE if frame.type else Rule.TYPE_0)
            raise Dropped
        length, rule = LENGTHS.get(frame.type, (0, Rule.KEEPALIVE_CUT_SHORT))
        if len(frame.body) < length:
            self._meet(Rule.MALFORMED_WITH_I if frame.excused else rule, frame.stream_id)
            frame = attrs.evolve(frame, body=frame.body.ljust(length, b"\0"))
        if frame.type in WITH_METADATA and frame.type != SETUP:
            self._payload_of(frame)
        return frame

    def _payload_of(self, frame: Frame) -> Item:
        """Return the metadata and data behind the fixed fields."""
        rest = frame.body[LENGTHS.get(frame.type, (0,))[0] :]
        if not frame.flags & M:
            return Item(None, rest)
        if len(rest) < 3:
            self._meet(Rule.MALFORMED_WITH_I if frame.excused else Rule.METADATA_LENGTH_SHORT, frame.stream_id)
            return Item(None, rest)
        end = 3 + (rest[2] if self._has(Switch.METADATA_LENGTH_OF_8_BITS) else int.from_bytes(rest[:3], "big"))
        if end > len(rest):
            rule = Rule.METADATA_TOO_LONG_WITH_I if frame.excused else Rule.METADATA_TOO_LONG
            self._meet(rule, frame.stream_id)
        return Item(rest[3:end], rest[end:])

    def _serve(self, frame: Frame) -> None:
        if frame.flags & ~MEANINGS.get(frame.type, -1) and frame.type in REQUESTS:
            self._meet(Rule.REQUEST_SPARE_FLAGS, frame.stream_id)
        self._handlers[frame.type](frame)

    # The first frame

    def _begin(self, frame: Frame) -> None:
        if frame.type == SETUP:
            self._setup(frame)
        elif frame.type == RESUME:
            self._first_resume(frame)
        elif frame.type in REQUESTS:
            self._meet(Rule.FIRST_IS_A_REQUEST)
        elif frame.type in self._handlers and frame.type != EXT:
            self._meet(Rule.FIRST_IS_ANOTHER)
        else:
            self._meet(Rule.FIRST_IS_UNKNOWN_WITH_I if frame.excused else Rule.FIRST_IS_UNKNOWN)
        self._accepted = True
        if frame.type in REQUESTS:
            self._serve(frame)

    def _setup(self, frame: Frame) -> None:
        """Return if the SETUP is accepted."""
        if frame.stream_id:
            self._meet(Rule.SETUP_ON_A_STREAM)
        if frame.excused:
            self._meet(Rule.SETUP_WITH_I)
        if frame.flags & ~(I | M | R | L):
            self._meet(Rule.SETUP_WITH_SPARE_FLAGS)
        if len(frame.body) < 12:
            self._meet(Rule.SETUP_CUT_SHORT_WITH_I if frame.excused else Rule.SETUP_CUT_SHORT)
            return
        self._take_terms(frame.body)
        self._take_rest_of_setup(frame)
        if frame.flags & L and not self._leases:
            self._meet(Rule.ASKS_FOR_LEASES)
        elif self._leases and (frame.flags & L or self._has(Switch.LEASE_UNASKED)):
            self.grant()
        if self._has(Switch.TALKS_NONSENSE):
            self.out.append(b"HTTP/1.1 400 Bad Request\r\n\r\n<html>no</html>")
        elif self._has(Switch.GARBAGE):
            self.out += [b"\xa7\x1c\x99\x02\xff\xfe\x00\x7b", b"\x31\x41\x59\x26\x53\x58\x97"]

    def _take_terms(self, body: bytes) -> None:
        major, minor, interval, lifetime = struct.unpack_from(">HHII", body)
        if major != VERSION >> 16:
            self._meet(Rule.OTHER_MAJOR_VERSION)
        elif minor:
            self._meet(Rule.OTHER_MINOR_VERSION)
        if not interval & UINT31:
            self._meet(Rule.NO_INTERVAL)
        if not lifetime:
            self._meet(Rule.NO_LIFETIME)
        elif not lifetime & UINT31:
            self._meet(Rule.LIFETIME_RESERVED_BIT)
        if self._has(Switch.TIMES_LIMITED) and lifetime > 86_400_000:
            self.fail(INVALID_SETUP)
        if self._has(Switch.SHORT_INTERVAL_REFUSED) and interval < 10:
            self.fail(UNSUPPORTED_SETUP)
        if self._has(Switch.INTERVAL_BELOW_LIFETIME) and interval > lifetime:
            self.fail(INVALID_SETUP)
        self.lifetime = (lifetime & UINT31 or math.inf) / 1000
        if self._has(Switch.NO_END_OF_LIFE):
            self.lifetime = math.inf
        elif self._has(Switch.LIFE_OF_1_SECOND):
            self.lifetime = 1
        elif self._has(Switch.LIFE_OF_INTERVAL):
            self.lifetime = interval / 1000

    def _take_rest_of_setup(self, frame: Frame) -> None:
        """Check the token, the MIME types and the metadata."""
        rest = frame.body[12:]
        if self._has(Switch.SETUP_OF_1_KIB) and len(rest) > 1024:
            self.fail(UNSUPPORTED_SETUP)
        if self._has(Switch.SETUP_METADATA_REFUSED) and frame.flags & M:
            self.fail(UNSUPPORTED_SETUP)
        token: bytes | None = None
        if frame.flags & R:
            end = 2 + int.from_bytes(rest[:2], "big")
            if len(rest) < max(end, 2):
                self._meet(Rule.TOKEN_CUT_SHORT)
                return
            token, rest = rest[2:end], rest[end:]
        for _ in range(2):
            if not rest or len(rest) <= rest[0]:
                self._meet(Rule.MIME_CUT_SHORT)
                return
            mime, rest = rest[1 : 1 + rest[0]], rest[1 + rest[0] :]
            if not mime.isascii():
                self._meet(Rule.MIME_IS_NO_TEXT)
            if (
                (self._has(Switch.MIME_NEEDED) and not mime)
                or (self._has(Switch.MIME_OF_127_BYTES) and len(mime) > 127)
                or (self._has(Switch.MIME_REGISTERED) and mime.startswith(b"message/"))
            ):
                self.fail(INVALID_SETUP)
        if self._has(Switch.SETUP_DATA_REFUSED) and rest and not frame.flags & M:
            self.fail(INVALID_SETUP)
        if frame.flags & M and (len(rest) < 3 or len(rest) - 3 < int.from_bytes(rest[:3], "big")):
            self._meet(Rule.SETUP_METADATA_WITH_I if frame.excused else Rule.SETUP_METADATA)
        if token is not None and self._book is not None:
            self._claim(token, self._book)
        elif token is not None:
            self._meet(Rule.HAS_A_TOKEN if token else Rule.HAS_AN_EMPTY_TOKEN)

    def _first_resume(self, frame: Frame) -> None:
        if frame.stream_id:
            self._meet(Rule.RESUME_ON_A_STREAM)
        if not whole_resume(frame.body):
            self._meet(Rule.FIRST_RESUME_CUT_SHORT)
        elif int.from_bytes(frame.body[:4], "big") != VERSION:
            self._meet(Rule.RESUMES_OTHER_VERSION)
        else:
            self._resume(frame.body)

    # Later frames of the connection

    def _second_setup(self, frame: Frame) -> None:
        if len(frame.body) < 12:
            self._meet(Rule.MALFORMED_WITH_I if frame.excused else Rule.LATER_SETUP_CUT_SHORT)
        if frame.stream_id:
            self._meet(Rule.LATER_SETUP_ON_A_STREAM)
        self._meet(Rule.SECOND_SETUP)
        self._take_terms(frame.body)

    def _later_resume(self, frame: Frame) -> None:
        if not whole_resume(frame.body):
            self._meet(Rule.MALFORMED_WITH_I if frame.excused else Rule.LATER_RESUME_CUT_SHORT)
        self._meet(Rule.LATER_RESUME_ON_A_STREAM if frame.stream_id else Rule.LATER_RESUME)

    def _resume_ok(self, frame: Frame) -> None:
        self._meet(Rule.LATE_RESUME_OK)

    def grant(self) -> None:
        """Grant a lease, and note when the next one is due."""
        now = trio.current_time()
        self._permits = LEASE_REQUESTS + (self._permits if self._has(Switch.LEASES_ADD_UP) else 0)
        self._lease_end = now + LEASE_TIME
        self.next_lease = math.inf if self._has(Switch.LEASE_ONCE) else now + LEASES_EVERY
        terms = struct.pack(">II", int(LEASE_TIME * 1000), LEASE_REQUESTS)
        self._send(LEASE, 0, 1 if self._has(Switch.LEASE_ON_STREAM_1) else 0, terms)

    def _take_permit(self, kind: int, stream_id: int) -> None:
        """Take a permit of the lease for a request. Raise ``Dropped`` if there is none."""
        free = {
            Switch.LEASE_FREE_STREAMS: REQUEST_STREAM,
            Switch.LEASE_FREE_CHANNELS: REQUEST_CHANNEL,
            Switch.LEASE_FREE_FORGETS: REQUEST_FNF,
        }
        if self._lease_end == math.inf or self._has(Switch.LEASE_NOT_KEPT):
            return
        if self._switch in free and free[self._switch] == kind:
            return
        is_over = trio.current_time() >= self._lease_end and not self._has(Switch.LEASE_WITHOUT_END)
        beyond = self._permits <= (1 if self._has(Switch.LEASE_SERVES_TWO) else 0)
        if is_over or beyond or (self._has(Switch.LEASE_NEVER_FORGIVES) and self._rejected):
            self._rejected = True
            if self._has(Switch.LEASE_BEYOND_ENDS):
                self.fail(CONNECTION_ERROR)
            if kind != REQUEST_FNF or self._has(Switch.LEASE_FORGET_REJECTED):
                self._refuse(stream_id, REJECTED)
            raise Dropped
        self._permits -= 1

    def _lease(self, frame: Frame) -> None:
        if self._lease_end < math.inf and not frame.stream_id:
            if self._has(Switch.LEASE_OF_CLIENT_ENDS) or (self._has(Switch.LEASE_METADATA_ENDS) and frame.flags & M):
                self.fail(CONNECTION_ERROR)
            return
        self._meet(Rule.LEASE_ON_A_STREAM if frame.stream_id else Rule.NO_LEASES_AGREED, frame.stream_id)

    def _metadata_push(self, frame: Frame) -> None:
        if frame.stream_id:
            self._meet(Rule.PUSH_ON_A_STREAM, frame.stream_id)
        if self._has(Switch.LEASE_COUNTS_PUSHES):
            self._permits -= 1
        if self._has(Switch.PUSH_ANSWERED):
            self._send(METADATA_PUSH, M, 0, frame.body)
        if self._has(Switch.PUSH_NEEDS_FLAG) and not frame.flags & M:
            self.fail(CONNECTION_ERROR)
        if self._has(Switch.PUSH_NEEDS_CONTENT) and not frame.body:
            self.fail(CONNECTION_ERROR)

    def _ext(self, frame: Frame) -> None:
        if frame.excused:
            self._meet(Rule.UNKNOWN_EXT_WITH_I)
        self._meet(Rule.EXT_ON_A_STREAM if frame.stream_id else Rule.UNKNOWN_EXT, frame.stream_id)

    def _keepalive(self, frame: Frame) -> None:
        if frame.stream_id:
            self._meet(Rule.KEEPALIVE_ON_A_STREAM)
        if not frame.flags & R:
            self._meet(Rule.KEEPALIVE_UNASKED)
        if frame.body[0] & 0x80:
            self._meet(Rule.KEEPALIVE_RESERVED_BIT)
        if frame.flags & ~MEANINGS[KEEPALIVE]:
            self._meet(Rule.KEEPALIVE_SPARE_FLAGS)
        if self._has(Switch.NO_KEEPALIVE):
            return
        if self._has(Switch.ENDS_BY_ITSELF):
            raise Over
        self._confirm(max(self._starts()) if self._has(Switch.KEEPALIVE_CONFIRMS_ALL) else position_in(frame))
        says = self._token is not None and not self._has(Switch.KEEPALIVE_SAYS_NOTHING)
        position = (self._received if says else 0).to_bytes(8, "big")
        if self._has(Switch.KEEPALIVE_WITHOUT_POSITION):
            position = b""
        elif self._has(Switch.KEEPALIVE_ECHOES_POSITION):
            position = frame.body[:8]
        elif self._has(Switch.KEEPALIVE_HAS_A_POSITION):
            position = (77).to_bytes(8, "big")
        data = b"" if self._has(Switch.KEEPALIVE_FORGETS_DATA) else frame.body[8:]
        if self._has(Switch.KEEPALIVE_IS_TEXT):
            data = as_text(data)
        elif self._has(Switch.KEEPALIVE_OF_1_KIB):
            data = data[:1024]
        if (
            (self._has(Switch.KEEPALIVE_NEEDS_DATA) and not data)
            or (self._has(Switch.KEEPALIVE_OF_2_BYTES) and len(data) == 1)
            or (self._has(Switch.KEEPALIVE_WHEN_IDLE) and self._streams)
            or (self._has(Switch.KEEPALIVE_ONCE) and self._answered)
        ):
            return
        self._answered = True
        if self._has(Switch.KEEPALIVE_ANSWERED_TWICE):
            self._send(KEEPALIVE, 0, 0, position + data)
        self._send(KEEPALIVE, R if self._has(Switch.KEEPALIVE_ASKS_BACK) else 0, 0, position + data)

    def _error(self, frame: Frame) -> None:
        code = int.from_bytes(frame.body[:4], "big")
        if frame.stream_id:
            stream = self._stream_of(frame, Rule.ERROR_UNKNOWN, Rule.ERROR_PAST, Rule.ERROR_UNKNOWN)
            if self._has(Switch.REQUESTER_ERROR_ENDS):
                raise Over
            skipped = (
                (self._has(Switch.FRAGMENTS_NOT_CANCELLED) and stream.joining)
                or (self._has(Switch.REQUESTER_ERROR_SKIPPED) and not stream.joining)
                or (self._has(Switch.REQUESTER_CODE_CHECKED) and code not in range(0x201, 0x205))
            )
            if skipped or (self._has(Switch.ERROR_KEEPS_ITEMS) and stream.waiting):
                return
            if self._has(Switch.ERROR_DROPS_ITEMS_OF_ALL):
                self._drop_items()
            self._end(frame.stream_id)
            self._close_if_idle()
            return
        if code in range(INVALID_SETUP, REJECTED_RESUME + 1):
            self._meet(Rule.SETUP_ERROR_LATE)
        if self._has(Switch.ERROR_ANSWERED):
            self.fail(CONNECTION_ERROR)
        text = frame.body[4:]
        if (self._has(Switch.ERROR_TEXT_CHECKED) and not text.isascii()) or (
            self._has(Switch.ERROR_TEXT_LIMITED) and len(text) > 1024
        ):
            return
        if self._has(Switch.ERROR_WAITS) and code == CONNECTION_ERROR and self._streams:
            return
        if self._has(Switch.CLOSES_WITH_STREAMS) and code == CONNECTION_CLOSE:
            raise Over
        if code == CONNECTION_CLOSE:
            self._closing = True
            self._close_if_idle()
        elif code == CONNECTION_ERROR:
            self._meet(Rule.CONNECTION_FAILED)
        else:
            self._meet(Rule.STREAM_CODE_ON_0 if 0x201 <= code <= INVALID else Rule.UNKNOWN_CODE_ON_0)

    def _close_if_idle(self) -> None:
        if self._closing and not self._streams:
            self._meet(Rule.CLOSING_WHEN_IDLE)

    # Frames of streams

    def _stream_of(self, frame: Frame, on_0: Rule, past: Rule, unknown: Rule) -> Stream:
        """Return the open stream of a frame. Raise ``Dropped`` or ``Over`` if there is none."""
        stream = self._streams.get(frame.stream_id)
        if stream is None:
            rule = past if frame.stream_id in self._past else unknown if frame.stream_id else on_0
            self._meet(rule, frame.stream_id)
            raise Dropped
        return stream

    def _request(self, frame: Frame) -> None:
        stream_id = frame.stream_id
        if stream_id == 0:
            self._meet(Rule.REQUEST_ON_0)
        elif stream_id % 2 == 0:
            self._meet(Rule.ID_OF_OURS, stream_id)
        if stream_id in self._streams:
            self._meet(Rule.ID_HALFWAY if self._streams[stream_id].joining else Rule.ID_IN_USE, stream_id)
        self._limit(frame)
        if self._closing:
            self._meet(Rule.FORGET_WHEN_CLOSING if frame.type == REQUEST_FNF else Rule.CLOSING, stream_id)
        self._take_permit(frame.type, stream_id)
        room = 1
        if frame.type in (REQUEST_STREAM, REQUEST_CHANNEL):
            word = int.from_bytes(frame.body[:4], "big")
            room = word & UINT31
            if not room:
                self._meet(Rule.COUNT_RESERVED_BIT if word else Rule.NO_CREDIT_AT_ALL, stream_id)
        complete = bool(frame.flags & C) and frame.type == REQUEST_CHANNEL
        follows = bool(frame.flags & F) and (not complete or self._has(Switch.FOLLOWS_OUTWEIGHS_COMPLETE))
        request = self._payload_of(frame)
        joining = follows and not self._has(Switch.FRAGMENT_ANSWERED)
        if self._has(Switch.EMPTY_FRAGMENT_ENDS) and request == Item(None, b""):
            joining = False
        if self._has(Switch.OPENING_COMPLETE_SKIPPED):
            complete = False
        if self._has(Switch.LARGE_NUMBER_IS_NONE) and room == UINT31:
            room = 0
        elif self._has(Switch.CREDIT_CAPPED):
            room = min(room, 2)
        if self._has(Switch.MORE_THAN_GRANTED):
            room += 1
        elif self._has(Switch.FEWER_THAN_GRANTED):
            room -= 1
        stream = Stream(stream_id, frame.type, room, request, joining, complete)
        self._streams[stream_id] = stream
        if not joining:
            self._start(stream)

    def _limit(self, frame: Frame) -> None:
        """Refuse or skip requests for no reason, as some faults do. Raise ``Dropped``."""
        open_ones, stream_id = len(self._streams), frame.stream_id
        if (self._has(Switch.ONE_AT_A_TIME) and open_ones) or (self._has(Switch.FIFTY_STREAMS) and open_ones >= 50):
            self._refuse(stream_id, REJECTED)
            raise Dropped
        if self._has(Switch.ONE_REQUEST_A_READ) and self._answered:
            raise Dropped
        self._answered |= self._has(Switch.ONE_REQUEST_A_READ)
        requests = sum(self._counts[kind] for kind in REQUESTS)
        if (
            (self._has(Switch.FIFTY_REQUESTS) and requests > 50)
            or self._counts[frame.type] > self._most_of(frame.type)
            or (self._has(Switch.IDS_ONCE) and stream_id in self._past)
            or (self._has(Switch.IDS_IN_ORDER) and stream_id < self._highest)
            or (self._has(Switch.IDS_WITHOUT_GAPS) and stream_id > self._highest + 2)
        ):
            raise Dropped
        self._highest = max(self._highest, stream_id)

    def _most_of(self, kind: int) -> float:
        """Return how many requests of a type are served."""
        limits = {
            Switch.HUNDRED_REQUESTS: REQUEST_RESPONSE,
            Switch.HUNDRED_STREAMS: REQUEST_STREAM,
            Switch.HUNDRED_CHANNELS: REQUEST_CHANNEL,
        }
        return 100 if self._switch in limits and limits[self._switch] == kind else math.inf

    def _start(self, stream: Stream) -> None:
        """Serve a request that is whole."""
        request = stream.request
        if self._has(Switch.HANGS_AFTER_A_REQUEST):
            self.hangs = True
        elif stream.type == REQUEST_FNF:
            if self._has(Switch.FORGET_ANSWERED):
                self._send_payload(stream.id, N | C, request)
            elif self._has(Switch.FORGET_COMPLETED) or (self._has(Switch.FORGET_FRAGMENTS_ANSWERED) and stream.pieces):
                self._send(PAYLOAD, C, stream.id)
            self._end(stream.id)
        elif stream.type == REQUEST_STREAM:
            if self._has(Switch.DIES_AT_A_STREAM):
                raise Over
            if request.metadata is not None and self._has(Switch.METADATA_STOPS_STREAM):
                self._refuse(stream.id, REJECTED)
                return
            if request.data and not request.data.isdigit():
                self._refuse(stream.id, APPLICATION_ERROR)
                return
            stream.total = int(request.data) if request.data else math.inf
            if self._has(Switch.HUNDRED_ITEMS):
                stream.total = min(stream.total, 100)
            elif self._has(Switch.COUNTS_FROM_1):
                stream.sent = 1
            self._send_items(stream)
        elif stream.type == REQUEST_CHANNEL:
            stream.waiting = [] if self._has(Switch.FIRST_ITEM_LOST) else [request]
            if self._has(Switch.GRANTS_LATE):
                stream.served = GRANT
            elif not self._has(Switch.NOTHING_GRANTED):
                stream.granted = GRANT
                self._send(REQUEST_N, 0, stream.id, GRANT.to_bytes(4, "big"))
            self._send_items(stream)
        elif request.data != b"silent" and (request.data or not self._has(Switch.EMPTY_UNANSWERED)):
            self._answer(stream)
        self._close_if_idle()

    def _answer(self, stream: Stream) -> None:
        flags = 0 if self._has(Switch.COMPLETED_WITHOUT_NEXT) else N
        if not self._has(Switch.NOT_COMPLETED):
            flags |= C
        for _ in range(2 if self._has(Switch.ANSWERED_TWICE) else 1):
            self._send_payload(stream.id, flags, stream.request)
        self._end(stream.id)

    def _send_items(self, stream: Stream) -> None:
        """Send what the stream has and may send."""
        if self._has(Switch.CHANNEL_WITHOUT_CREDIT) and stream.type == REQUEST_CHANNEL:
            stream.room = UINT31
        if self._has(Switch.COMPLETE_DROPS_ITEMS) and stream.completed:
            del stream.waiting[max(stream.room, 0) :]
        if stream.completed and stream.grants >= self._grants_behind_complete():
            del stream.waiting[max(stream.room, 0) :]
        while stream.room > 0 and (stream.waiting or (stream.type == REQUEST_STREAM and stream.sent < stream.total)):
            item = stream.waiting.pop(0) if stream.waiting else Item(None, b"%d" % stream.sent)
            stream.room -= 1
            stream.sent += 1
            stream.served += stream.type == REQUEST_CHANNEL and stream.sent > 1
            if stream.type == REQUEST_CHANNEL and self._has(Switch.CHANNEL_METADATA_LOST):
                item = Item(None, item.data)
            if stream.type == REQUEST_CHANNEL and self._has(Switch.EMPTY_ITEMS_LOST) and item == Item(None, b""):
                continue
            for _ in range(2 if self._has(Switch.COUNTS_TWICE) else 1):
                self._send_payload(stream.id, N, item)
        if (
            (self._has(Switch.EMPTY_STREAM_OPEN) and stream.total == 0)
            or (self._has(Switch.COMPLETE_NEEDS_CREDIT) and stream.type == REQUEST_STREAM and stream.room == 0)
            or (
                self._has(Switch.COMPLETE_OF_CHANNEL_NEEDS_CREDIT)
                and stream.type == REQUEST_CHANNEL
                and stream.room == 0
            )
            or (self._has(Switch.COMPLETE_SKIPPED) and stream.type == REQUEST_CHANNEL)
        ):
            return
        if self._has(Switch.CREDITLESS_STREAMS_END) and stream.type == REQUEST_STREAM and stream.room == 0:
            self._refuse(stream.id, CANCELED)
            return
        over = stream.sent >= stream.total if stream.type == REQUEST_STREAM else stream.completed
        if over and not stream.waiting:
            for _ in range(2 if self._has(Switch.STREAM_COMPLETED_TWICE) else 1):
                if not self._has(Switch.STREAM_NOT_COMPLETED):
                    self._send(PAYLOAD, C, stream.id)
            self._end(stream.id)

    def _grants_behind_complete(self) -> float:
        """Return how many grants behind the requester's COMPLETE let items go that wait."""
        if self._has(Switch.COMPLETE_KEEPS_ONE_GRANT):
            return 1
        return 2 if self._has(Switch.COMPLETE_KEEPS_TWO_GRANTS) else math.inf

    def _payload(self, frame: Frame) -> None:
        if self._has(Switch.LATE_ITEMS_SENT_BACK) and frame.stream_id in self._past:
            self._send_payload(frame.stream_id, N, self._payload_of(frame))
        stream = self._stream_of(frame, Rule.PAYLOAD_ON_0, Rule.PAYLOAD_PAST, Rule.PAYLOAD_UNKNOWN)
        item = self._payload_of(frame)
        follows = bool(frame.flags & F)
        if frame.flags & C and not self._has(Switch.FOLLOWS_OUTWEIGHS_COMPLETE):
            follows = False
        if self._has(Switch.FRAGMENT_NEEDS_NEXT) and not frame.flags & (N | C):
            return
        if stream.joining:
            if self._has(Switch.FRAGMENTS_MIXED):
                stream = next(one for one in self._streams.values() if one.joining)
            stream.request = self._joined(stream, stream.request, item)
            if self._has(Switch.LEASE_COUNTS_FRAGMENTS):
                self._take_permit(stream.type, stream.id)
            if not self._has(Switch.COMPLETE_IN_FRAGMENTS_SKIPPED):
                stream.completed |= bool(frame.flags & C)
            stream.joining = follows
            if not follows:
                self._start(stream)
        elif stream.type != REQUEST_CHANNEL or stream.completed:
            self._meet(Rule.ITEM_UNASKED if frame.flags & N else Rule.COMPLETE_UNASKED, stream.id)
        else:
            self._take_item(stream, frame, item, follows)

    def _take_item(self, stream: Stream, frame: Frame, item: Item, follows: bool) -> None:
        """Take an item of a channel, or its completion, or both."""
        if stream.part is not None:
            item = self._joined(stream, stream.part, item)
        elif not frame.flags & (N | C):
            self._meet(Rule.PAYLOAD_OF_NOTHING, stream.id)
        if stream.part is None and (frame.flags & N or not frame.flags & C):
            if stream.granted == 0:
                self._meet(Rule.BEYOND_GRANT, stream.id)
            stream.granted -= 1
        elif stream.part is None:
            stream.completed = True
            if self._has(Switch.CONTENT_OF_COMPLETE) and item.data:
                stream.waiting.append(item)
            self._send_items(stream)
            self._close_if_idle()
            return
        if self._has(Switch.FRAGMENTS_SENT_BACK) and follows:
            follows = False
        stream.part = item if follows else None
        stream.completed = bool(frame.flags & C)
        lost = self._has(Switch.ITEMS_NOT_SENT_BACK) or (self._has(Switch.LAST_ITEM_LOST) and stream.completed)
        if not follows and not lost:
            stream.waiting.append(item)
        self._send_items(stream)
        self._close_if_idle()

    def _joined(self, stream: Stream, before: Item, more: Item) -> Item:
        stream.pieces += 1
        if self._has(Switch.LATER_METADATA_LOST) or (self._has(Switch.EMPTY_METADATA_LOST) and not more.metadata):
            more = Item(None, more.data)
        if self._has(Switch.EMPTY_METADATA_LOST) and not before.metadata:
            before = Item(None, before.data)
        too_many = self._has(Switch.FRAGMENTS_LIMITED) and stream.pieces > 50
        if too_many or (self._has(Switch.JOINED_LIMITED) and len(before.data) > 500_000):
            self._refuse(stream.id, REJECTED)
            raise Dropped
        if more.metadata is not None and before.data:
            self._meet(Rule.METADATA_AFTER_DATA, stream.id)
        if self._has(Switch.LAST_FRAGMENT_FIRST):
            return more + before
        if self._has(Switch.ONLY_THE_LAST_FRAGMENT):
            return more
        return before if self._has(Switch.ONLY_THE_FIRST_FRAGMENT) else before + more

    def _request_n(self, frame: Frame) -> None:
        stream = self._stream_of(frame, Rule.REQUEST_N_ON_0, Rule.REQUEST_N_PAST, Rule.REQUEST_N_UNKNOWN)
        word = int.from_bytes(frame.body[:4], "big")
        if not word & UINT31:
            self._meet(Rule.REQUEST_N_OF_0, stream.id)
        elif word > UINT31:
            self._meet(Rule.REQUEST_N_RESERVED_BIT)
        if frame.flags & ~MEANINGS[REQUEST_N]:
            self._meet(Rule.REQUEST_N_SPARE_FLAGS)
        if len(frame.body) > 4:
            self._meet(Rule.REQUEST_N_BYTES_BEHIND)
        if stream.type not in (REQUEST_STREAM, REQUEST_CHANNEL):
            self._meet(Rule.REQUEST_N_FOR_ANSWER, stream.id)
        if self._has(Switch.CREDIT_SHARED):
            stream = next(iter(self._streams.values()))
        if self._has(Switch.LEASE_COUNTS_CREDIT):
            self._permits -= 1
        lost = self._has(Switch.CREDIT_LOST_AMID_FRAGMENTS) and stream.joining
        lost |= self._has(Switch.LEASE_ENDS_STREAMS) and trio.current_time() >= self._lease_end
        if self._has(Switch.CREDIT_REPLACED):
            stream.room = 0
        if not lost and not self._has(Switch.NO_SUMS):
            stream.room += word & UINT31
            stream.grants += stream.completed
        if not stream.joining:
            self._send_items(stream)
            self._close_if_idle()

    def _drop_items(self) -> None:
        """Drop the items of every channel that wait."""
        for stream in self._streams.values():
            stream.waiting.clear()

    def _cancel(self, frame: Frame) -> None:
        stream = self._stream_of(frame, Rule.CANCEL_ON_0, Rule.CANCEL_PAST, Rule.CANCEL_UNKNOWN)
        if frame.body:
            self._meet(Rule.CANCEL_BYTES_BEHIND)
        if self._has(Switch.CANCEL_SKIPPED) or (self._has(Switch.FRAGMENTS_NOT_CANCELLED) and stream.joining):
            return
        if self._has(Switch.CANCEL_ENDS_CONNECTION) and stream.type == REQUEST_RESPONSE:
            raise Over
        if self._has(Switch.CANCEL_ANSWERED):
            self._send(ERROR, 0, stream.id, CANCELED.to_bytes(4, "big"))
        elif self._has(Switch.CANCEL_COMPLETED):
            self._send(PAYLOAD, C, stream.id)
        elif self._has(Switch.CANCEL_ENDS_ALL):
            for other in list(self._streams):
                self._end(other)
        self._cancelled[stream.id] = stream
        if self._has(Switch.CANCEL_KEEPS_ITEMS) and stream.waiting:
            return
        if self._has(Switch.CANCEL_DROPS_ITEMS_OF_ALL):
            self._drop_items()
        self._end(frame.stream_id)
        self._close_if_idle()


def as_text(data: bytes) -> bytes:
    """Return what is left of bytes that are read as UTF-8."""
    return data.decode("utf-8", "replace").encode()


def position_in(frame: Frame) -> int:
    """Return the position of a KEEPALIVE."""
    return int.from_bytes(frame.body[:8], "big") & (1 << 63) - 1


def whole_resume(body: bytes) -> bool:
    """Return whether all fields of RESUME are there."""
    return len(body) >= 6 and len(body) >= 6 + int.from_bytes(body[4:6], "big") + 16


async def serve_connection(
    stream: trio.SocketStream, switch: Switch | None, book: Book | None, make: MakeSession, *, leases: bool
) -> None:
    """Serve one connection until it ends."""
    session, rest, heard = make(switch, book, leases=leases), b"", trio.current_time()
    session.carrier = stream
    try:
        while True:
            chunk: bytes | None = None
            patience = 0.5 if switch is Switch.IMPATIENT and session.lifetime == math.inf else session.lifetime
            if switch is Switch.SPEAKS_UNASKED and session.lifetime < math.inf:
                patience = 0.4
            with trio.move_on_at(min(heard + patience, session.next_lease)):
                chunk = await stream.receive_some()
            if chunk is None and trio.current_time() >= session.next_lease:
                session.grant()
                await send(stream, session, switch)
                continue
            if chunk == b"" or switch is Switch.CLOSES_AT_ONCE:
                break
            over = False
            try:
                if chunk is None:
                    session.expire()
                rest += chunk
                while (frame := whole_frame(rest, switch)) is not None:
                    rest = rest[3 + len(frame) :]
                    if lives(frame, switch):
                        heard = trio.current_time()
                    session.receive(frame)
                    if (other := session.taken_over) is not None:
                        session.taken_over = None
                        if other.carrier is not None and switch is not Switch.OLD_CONNECTION_STAYS:
                            await trio.aclose_forcefully(other.carrier)
                        session, other.carrier = other, stream
                if switch is Switch.WHOLE_FRAMES_ONLY:
                    rest = b""
                session.settle()
            except Dropped:
                heard = math.inf
            except Over:
                over = True
            await send(stream, session, switch)
            if over:
                if switch is not Switch.ENDED_SESSIONS_RESUMED:
                    session.forget()
                await stream.send_eof()
                await drained(stream)
                break
    except (Died, trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the client left, or this server did, or another connection took the session over
    finally:
        if session.carrier is stream:
            session.part(rest)
        await trio.aclose_forcefully(stream)


async def drained(stream: trio.SocketStream) -> None:
    """Wait until the client closes, a second at most: what it has sent must not reset what it has to read."""
    with trio.move_on_after(1):
        while await stream.receive_some():
            pass


def lives(frame: bytes, switch: Switch | None) -> bool:
    """Return whether the frame is a sign of life."""
    is_setup = frame[4:5] == bytes([SETUP << 2])
    is_keepalive = frame[4:5] == bytes([KEEPALIVE << 2]) and bool(frame[5:6] and frame[5] & R)
    if switch is Switch.LIFE_FROM_SETUP:
        return is_setup
    return switch is not Switch.LIFE_BY_KEEPALIVE or is_keepalive or is_setup


def whole_frame(data: bytes, switch: Switch | None) -> bytes | None:
    """Return the first frame of a byte stream if it is whole."""
    first = 1 if switch is Switch.LENGTH_OF_16_BITS else 0
    end = 3 + int.from_bytes(data[first:3], "big")
    return data[3:end] if len(data) >= max(end, 3) else None


async def send(stream: trio.SocketStream, session: Session, switch: Switch | None) -> None:
    """Send what the session has said, in one write."""
    frames, session.out = session.out, []
    more = 3 if switch is Switch.LENGTH_COUNTS_ITSELF else 0
    said = b"".join((len(frame) + more).to_bytes(3, "big") + frame for frame in frames)
    if session.hangs:
        await trio.sleep_forever()
    if switch is Switch.TALKS_NONSENSE:
        said = b"".join(frames)
    if switch is Switch.DIES_AMID_A_FRAME and any(is_payload(frame) for frame in frames):
        await stream.send_all(said[:-1])
        raise Died
    if switch is Switch.FLOODS:
        said, session.hangs = bytes.fromhex("00000a 00000001 2000 00000001") * 100_000, True
    if said and switch is not Switch.SAYS_NOTHING:
        await stream.send_all(said)


def is_payload(frame: bytes) -> bool:
    """Return whether it is a PAYLOAD."""
    return frame[4] >> 2 == PAYLOAD


class MakeSession(Protocol):
    """Makes the server's side of a connection."""

    def __call__(self, switch: Switch | None, book: Book | None, *, leases: bool) -> Session: ...


async def serve(
    switch: Switch | None = None,
    port: int = 0,
    *,
    make: MakeSession = Session,
    resumes: bool = False,
    leases: bool = False,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on 127.0.0.1 until cancelled, with resumption and with leases if told so. Report the URI."""
    book = Book() if resumes else None

    async def handle(stream: trio.SocketStream) -> None:
        await serve_connection(stream, switch, book, make, leases=leases)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, handle, port, host="127.0.0.1"))
        task_status.started(f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}")
