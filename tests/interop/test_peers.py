"""The foreign peers themselves: they start, understand each other and their commands, and end."""

from __future__ import annotations

import json
import signal

import pytest
import trio
import trio.testing

from tests.interop import peers
from tests.interop.peers import (
    KINDS,
    Kind,
    PeerFailed,
    TransportName,
    client_peer,
    own_peer,
    pattern,
    require_peer,
    server_peer,
    shared_peer,
)


async def test_a_peer_talks_to_its_own_kind(kind: Kind, transport: TransportName) -> None:
    async with client_peer(kind, await server_peer(kind, transport)) as client:
        echo = await client.do("request_response", route="echo", data=b"hi")
        assert (echo["ok"], echo["data"]) == (True, b"hi")

        numbers = await client.do("request_stream", route="count", data=b"5", initial_n=2, later=[3])
        assert (numbers["items"], numbers["completed"]) == ([b"0", b"1", b"2", b"3", b"4"], True)

        summed = await client.do("request_channel", route="sum", items=[{"size": 27_182}, {"size": 8}])
        assert summed["items"] == [b"27190"]

        refused = await client.do("request_response", route="nowhere")
        assert (refused["ok"], refused["code"], refused["error"]) == (False, 0x202, "no route nowhere")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_calls_its_client_back(kind: Kind) -> None:
    command = {"do": "request_response", "route": "echo", "data": b"hi".hex()}

    async with client_peer(kind, await server_peer(kind, "tcp")) as client:
        reply = await client.do("request_response", route="call", data=json.dumps(command).encode())

    assert json.loads(reply["data"])["data"] == b"hi".hex()


@pytest.mark.parametrize("kind", KINDS)
async def test_payloads_in_fragments_arrive_whole(kind: Kind) -> None:
    async with client_peer(kind, await server_peer(kind, "tcp", fragment=1000), fragment=1000) as client:
        reply = await client.do("request_stream", route="sizes", data=b"31415,9,2653,58979")

    assert reply["items"] == [pattern(31_415), pattern(9), pattern(2_653), pattern(58_979)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_peer_that_cannot_connect_says_so(kind: Kind) -> None:
    with pytest.raises(PeerFailed, match="could not connect"):
        async with client_peer(kind, "tcp://127.0.0.1:1"):
            pass


@pytest.mark.parametrize("kind", KINDS)
async def test_a_peer_that_dies_fails_all_that_wait_for_it(kind: Kind) -> None:
    async def sleep() -> None:
        with pytest.raises(PeerFailed, match=f"the {kind} peer ended"):
            await client.do("request_response", route="sleep", data=b"60000")

    with own_peer(kind) as peer:
        async with (
            client_peer(kind, await server_peer(kind, "tcp"), peer=peer) as client,
            trio.open_nursery() as nursery,
        ):
            for _ in range(3):
                nursery.start_soon(sleep)
            await trio.testing.wait_all_tasks_blocked()
            peer.process.kill()


async def test_a_peer_that_hangs_is_killed_and_fails_what_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_peer("js")
    with own_peer("js") as peer:
        port = await peer.listen("tcp")
        monkeypatch.setattr(peers, "COMMAND_TIMEOUT", 0.1)
        peer.process.send_signal(signal.SIGSTOP)
        with pytest.raises(PeerFailed, match=r"did not answer within 0\.1 s"):
            await peer.do("connect", transport="tcp", port=port)

        assert peer.process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["js"])
def test_a_shared_peer_that_has_ended_is_replaced(kind: Kind) -> None:
    before = shared_peer(kind)
    before.process.kill()
    before.process.wait()

    after = shared_peer(kind)

    assert after.process.poll() is None
    after.end()


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_missing_peer_skips_or_fails(ci: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(peers, "missing_for", lambda kind: f"no {kind}")

    with pytest.raises(pytest.fail.Exception if ci else pytest.skip.Exception, match="no js"):
        peers.require_peer("js")
