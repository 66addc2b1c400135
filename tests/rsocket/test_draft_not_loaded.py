"""Sessions that do not speak the extension draft do not load it; tests/test_layers.py has the same of connections."""

from __future__ import annotations

import subprocess
import sys

SESSIONS = """
from tests.rsocket.pairs import SessionPair
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload

pair = SessionPair()
pair.client.commands.open(Interaction.REQUEST_RESPONSE, Payload(b"x", b"y"))
pair.exchange()
"""

CHECK = """
import sys

drafts = ("rsocket_trio.rsocket.extensions", "rsocket_trio.rsocket.layouts.v2")
loaded = [name for name in sys.modules if name.startswith(drafts)]
assert loaded == [], loaded
"""


def test_a_session_that_speaks_1_0_does_not_load_the_extension_draft() -> None:
    command = [sys.executable, "-c", SESSIONS + CHECK]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
