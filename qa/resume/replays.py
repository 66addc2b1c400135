"""An eavesdropper records the RESUME frames of a client, and replays them behind every cut."""

from __future__ import annotations

import random

import trio

from qa.resume.proxy import HOST, Proxy, reset
from qa.resume.recorder import Recorder

ERROR = 0x0B
REJECTED_RESUME = 4
LATEST = 3
"""Number of the latest recorded frames that are replayed each time, beside as many older ones."""
PATIENCE = 0.05
"""Seconds to wait for an answer. A connection that is let in stays until the next cut, or closes at once."""


class Eavesdropper:
    """Replays behind each cut, at the moment of the cut and once more when the client is back.

    ``refused`` counts those that were told REJECTED_RESUME, ``taken`` those that got an answer of another kind.
    """

    def __init__(self, proxy: Proxy, recorder: Recorder, chance: random.Random) -> None:
        self.refused = 0
        self.taken = 0
        self._proxy = proxy
        self._recorder = recorder
        self._chance = chance
        self._held: list[trio.SocketStream] = []

    async def run(self) -> None:
        """Go on until cancelled."""
        proxy, recorder = self._proxy, self._recorder
        try:
            while True:
                made, resumed = proxy.made, recorder.resumed
                while proxy.made == made:  # noqa: ASYNC110
                    await trio.sleep(0.001)
                while self._held:
                    reset(self._held.pop())
                await self._replay()
                with trio.move_on_after(1):
                    while recorder.resumed == resumed:  # noqa: ASYNC110
                        await trio.sleep(0.001)
                await self._replay()
        finally:
            while self._held:
                reset(self._held.pop())

    async def _replay(self) -> None:
        recorded = self._recorder.comebacks
        older = recorded[:-LATEST]
        for frame in (*self._chance.sample(older, min(LATEST, len(older))), *recorded[-LATEST:]):
            await self._say(frame)

    async def _say(self, frame: bytes) -> None:
        stream = await trio.open_tcp_stream(HOST, self._proxy.target)
        try:
            await stream.send_all(len(frame).to_bytes(3, "big") + frame)
            answer = b""
            with trio.move_on_after(PATIENCE):
                while len(answer) < 13 and (data := bytes(await stream.receive_some())):
                    answer += data
            if len(answer) >= 13 and answer[7] >> 2 == ERROR:
                assert int.from_bytes(answer[9:13], "big") == REJECTED_RESUME, answer
                self.refused += 1
            elif answer:
                self.taken += 1
                if self._chance.random() < 0.5:
                    self._held.append(stream)
                    return
        except trio.BrokenResourceError:
            pass  # The client came back meanwhile.
        reset(stream)
