"""The coordinator's shell: one queue of events; for each, one transaction, and then what the machine wants done.

Nothing is decided here. A kill at any instant loses nothing: before the transaction the event has not happened (agents
send again, the cloud is looked at again, requests stay pending); after it, the machine says again what still holds.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from bamboo_trainer.plan import NodeId
from sqlalchemy import Connection, select, update

from bamboo_cli.coordinator import archive, journal, schema, spending
from bamboo_cli.coordinator.asked import Asked, Preempt, pending, understand
from bamboo_cli.coordinator.cloud import Cloud
from bamboo_cli.coordinator.events import (
    CreateInstance,
    FinishRequest,
    Instruction,
    ListCheckpoints,
    MarkCheckpoint,
    PreemptInstance,
    PruneCheckpoints,
    RefuseAgent,
    RequestMade,
    SendToAgent,
    Started,
    StopCoordinator,
    StoryKind,
    Tell,
    TerminateInstance,
)
from bamboo_cli.coordinator.inbox import Inbox
from bamboo_cli.coordinator.machine import Machine
from bamboo_cli.coordinator.preparing import Preparing
from bamboo_cli.coordinator.server import AgentServer, Link
from bamboo_cli.coordinator.settings import ClusterConfig
from bamboo_cli.coordinator.store import (
    open_for_reading,
    open_for_writing,
    reading,
    state_path,
    understood,
    writing,
)
from bamboo_cli.errors import CloudError, StateError, UsageError
from bamboo_cli.providers.base import NodeConfig, Provider
from bamboo_cli.remote.settings import RemoteConfig
from bamboo_cli.tracking.following import Following

REQUESTS_S = 0.1
HEARTBEAT_S = 1.0
LOCK_WAIT_S = 0.2
"""Nothing is heard while SQLite waits for a lock; so not long, and again later."""
RETRY_S = 0.5
MAX_RETRY_S = 5.0

log = logging.getLogger(__name__)


class Service:
    """Make it inside a running event loop. Raises StateError when the state file cannot be used."""

    def __init__(
        self,
        cluster_dir: Path,
        *,
        config: ClusterConfig,
        provider: Provider,
        notice_s: float,
        clock: Callable[[], float],
        address: str = "127.0.0.1",
        remote: RemoteConfig = RemoteConfig(),
    ) -> None:
        """``notice_s``: of a drill's preemption with notice. ``address``: where agents reach this machine. ``remote``:
        what is wished of machines that come without an agent.
        """
        self._cluster_dir = cluster_dir
        self._config = config
        self._clock = clock
        self._address = address
        self._engine = open_for_writing(state_path(cluster_dir), lock_timeout_s=LOCK_WAIT_S)
        self._readers = open_for_reading(state_path(cluster_dir))
        with reading(self._readers) as connection:
            row = connection.execute(select(schema.cluster)).one()
            rows = journal.rows_of(connection)
        self._secret, self._port = str(row.secret), int(row.port or 0)
        self._machine = Machine(config)
        with understood(state_path(cluster_dir)):
            self._machine.load(rows)
        self._inbox = Inbox(clock)
        self._hear = self._inbox.hear
        self._asked: set[int] = set()
        self._doing: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._server = AgentServer(secret=self._secret, join=self._inbox.join, hear=self._hear)
        self._cloud = Cloud(
            provider=provider,
            engine=self._engine,
            cluster_id=config.cluster_id,
            node_config=self._node_config,
            notice_s=notice_s,
            clock=clock,
            hear=self._hear,
            tell=self._tell,
        )
        self._following = Following(cluster_dir, self._tell)
        self._preparing = Preparing(
            cluster_dir=cluster_dir,
            config=remote,
            node_config=self._node_config,
            hear=self._hear,
            lost=self._cloud.look_at_once,
        )

    async def run(self) -> None:
        """Until ``stop``, or until the cluster is closed and nothing is left.

        Raises StateError when the agents' port is taken, and whatever a bug raises.
        """
        self._port = await self._server.start(self._address, self._port)
        with writing(self._engine) as connection:
            connection.execute(
                update(schema.cluster).values(port=self._port, coordinator_pid=os.getpid(), heartbeat_at=self._clock())
            )
        self._hear(Started())
        await self._hear_farewells()
        for loop in (self._work(), self._inbox.tick(), self._read_requests(), self._show_life()):
            self._do(loop)
        look = spending.watch(lambda: self._machine.board.active_run, self._readers, self._clock, self._hear)
        show = self._following.watch(lambda: self._machine.board.run)
        for loop in (self._cloud.watch(), self._cloud.watch_prices(), look, show):
            self._do(loop)
        try:
            await self._over
        finally:
            await self._end()

    def stop(self) -> None:
        """In good order, the transaction at hand finished. Agents and workers go on."""
        if not self._over.done():
            self._over.set_result(None)

    async def _end(self) -> None:
        for task in self._doing:
            task.cancel()
        await asyncio.gather(*self._doing, return_exceptions=True)
        await self._preparing.end()
        await self._server.stop()
        self._engine.dispose()
        self._readers.dispose()
        await self._following.end()

    # --- hearing ------------------------------------------------------------------------------------------------

    async def _hear_farewells(self) -> None:
        """Before the cloud says that the machines are gone on which they were written."""
        run = self._machine.board.active_run
        if run is not None:
            for said in await archive.farewells(run.spec.training.checkpoint_url):
                self._hear(said)

    async def _read_requests(self) -> None:
        while True:
            with reading(self._readers) as connection:
                found = [asked for asked in pending(connection) if asked.request_id not in self._asked]
            for asked in found:
                self._asked.add(asked.request_id)
                await self._take(asked)
            await asyncio.sleep(REQUESTS_S)

    async def _take(self, asked: Asked) -> None:
        try:
            meaning = understand(asked, self._config.cluster_id, self._cluster_dir)
        except UsageError as error:
            await self._answer(FinishRequest(request_id=asked.request_id, ok=False, text=error.message))
            return
        if isinstance(meaning, Preempt):
            self._do(self._preempt(asked.request_id, meaning))
        else:
            self._hear(RequestMade(request_id=asked.request_id, request=meaning))

    async def _preempt(self, request_id: int, wanted: Preempt) -> None:
        try:
            await self._cloud.preempt(wanted.node_id, wanted.notice_s)
        except CloudError as error:
            await self._answer(FinishRequest(request_id=request_id, ok=False, text=error.message))
        else:
            await self._answer(FinishRequest(request_id=request_id, ok=True, text=f"{wanted.node_id} is being taken"))

    async def _show_life(self) -> None:
        while True:
            beats = self._inbox.take_beats()
            try:
                with writing(self._engine) as connection:
                    journal.record_heartbeat(connection, beats, self._clock())
            except StateError as error:
                log.warning("no heartbeat: %s", error.message)
            await asyncio.sleep(HEARTBEAT_S)

    # --- working ------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            at, event, link = await self._inbox.next()
            instructions = tuple(self._machine.handle(event, at))
            rows = self._machine.changed_rows()
            if rows or any(isinstance(i, journal.DURABLE) for i in instructions) or isinstance(event, journal.NOTED):
                await self._write(partial(journal.record, event=event, rows=rows, instructions=instructions, now=at))
            if link is not None and not any(isinstance(i, RefuseAgent) for i in instructions):
                self._server.admit(link)
            self._preparing.note(event)
            for instruction in instructions:
                self._perform(instruction, link)
            # A queue that is not empty gives nobody else a turn: 16 nodes that were prepared at once kept links from
            # being heard for 3 s.
            await asyncio.sleep(0)

    async def _write(self, change: Callable[[Connection], None]) -> None:
        """One transaction, tried until it succeeds: a full disk holds the coordinator up and loses nothing."""
        troubled_since: float | None = None
        wait_s = RETRY_S
        while True:
            try:
                with writing(self._engine) as connection:
                    change(connection)
                    if troubled_since is not None:
                        text = f"the state file could not be written for {self._clock() - troubled_since:.1f} s"
                        journal.tell(connection, Tell(kind=StoryKind.COORDINATOR, text=text), self._clock())
                return
            except StateError as error:
                if troubled_since is None:
                    troubled_since = self._clock()
                    log.error("%s %s Training goes on; trying again.", error.message, error.next_step)
            await asyncio.sleep(wait_s)
            wait_s = min(MAX_RETRY_S, wait_s * 2)

    def _perform(self, instruction: Instruction, link: Link | None) -> None:
        match instruction:
            case SendToAgent():
                self._server.send(instruction.node_id, instruction.message)
            case RefuseAgent():
                assert link is not None
                self._server.refuse(link, instruction.reason, final=instruction.final)
            case CreateInstance():
                self._do(self._cloud.create(instruction))
            case TerminateInstance():
                self._preparing.forget(instruction.node_id)
                self._cloud.terminate(instruction.node_id)
            case PreemptInstance():
                self._do(self._cloud.drill(instruction.node_id, notice=instruction.notice))
            case MarkCheckpoint():
                self._do(self._mark(instruction))
            case ListCheckpoints():
                self._do(self._find(instruction))
            case PruneCheckpoints():
                self._do(archive.prune(instruction))
            case StopCoordinator():
                self.stop()

    def _tell(self, line: Tell) -> None:
        self._do(self._write(partial(journal.tell, line=line, now=self._clock())))

    async def _answer(self, answer: FinishRequest) -> None:
        await self._write(partial(journal.finish, answer=answer, now=self._clock()))

    async def _mark(self, wanted: MarkCheckpoint) -> None:
        with reading(self._readers) as connection:
            spec = journal.spec_of(connection, wanted.run_id)
        self._hear(await archive.mark(wanted, spec, self._clock))

    async def _find(self, wanted: ListCheckpoints) -> None:
        self._hear(await archive.find(wanted, self._hear))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """Beside everything else. What it raises is a bug, or an unusable state file, and ends the service."""
        task = asyncio.create_task(work)
        self._doing.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._doing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._over.done():
            self._over.set_exception(error)

    def _node_config(self, node_id: NodeId) -> NodeConfig:
        return NodeConfig(
            cluster_id=self._config.cluster_id,
            node_id=node_id,
            coordinator_address=self._address,
            coordinator_port=self._port,
            secret=self._secret,
            beat_s=self._config.beat_s,
        )
