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

from bamboo_agent.imds import REQUEST_S, MetadataError, MetadataService
from bamboo_agent.messages import AgentMessage, Hint, MetadataTrouble, Notice

log = logging.getLogger(__name__)

ACTION_PATH = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
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
        self._said: set[AgentMessage] = set()
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
            self._say_once(parse_action(action))
        rebalance = await service.get(REBALANCE_PATH)
        if rebalance is not None:
            self._say_once(Hint(detail=f"rebalance recommendation: {rebalance[:200]}"))

    def _say_once(self, message: Notice | Hint) -> None:
        if message not in self._said:
            self._said.add(message)
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


def parse_action(text: str) -> Notice:
    """Raises MetadataError."""
    try:
        value: Any = json.loads(text)
        return Notice(action=str(value["action"]), deadline=datetime.fromisoformat(value["time"]).timestamp())
    except (ValueError, TypeError, KeyError) as error:
        raise MetadataError(f"answered {text[:120]!r} for {ACTION_PATH}") from error
