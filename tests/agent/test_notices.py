"""The notice watch against a metadata service that answers well and badly."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from bamboo_agent import notices
from bamboo_agent.imds import MetadataError, MetadataService
from bamboo_agent.messages import AgentMessage, Hint, MetadataTrouble, Notice
from bamboo_agent.notices import REBALANCE_PATH, NoticeWatch, parse_action

from tests.agent.metadata_double import ACTION, MetadataDouble, answer, metadata_double
from tests.waiting import until

TAKEN = '{"action": "terminate", "time": "2026-11-29T16:00:00Z"}'
DEADLINE = datetime(2026, 11, 29, 16, tzinfo=UTC).timestamp()


@pytest.fixture
def service() -> Iterator[MetadataDouble]:
    with metadata_double() as double:
        yield double


@asynccontextmanager
async def watched(service: MetadataDouble, *, request_s: float = 20.0) -> AsyncIterator[list[AgentMessage]]:
    """What a running watch says."""
    said: list[AgentMessage] = []
    watch = NoticeWatch(endpoint=lambda: service.url, poll_s=0.01, say=said.append, request_s=request_s)
    task = asyncio.create_task(watch.run())
    try:
        yield said
    finally:
        task.cancel()
        await asyncio.wait({task})


async def more_requests(service: MetadataDouble, number: int) -> None:
    target = len(service.requests) + number
    await until(lambda: len(service.requests) >= target, f"{number} more requests")


def test_no_notice_is_said_while_there_is_none_and_one_token_is_enough(service: MetadataDouble) -> None:
    async def story() -> None:
        async with watched(service) as said:
            await more_requests(service, 9)
            assert said == []
        assert service.tokens_given == 1
        assert set(service.requests[1:]) == {f"GET {ACTION}", f"GET {REBALANCE_PATH}"}

    asyncio.run(story())


def test_a_notice_is_said_once_with_its_deadline(service: MetadataDouble) -> None:
    async def story() -> None:
        async with watched(service) as said:
            await more_requests(service, 3)
            service.texts[ACTION] = TAKEN
            await until(lambda: bool(said), "the notice")
            await more_requests(service, 6)
            assert said == [Notice(action="terminate", deadline=DEADLINE)]

    asyncio.run(story())


def test_a_rebalance_recommendation_is_a_hint(service: MetadataDouble) -> None:
    async def story() -> None:
        service.texts[REBALANCE_PATH] = '{"noticeTime": "2026-11-29T15:58:00Z"}'
        async with watched(service) as said:
            await until(lambda: bool(said), "the hint")
            await more_requests(service, 6)
            (hint,) = said
            assert isinstance(hint, Hint)
            assert "2026-11-29T15:58:00Z" in hint.detail

    asyncio.run(story())


def test_an_expired_token_is_renewed_without_a_word(service: MetadataDouble) -> None:
    async def story() -> None:
        async with watched(service) as said:
            await more_requests(service, 3)
            service.valid.clear()
            service.texts[ACTION] = TAKEN
            await until(lambda: bool(said), "the notice")
            assert [type(message) for message in said] == [Notice]
        assert service.tokens_given == 2

    asyncio.run(story())


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (answer(500), "gave no token (status 500)"),
        (answer(403), "gave no token (status 403)"),
        (answer(404), "gave no token (status 404)"),
        (answer(200, "two\r\nlines"), "gave no token"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 okay\r\n\r\n", "does not speak HTTP"),
        (b"\x00" * 200_000, "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nx", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "does not speak HTTP"),
        (b"", "does not speak HTTP"),
    ],
)
def test_trouble_is_told_once_and_polled_through(service: MetadataDouble, raw: bytes, words: str) -> None:
    async def story() -> None:
        service.raw = raw
        async with watched(service) as said:
            await more_requests(service, 4)
            (trouble,) = said
            assert isinstance(trouble, MetadataTrouble)
            assert words in trouble.detail
            service.raw, service.texts[ACTION] = None, TAKEN
            await until(lambda: len(said) == 2, "the notice")
            assert said[1] == Notice(action="terminate", deadline=DEADLINE)

    asyncio.run(story())


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"])
def test_a_service_that_never_finishes_is_given_up_and_asked_again(service: MetadataDouble, begun: bytes) -> None:
    async def story() -> None:
        service.raw, service.silent = begun, True
        async with watched(service, request_s=0.3) as said:
            await more_requests(service, 2)
            assert [type(message) for message in said] == [MetadataTrouble]
            service.raw, service.silent, service.texts[ACTION] = None, False, TAKEN
            await until(lambda: len(said) == 2, "the notice")

    asyncio.run(story())


def test_tokens_that_are_never_accepted_are_trouble(service: MetadataDouble) -> None:
    async def story() -> None:
        service.gives_tokens = False
        async with watched(service) as said:
            await until(lambda: bool(said), "the trouble")
            (trouble,) = said
            assert isinstance(trouble, MetadataTrouble)
            assert "answered 401" in trouble.detail

    asyncio.run(story())


@pytest.mark.parametrize(
    "text", ["", "null", "[1]", "{}", '{"action": "terminate"}', '{"action": "x", "time": "soon"}']
)
def test_a_notice_that_cannot_be_read_is_trouble_and_no_notice(text: str) -> None:
    with pytest.raises(MetadataError, match=r"answered .* for /latest/meta-data/spot/instance-action"):
        parse_action(text)


def test_trouble_that_comes_back_within_the_hour_is_not_told_again(service: MetadataDouble) -> None:
    async def story() -> None:
        async with watched(service) as said:
            for _ in range(3):
                service.raw = answer(500)
                await more_requests(service, 2)
                service.raw = None
                await more_requests(service, 3)
            assert [type(message) for message in said] == [MetadataTrouble]

    asyncio.run(story())


def test_proxies_of_the_environment_are_ignored(service: MetadataDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    service.texts[ACTION] = TAKEN
    answer = asyncio.run(MetadataService(service.url).get(ACTION))
    assert answer is not None and answer.body == TAKEN


@pytest.mark.parametrize(("ahead_s", "expected_s"), [(0.4, 0.0), (-1.0, 0.0), (90.0, 90.0), (-3600.0, -3600.0)])
def test_the_deadline_is_told_by_this_machines_clock(
    service: MetadataDouble, ahead_s: float, expected_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is how much time is left by the clock that the cloud itself shows, in whole seconds."""
    now = DEADLINE - 120.25
    monkeypatch.setattr(notices, "time", SimpleNamespace(time=lambda: now, monotonic=time.monotonic))

    async def story() -> None:
        service.now, service.texts[ACTION] = now + ahead_s, TAKEN
        async with watched(service) as said:
            await until(lambda: bool(said), "the notice")
            await more_requests(service, 6)
            (notice,) = said
            assert isinstance(notice, Notice)
            assert abs(notice.deadline - (DEADLINE - expected_s)) < 2.0

    asyncio.run(story())


def test_a_date_that_is_none_is_no_reason_to_miss_a_notice(service: MetadataDouble) -> None:
    async def story() -> None:
        async with watched(service) as said:
            await more_requests(service, 3)
            service.raw = answer(200, TAKEN, date="some day")
            await until(lambda: bool(said), "the notice")
            assert said == [Notice(action="terminate", deadline=DEADLINE)]

    asyncio.run(story())


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_service_that_is_overloaded_is_asked_for_ever_and_answers_in_the_end(
    service: MetadataDouble, status: int
) -> None:
    """Also where the token was still good: only the paths fail."""

    async def story() -> None:
        async with watched(service) as said:
            await more_requests(service, 3)
            service.raw = answer(status)
            await more_requests(service, 20)
            assert [type(message) for message in said] == [MetadataTrouble]
            service.raw, service.texts[ACTION] = None, TAKEN
            await until(lambda: len(said) == 2, "the notice")

    asyncio.run(story())
