"""The conformance cases of RSocket 1.0 against foreign servers: each failure is known, and has its reason here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from rsocket_trio.conformance.catalogue import NEEDS, chosen, fits
from rsocket_trio.conformance.play import Outcome
from rsocket_trio.conformance.report import told
from rsocket_trio.conformance.run import Target, check_server, dial_to, run
from tests.interop.peers import FOLDER, KINDS, ROOT, START_TIMEOUT, Kind

EXAMPLES = ROOT / "examples" / "conformance"
COMMANDS: dict[Kind, list[str]] = {
    "py": [sys.executable, str(EXAMPLES / "rsocket_py_server.py"), "0"],
    "js": ["node", str(EXAMPLES / "rsocket_js_server.js"), "0"],
}
KNOWN: dict[Kind, dict[str, tuple[str, ...]]] = {
    "py": {
        "Frames before the SETUP are served or skipped, and not refused.": ("RS10-CON-02",),
        "A refused SETUP or RESUME is answered with its ERROR, and the connection stays open.": (
            "RS10-SETUP-07",
            "first-setup-with-an-empty-resume-token",
            "RS10-RSM-17",
            "setup-refused-with-requests-behind-it",
        ),
        "An item without content is sent without NEXT, which makes it no item.": (
            "request-without-data",
            "channel-with-empty-items",
            "channel-completed-as-it-opens-without-data",
        ),
        "An ERROR of a stream whose code is not in the library's table is dropped.": (
            "channel-failed-with-code-0x301",
            "channel-failed-with-code-0xfffffffe",
            "channel-failed-with-code-0x0",
        ),
        "A COMPLETE next to FOLLOWS, or on the last fragment of a request, is lost.": (
            "fragments-that-complete-a-channel",
            "item-with-follows-and-complete",
        ),
        "Metadata that is announced longer than its frame is cut to the bytes that are there.": ("RS10-MD-02",),
        "A SETUP with a keepalive time or a lifetime of 0 is accepted.": ("RS10-SETUP-04",),
        "A request on an id in use is answered with REJECTED, or ends the request that waits for fragments.": (
            "RS10-UNX-09",
        ),
    },
    "js": {
        "A first METADATA_PUSH or EXT is dropped without an answer.": (
            "first-a-first-metadata-push",
            "first-a-first-ext",
        ),
        "A SETUP on a stream, or with a keepalive time of 0, is accepted.": (
            "first-setup-on-a-stream",
            "first-setup-with-a-keepalive-time-of-0",
        ),
        "A PAYLOAD with neither NEXT nor COMPLETE is taken for an item.": ("talking-payload-with-neither-c-nor-n",),
        "A frame of an unknown type closes the connection, with the ignore flag too.": (
            "RS10-IGN-02",
            "extensions-that-are-ignorable",
        ),
        "Metadata that is announced longer than its frame is cut to the bytes that are there.": ("RS10-MD-02",),
        "A second SETUP, and stream frames or a RESUME_OK on stream 0, end the connection.": (
            "RS10-UNX-14",
            "served-resume-ok",
            "ticking-cancel-on-stream-0",
            "ticking-payload-on-stream-0",
            "ticking-request-n-on-stream-0",
        ),
        "Each ERROR on stream 0 ends the connection at once.": (
            "RS10-UNX-15",
            "connection-close-with-a-stream-open",
            "connection-close-with-a-channel-open",
        ),
        "METADATA_PUSH is not implemented: it ends the connection.": (
            "ticking-metadata-push-on-a-stream",
            "metadata-push-amid-fragments",
            "RS10-MP-01",
        ),
        "A SETUP or RESUME that is not whole in the first read is never answered.": (
            "setup-byte-by-byte",
            "setup-with-a-long-resume-token",
            "setup-of-32-kib-with-a-long-resume-token",
            "resume-with-a-long-token",
        ),
        "A payload whose COMPLETE stands next to FOLLOWS is lost.": ("item-with-follows-and-complete",),
        "A frame that a stream does not expect ends the stream with CANCELED.": (
            "ticking-an-item-of-the-requester-of-a-stream",
            "ticking-complete-of-the-requester-of-a-stream",
            "waiting-an-item-of-the-requester-of-a-request",
            "waiting-credit-for-a-request-response",
        ),
    },
}
"""Why a server fails cases, and the cases, by id or clause."""


@asynccontextmanager
async def foreign_server(kind: Kind) -> AsyncIterator[str]:
    """Run the example server of this kind; where it listens."""
    process = await trio.lowlevel.open_process(
        COMMANDS[kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"NODE_PATH": str(FOLDER / "node_modules")},
    )
    assert process.stdout is not None
    try:
        line = b""
        with trio.fail_after(START_TIMEOUT):
            while not line.endswith(b"\n"):
                line += await process.stdout.receive_some()
        yield line.decode().split()[1]
        assert process.poll() is None, f"the {kind} server ended"
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_foreign_server_fails_only_what_is_known(kind: Kind) -> None:
    async with foreign_server(kind) as uri:
        target = Target(dial_to(uri), frozenset(NEEDS))
        await check_server(target, "rsocket/1.0")
        results = await run(chosen("rsocket/1.0", role="server"), target)

    failed = [result for result in results if result.outcome is Outcome.FAIL]
    known = [pattern for patterns in KNOWN[kind].values() for pattern in patterns]
    assert ["\n".join(told(result)) for result in failed if not fits(result.case, tuple(known))] == []
    assert [pattern for pattern in known if not any(fits(result.case, (pattern,)) for result in failed)] == []
