"""Preemption notices, as EC2 gives them: the instance metadata service, version 2, polled for ever.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html: ``spot/instance-action``
is 404 until the instance is about to be taken, then ``{"action": "terminate", "time": "2026-11-29T16:00:00Z"}``.
``events/recommendations/rebalance`` warns without a deadline, before or with it.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from bamboo_agent.imds import REQUEST_S, Answer, MetadataError, MetadataService
from bamboo_agent.messages import AgentMessage, Hint, MetadataTrouble, Notice

log = logging.getLogger(__name__)

ACTION_PATH = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
MEASURABLE_S = 2.0
TELL_AGAIN_S = 3600.0
"""A service that fails now and then is not told of more often."""


class NoticeWatch:
    def __init__(
        self,
        *,
        endpoint: Callable[[], str],
        poll_s: float,
        say: Callable[[AgentMessage], None],
        request_s: float = REQUEST_S,
    ) -> None:
        """``endpoint`` is asked again whenever the service has answered badly."""
        self._endpoint = endpoint
        self._poll_s = poll_s
        self._request_s = request_s
        self._say = say
        self._said: set[str] = set()
        """Answers."""
        self._failing = False
        self._told_at: float | None = None

    async def run(self) -> None:
        service = MetadataService(self._endpoint(), request_s=self._request_s)
        while True:
            try:
                await self._poll(service)
                self._well()
            except MetadataError as error:
                self._badly(service, error)
                service = MetadataService(self._endpoint(), request_s=self._request_s)
            await asyncio.sleep(self._poll_s)

    async def _poll(self, service: MetadataService) -> None:
        action = await service.get(ACTION_PATH)
        if action is not None:
            self._say_once(action, parse_action(action.body, _ahead_s(action, time.time())))
        rebalance = await service.get(REBALANCE_PATH)
        if rebalance is not None:
            self._say_once(rebalance, Hint(detail=f"rebalance recommendation: {rebalance.body[:200]}"))

    def _say_once(self, answer: Answer, message: Notice | Hint) -> None:
        if answer.body not in self._said:
            self._said.add(answer.body)
            log.warning("from the cloud: %s", message)
            self._say(message)

    def _well(self) -> None:
        if self._failing:
            log.info("the metadata service answers again")
        self._failing = False

    def _badly(self, service: MetadataService, error: MetadataError) -> None:
        if self._failing:
            return
        self._failing = True
        log.warning("metadata service %s: %s; polling on", service.endpoint, error)
        now = time.monotonic()
        if self._told_at is None or now - self._told_at > TELL_AGAIN_S:
            self._told_at = now
            self._say(MetadataTrouble(detail=f"{service.endpoint}: {error}"))


def parse_action(text: str, ahead_s: float = 0.0) -> Notice:
    """``ahead_s``: of the cloud's clock, before this machine's, by which the deadline is told. Raises MetadataError."""
    try:
        value: Any = json.loads(text)
        deadline = datetime.fromisoformat(value["time"]).timestamp() - ahead_s
        return Notice(action=str(value["action"]), deadline=deadline)
    except (ValueError, TypeError, KeyError) as error:
        raise MetadataError(f"answered {text[:120]!r} for {ACTION_PATH}") from error


def _ahead_s(answer: Answer, now: float) -> float:
    """0 for what a date in whole seconds, and the way of the answer, can explain."""
    ahead_s = 0.0 if answer.date is None else answer.date - now
    return ahead_s if abs(ahead_s) > MEASURABLE_S else 0.0
