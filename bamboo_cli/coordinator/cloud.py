"""The coordinator's hands and eyes at the cloud: creates, terminates, preempts, and looks what is there.

Decides nothing. What comes of it is given to ``hear`` as an event.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from bamboo_trainer.plan import NodeId
from sqlalchemy import Engine, select

from bamboo_cli.coordinator import journal, schema
from bamboo_cli.coordinator.events import (
    CreateFailed,
    CreateFault,
    CreateInstance,
    CreateSucceeded,
    Event,
    InstanceEnded,
    InstanceSeen,
    StoryKind,
    Tell,
)
from bamboo_cli.coordinator.faults import fault_of
from bamboo_cli.coordinator.renting import Renting
from bamboo_cli.coordinator.store import reading, writing
from bamboo_cli.errors import (
    BambooError,
    CloudError,
    CredentialsError,
    InstanceGoneError,
    RequestRefusedError,
)
from bamboo_cli.providers.base import EndReason, Instance, InstanceState, NodeConfig, Provider

MAX_POLL_S = 15.0
"""When the cloud does not answer."""
SOON_S = 1.0
"""Until the next look after something was given back: it may have ended by then."""
OFFERS_S = 30.0
MAX_CREATES = 16
"""At a time. A cloud takes a few a second; what waits here and is not wanted any more is never asked for."""
MISSING_S = 120.0
"""EC2 may not list a new instance at once, and a list may have a gap: until then, what is not listed is not gone."""

log = logging.getLogger(__name__)


class Cloud:
    def __init__(
        self,
        *,
        provider: Provider,
        engine: Engine,
        cluster_id: str,
        node_config: Callable[[NodeId], NodeConfig],
        notice_s: float,
        clock: Callable[[], float],
        hear: Callable[[Event], None],
        tell: Callable[[Tell], None],
    ) -> None:
        """``notice_s``: of a preemption that is asked for with notice."""
        self._provider = provider
        self._engine = engine
        self._cluster_id = cluster_id
        self._notice_s = notice_s
        self._clock = clock
        self._hear = hear
        self._tell = tell
        self._creating: set[NodeId] = set()
        self._unwanted: set[NodeId] = set()
        """To be terminated, and not seen ended."""
        self._unsure: dict[NodeId, float] = {}
        """Since when it is not known what came of a create for the node: the cloud may list it yet."""
        self._terminated: set[str] = set()
        """Instances, at least once."""
        self._seen: dict[str, Instance] = {}
        """As last told, by instance id."""
        self._listed_at: dict[str, float] = {}
        """When each instance was last, or was made, by our clock: the cloud's may be minutes off."""
        self._changed = asyncio.Event()
        self._room = asyncio.Semaphore(MAX_CREATES)
        self._renting = Renting(provider, engine, node_config, clock)
        self._restore()

    async def watch(self) -> None:
        """Look at the cloud for ever, at once when something was asked of it or may have happened in it."""
        wait_s, troubled = self._provider.poll_s, False
        while True:
            self._changed.clear()
            try:
                has_ended_more = await self._look()
                if troubled:
                    self._tell(Tell(kind=StoryKind.CLOUD, text="the cloud does as it is asked again"))
                wait_s, troubled = self._provider.poll_s, False
                if has_ended_more:
                    wait_s = min(SOON_S, wait_s)
            except BambooError as error:
                wait_s = min(MAX_POLL_S, wait_s * 2)
                if not troubled:
                    refused = (("refused", 1.0),) if isinstance(error, CredentialsError) else ()
                    text = f"the cloud does not do as it is asked: {error.message}; goes on trying"
                    self._tell(Tell(kind=StoryKind.CLOUD, text=text, numbers=refused))
                troubled = True
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with what it waits for.
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def look_at_once(self) -> None:
        """Something outside says that an instance may be gone."""
        self._changed.set()

    async def watch_prices(self) -> None:
        while True:
            try:
                await self._renting.offers()
            except BambooError as error:
                log.warning("prices: %s", error.message)
            await asyncio.sleep(OFFERS_S)

    async def create(self, wanted: CreateInstance) -> None:
        """Rent an instance; answered by ``CreateSucceeded`` or ``CreateFailed``."""
        self._creating.add(wanted.node_id)
        try:
            async with self._room:
                instance = await self._rent(wanted)
        except BambooError as error:
            fault = fault_of(error)
            if fault is CreateFault.CLOUD:
                self._unsure[wanted.node_id] = self._clock()
            detail = f"{error.message} ({error.next_step.rstrip('.')})" if error.next_step else error.message
            self._hear(CreateFailed(node_id=wanted.node_id, token=wanted.token, fault=fault, detail=detail))
        else:
            self._seen[instance.instance_id] = instance
            self._listed_at[instance.instance_id] = self._clock()
            self._unsure.pop(wanted.node_id, None)
            self._hear(CreateSucceeded(instance=instance))
            if instance.state is InstanceState.TERMINATED:  # a lost answer was asked for again, and it was gone by then
                self._end(instance, instance.end_reason, instance.ended_at)
        finally:
            self._creating.discard(wanted.node_id)
            self._changed.set()

    async def _rent(self, wanted: CreateInstance) -> Instance:
        """Unless it is not wanted any more, now that it is its turn. Raises BambooError."""
        if wanted.node_id in self._unwanted:
            kind = CloudError if wanted.node_id in self._unsure else RequestRefusedError
            raise kind("it is not wanted any more")
        return await self._renting.rent(wanted)

    def terminate(self, node_id: NodeId) -> None:
        """Give back whatever is the node's; answered by ``InstanceEnded``."""
        self._unwanted.add(node_id)
        self._changed.set()

    async def preempt(self, node_id: NodeId, notice_s: float | None) -> None:
        """Raises CloudError; InstanceGoneError when the node has no instance."""
        found = [i for i in self._seen.values() if i.node_id == node_id and i.state is not InstanceState.TERMINATED]
        if not found:
            raise InstanceGoneError(f"{node_id} has no instance that could be taken")
        await self._renting.call(self._provider.preempt, found[-1].instance_id, notice_s=notice_s)
        self._changed.set()

    async def drill(self, node_id: NodeId, *, notice: bool) -> None:
        """As ``preempt``; a failure goes into the story."""
        try:
            await self.preempt(node_id, self._notice_s if notice else None)
        except CloudError as error:
            self._tell(Tell(kind=StoryKind.DRILL, text=f"the drill did not happen: {error.message}", node_id=node_id))

    # --- looking ------------------------------------------------------------------------------------------------

    async def _look(self) -> bool:
        """Whether it has ended any that it had not before."""
        creating = frozenset(self._creating)
        listed = await self._renting.call(self._provider.instances, self._cluster_id)
        for instance in listed:
            self._note(instance)
        self._note_missing(listed)
        return await self._end_unwanted(creating)

    def _note(self, instance: Instance) -> None:
        before = self._seen.get(instance.instance_id)
        self._listed_at[instance.instance_id] = self._clock()
        is_over = instance.state is InstanceState.TERMINATED
        if before == instance or (is_over and before is not None and before.state is InstanceState.TERMINATED):
            return
        if is_over and before is None:  # it came and went while nobody looked: it costs money all the same
            with writing(self._engine) as connection:
                journal.record_instance(connection, instance)
        self._seen[instance.instance_id] = instance  # not before it is written down: else nobody would try again
        if is_over:
            self._end(instance, instance.end_reason, instance.ended_at)
        else:
            self._hear(InstanceSeen(instance=instance))

    def _note_missing(self, listed: tuple[Instance, ...]) -> None:
        there = {instance.instance_id for instance in listed}
        for instance in tuple(self._seen.values()):
            gone = instance.instance_id not in there and instance.state is not InstanceState.TERMINATED
            if gone and self._clock() - self._listed_at[instance.instance_id] > MISSING_S:
                self._seen[instance.instance_id] = replace(instance, state=InstanceState.TERMINATED)
                self._end(instance, EndReason.NONE, None)

    def _end(self, instance: Instance, reason: EndReason, at: float | None) -> None:
        node_id = NodeId(instance.node_id)
        self._unwanted.discard(node_id)
        self._hear(InstanceEnded(node_id=node_id, reason=reason, at=self._clock() if at is None else at))

    async def _end_unwanted(self, creating: frozenset[NodeId]) -> bool:
        """``creating``: whose instance the list may lack because it was not made yet."""
        alive = [
            i for i in self._seen.values() if i.state is not InstanceState.TERMINATED and i.node_id in self._unwanted
        ]
        may_come = {n for n, at in self._unsure.items() if self._clock() - at < self._provider.unlisted_s}
        there = {instance.node_id for instance in alive}
        for node_id in self._unwanted - there - may_come - creating - self._creating:
            self._unwanted.discard(node_id)
            self._hear(InstanceEnded(node_id=node_id, reason=EndReason.USER, at=self._clock()))
        if alive:
            await self._renting.call(self._provider.terminate, tuple(instance.instance_id for instance in alive))
        new = {instance.instance_id for instance in alive} - self._terminated
        self._terminated |= new
        return bool(new)

    def _restore(self) -> None:
        """What was known before the coordinator started again: what ended meanwhile is then noticed, and told once."""
        table = schema.instances
        with reading(self._engine) as connection:
            rows = connection.execute(select(table)).all()
        for row in rows:
            if row.launched_at is None:
                self._unsure[NodeId(row.node_id)] = self._clock()
                continue
            self._listed_at[row.instance_id] = min(row.intended_at, self._clock())
            self._seen[row.instance_id] = Instance(
                instance_id=row.instance_id,
                token=row.token,
                node_id=row.node_id,
                cluster_id=self._cluster_id,
                instance_type=row.instance_type,
                zone=row.zone,
                state=InstanceState.PENDING if row.ended_at is None else InstanceState.TERMINATED,
                address=row.address,
                launched_at=row.launched_at,
                ended_at=row.ended_at,
                is_spot=row.is_spot,
            )
