"""Sessions keep no more than they may, wait no longer than they should, and can't be had by guessing."""

from __future__ import annotations

import secrets

from qa.processes import MIB
from qa.resume.abuse import KEPT, dialled, guess, leave_behind, nowhere, refusal, resuming_server
from rsocket_trio import ResumeOptions
from rsocket_trio.rsocket.resume_protocol import TOKEN_SIZE
from rsocket_trio.server.session_registry import STREAM_BYTES
from tests.conformance import raw


async def test_sessions_that_clients_left_behind_stay_within_their_limits_and_end() -> None:
    options = ResumeOptions(sessions=60, sessions_bytes=50 * (KEPT + STREAM_BYTES + 100), session_seconds=0.6)

    came = await leave_behind(500, options)

    assert came.left == 0
    assert 40 <= came.most_waiting <= options.sessions
    assert came.most_bytes <= options.sessions_bytes
    assert came.growth <= options.sessions_bytes + 16 * MIB


async def test_a_guessed_token_finds_nothing() -> None:
    token = secrets.token_bytes(TOKEN_SIZE)
    async with resuming_server(ResumeOptions()) as (port, sessions), dialled(port) as rightful:
        await rightful.send(raw.setup(token=token))
        await rightful.expect_alive()

        assert guess(sessions, 10_000, nowhere()) == 0

        assert len(sessions) == 1
        await rightful.expect_alive()


async def test_a_second_client_with_the_same_token_harms_nobody_but_itself() -> None:
    token = secrets.token_bytes(TOKEN_SIZE)
    async with resuming_server(ResumeOptions()) as (port, sessions), dialled(port) as rightful:
        await rightful.send(raw.setup(token=token))
        await rightful.expect_alive()

        async with dialled(port) as second:
            await second.send(raw.setup(token=token))
            await second.expect_error(0, raw.REJECTED_SETUP)
        code, _ = await refusal(port, token, 10**6)
        assert code == raw.REJECTED_RESUME

        assert len(sessions) == 1
        await rightful.expect_alive()
