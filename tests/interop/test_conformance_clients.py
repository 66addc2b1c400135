"""The conformance cases of RSocket 1.0 against foreign clients: each failure is known, and has its reason here."""

from __future__ import annotations

import os
import sys

import pytest

from rsocket_trio.conformance.catalogue import chosen, fits
from rsocket_trio.conformance.clients import Listening, command, run_clients
from rsocket_trio.conformance.play import Outcome
from rsocket_trio.conformance.report import told
from tests.interop.peers import FOLDER, KINDS, ROOT, Kind, require_peer

EXAMPLES = ROOT / "examples" / "conformance"
COMMANDS: dict[Kind, list[str]] = {
    "py": [sys.executable, str(EXAMPLES / "rsocket_py_client.py")],
    "js": ["node", str(EXAMPLES / "rsocket_js_client.js")],
}
KNOWN: dict[Kind, dict[str, tuple[str, ...]]] = {
    "py": {
        "RESUME is answered with REJECTED_RESUME.": ("connected-resume",),
        "Each ERROR on stream 0 other than CONNECTION_ERROR is passed over.": (
            "connected-error-with-a-stream-s-code-on-stream-0",
            "connected-connection-close-with-no-stream-open",
        ),
        "A PAYLOAD without C and N answers a request/response.": ("asking-payload-with-nothing-at-all",),
        "Metadata that is announced longer than its frame is cut to the bytes that are there.": ("RS10-MD-02",),
        "A REQUEST_CHANNEL on an id in use is answered with REJECTED.": ("RS10-UNX-09",),
    },
    "js": {
        "SETUP, RESUME, RESUME_OK, and PAYLOAD on stream 0, end the connection.": (
            "RS10-UNX-17",
            "connected-resume",
            "connected-resume-ok",
            "asking-payload-on-stream-0",
        ),
        "Each ERROR on stream 0 ends the connection.": ("RS10-UNX-16",),
        "A frame that a stream does not expect ends the stream with CANCEL.": (
            "asking-request-n-on-a-request-of-the-client",
            "asking-cancel-of-the-responder-of-a-request",
            "streaming-request-n-on-a-stream-of-the-client",
            "streaming-cancel-of-the-responder-of-a-stream",
        ),
        "METADATA_PUSH is not implemented: it ends the connection.": ("asking-metadata-push-on-a-stream",),
        "A frame of an unknown type closes the connection, with the ignore flag too.": ("RS10-IGN-02",),
        "A PAYLOAD without C and N ends a request/response.": ("asking-payload-with-nothing-at-all",),
        "Metadata that is announced longer than its frame is cut to the bytes that are there.": ("RS10-MD-02",),
    },
}
"""Why a client fails cases, and the cases, by id or clause."""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_foreign_client_fails_only_what_is_known(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    require_peer(kind)
    monkeypatch.setitem(os.environ, "NODE_PATH", str(FOLDER / "node_modules"))
    listening = Listening("tcp://127.0.0.1:0", command(COMMANDS[kind]), frozenset({"echo"}), 3.0, at_once=8)
    results = await run_clients(chosen("rsocket/1.0", role="client"), listening)

    failed = [result for result in results if result.outcome is Outcome.FAIL]
    known = [pattern for patterns in KNOWN[kind].values() for pattern in patterns]
    assert ["\n".join(told(result)) for result in failed if not fits(result.case, tuple(known))] == []
    assert [pattern for pattern in known if not any(fits(result.case, (pattern,)) for result in failed)] == []
