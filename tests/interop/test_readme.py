"""The service of the README is what peers in other languages can call."""

from __future__ import annotations

import re
from typing import Any

from rsocket_trio import Responder
from tests.interop.both_ways import serving
from tests.interop.peers import ROOT, Kind, TransportName, client_peer


def readme_service() -> Responder:
    """The responder of the first program in the README, without the line that serves for ever."""
    program = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert program is not None
    names: dict[str, Any] = {}
    exec(re.sub(r"^run\(.*\n", "", program[1], flags=re.MULTILINE), names)
    responder = names["responder"]
    assert isinstance(responder, Responder)
    return responder


async def test_the_service_of_the_readme_answers_a_peer_by_route(kind: Kind, transport: TransportName) -> None:
    async with serving(transport, readme_service()) as uri, client_peer(kind, uri) as client:
        greeting = await client.do("request_response", route="greet", data=b"Ada")
        counted = await client.do("request_stream", route="count", data=b"3")

    assert greeting["data"] == b"hello, Ada"
    assert (counted["completed"], counted["items"]) == (True, [b"0", b"1", b"2"])
