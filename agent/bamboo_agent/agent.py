"""One node's daemon: notices and workers on one side, the coordinator on the other."""

import asyncio
import logging
import os
import signal
import time
import uuid
from pathlib import Path

from bamboo_trainer.plan import NodeId

from bamboo_agent import accelerators
from bamboo_agent.config import AgentConfig, ConfigError, read_config
from bamboo_agent.farewell import Farewell
from bamboo_agent.link import Link
from bamboo_agent.messages import (
    PROTOCOL_VERSION,
    AgentMessage,
    Beat,
    Join,
    Leave,
    StartWorker,
    StopWorker,
    TellWorker,
    ToAgent,
)
from bamboo_agent.notices import NoticeWatch
from bamboo_agent.nursery import Nursery
from bamboo_agent.orphan import Orphan
from bamboo_agent.workers import Workers

log = logging.getLogger(__name__)


class Agent:
    def __init__(self, *, path: Path, config: AgentConfig, command: tuple[str, ...], has_nursery: bool) -> None:
        """``path``: the file that ``config`` was read from; it is read again before each connection."""
        self._path = path
        self._config = config
        self._boot_id = uuid.uuid4().hex
        self._left = asyncio.Event()
        self._devices = accelerators.devices(os.environ)
        self._nursery = Nursery() if has_nursery else None
        self._link = Link(
            read_config=lambda: read_config(path), join=self._join, beat=self._beat, on_message=self._on_message
        )
        self._workers = Workers(
            command=command,
            environment={
                "BAMBOO_NODE_ID": config.node_id,
                "BAMBOO_LISTEN_ADDRESS": config.address,
                "BAMBOO_BEAT_S": str(config.beat_s),
                "BAMBOO_LINK_SECRET": config.secret,
            },
            folder=path.parent,
            devices=self._devices,
            say=self._say,
            nursery=self._nursery,
        )
        self._orphan = Orphan(
            config=self._read_again,
            alone_s=lambda: self._link.alone_s,
            tell=self._workers.tell,
            kept=lambda: Farewell(node_id=NodeId(config.node_id), boot_id=self._boot_id, envelopes=self._link.kept()),
        )
        self._notices = NoticeWatch(
            endpoint=lambda: self._read_again().endpoint, poll_s=config.notice_poll_s, say=self._link.say
        )

    async def run(self) -> int:
        """The exit code: 0 when the node was told to leave, 1 when the coordinator refused it for good."""
        log.info("agent of node %s (%s), boot %s", self._config.node_id, self._config.instance_id, self._boot_id)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._left.set)
        link = asyncio.create_task(self._link.run())
        notices = asyncio.create_task(self._notices.run())
        left = asyncio.create_task(self._left.wait())
        orphan = asyncio.create_task(self._orphan.run())
        nursery = asyncio.create_task(self._nursery.run()) if self._nursery else None
        try:
            await asyncio.wait({link, notices, orphan, left}, return_when=asyncio.FIRST_COMPLETED)
            for endless in (notices, orphan):
                if endless.done():
                    await endless  # raise its bug
            if link.done():
                log.error("the coordinator refused this node for good: %s", (await link).reason)
                return 1
            return 0
        finally:
            notices.cancel()
            orphan.cancel()
            if nursery:
                nursery.cancel()
                await asyncio.wait({nursery})
            await self._workers.end_all(fence=link.done(), reason="the agent ends")  # who is refused holds nobody up
            link.cancel()
            await asyncio.wait({link, notices, orphan})
            log.info("agent ends")

    def _join(self) -> Join:
        return Join(
            protocol_version=PROTOCOL_VERSION,
            node_id=NodeId(self._config.node_id),
            boot_id=self._boot_id,
            instance_id=self._config.instance_id,
            zone=self._config.zone,
            address=self._config.address,
            pid=os.getpid(),
            workers=self._workers.states(),
            num_accelerators=self._config.num_accelerators or max(1, len(self._devices)),
        )

    def _beat(self) -> Beat:
        return Beat(silence_s=self._workers.silence_s(), sent_at=time.time())

    def _say(self, message: AgentMessage) -> None:
        self._orphan.said(message)
        self._link.say(message)

    def _read_again(self) -> AgentConfig:
        """A local cloud that was started again may listen elsewhere, and says so in the file."""
        try:
            return read_config(self._path)
        except ConfigError:
            return self._config

    async def _on_message(self, message: ToAgent) -> None:
        match message:
            case StartWorker(worker_id=worker_id, accelerator=accelerator):
                self._workers.start(worker_id, accelerator)
            case StopWorker(worker_id=worker_id, fence=fence, reason=reason):
                self._workers.stop(worker_id, fence=fence, reason=reason)
            case TellWorker(worker_id=worker_id, message=told):
                self._orphan.told(worker_id, told)
                self._workers.tell(worker_id, told)
            case Leave(reason=reason):
                log.info("told to leave: %s", reason)
                self._left.set()
