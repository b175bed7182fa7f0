"""Agents in this process, over real WebSockets: they keep the link's protocol and their workers compute nothing.

The real ones are driven by ``test_daemon``. These exist so that hundreds of runs can be gone through in seconds.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bamboo_agent.messages import (
    PROTOCOL_VERSION,
    Acknowledge,
    AgentMessage,
    Beat,
    Envelope,
    Join,
    Leave,
    Refused,
    StartWorker,
    StopWorker,
    TellWorker,
    ToAgent,
    Welcome,
    WorkerExited,
    WorkerSaid,
    WorkerState,
    decode_to_agent,
)
from bamboo_trainer.control import (
    Adopt,
    Adopted,
    FromWorker,
    LayerCost,
    LayerSaved,
    ModelWritten,
    Prepare,
    Prepared,
    RunComplete,
    StepCommitted,
    ToWorker,
    WorkerReady,
    WriteModel,
    encode,
)
from bamboo_trainer.plan import NodeId, Plan, StepSummary, WorkerId
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.protocol import State

from bamboo_cli.providers.base import Instance, NodeConfig
from tests.waiting import repeat, turn

LAYERS = ("first", "second")
STEP_S = 0.002
"""What a step is said to take; nobody waits for it."""


@dataclass
class WorkerDouble:
    worker_id: WorkerId
    run_id: str | None = None
    num_steps: int = 0
    plan: Plan | None = None


@dataclass
class Training:
    """What all workers of the run share: the steps that were committed."""

    committed: int = -1


@dataclass
class AgentDouble:
    instance: Instance
    config: NodeConfig
    training: Training
    workers: dict[WorkerId, WorkerDouble] = field(default_factory=dict)
    started: list[WorkerId] = field(default_factory=list)
    """Every process that was ever started here."""
    unheard: list[Envelope] = field(default_factory=list)
    said: int = 0
    link: ClientConnection | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    over: bool = False

    async def live(self) -> None:
        """Until it is told to leave; a lost link is made again for ever."""
        try:
            await repeat(self._live_with_one_link, lambda: self.over)
        finally:
            for task in self.tasks:
                task.cancel()

    async def _live_with_one_link(self) -> None:
        url = f"ws://{self.config.coordinator_address}:{self.config.coordinator_port}/agent"
        headers = {"Authorization": f"Bearer {self.config.secret}"}
        with suppress(OSError, WebSocketException):
            async with connect(url, additional_headers=headers) as link:
                await link.send(encode(self._join()).decode())
                async for text in link:
                    await self._heed(link, decode_to_agent(text))
        self.link = None

    def _join(self) -> Join:
        return Join(
            protocol_version=PROTOCOL_VERSION,
            node_id=NodeId(self.instance.node_id),
            boot_id="boot",
            instance_id=self.instance.instance_id,
            zone=self.instance.zone,
            address=self.instance.address,
            pid=1,
            workers=tuple(
                WorkerState(worker_id=w.worker_id, ready=True, address="127.0.0.1", port=7, run_id=w.run_id)
                for w in self.workers.values()
            ),
        )

    async def _heed(self, link: ClientConnection, message: ToAgent) -> None:
        match message:
            case Welcome():
                self._forget(message.acknowledged)
                self.link = link
                for envelope in tuple(self.unheard):
                    await link.send(encode(envelope).decode())
                self._do(self._beat(link, message.beat_s))
            case Acknowledge():
                self._forget(message.sequence)
            case StartWorker() if message.worker_id not in self.workers:
                self.workers[message.worker_id] = WorkerDouble(worker_id=message.worker_id)
                self.started.append(message.worker_id)
                await self._relay(message.worker_id, WorkerReady(address="127.0.0.1", port=7, pid=1))
            case StopWorker() if message.worker_id in self.workers:
                del self.workers[message.worker_id]
                await self._say(WorkerExited(worker_id=message.worker_id, exit_code=0, log_tail=""))
            case TellWorker() if message.worker_id in self.workers:
                await self._instruct(self.workers[message.worker_id], message.message)
            case Leave():
                self.over = True
                await link.close()
            case Refused():
                self.over = message.final

    async def _instruct(self, worker: WorkerDouble, message: ToWorker) -> None:
        match message:
            case Prepare():
                worker.run_id, worker.num_steps = message.spec.run_id, message.spec.num_steps
                costs = tuple(
                    LayerCost(name=name, forward_s=0.001, backward_s=0.002, parameter_bytes=8, activation_bytes=8)
                    for name in LAYERS
                )
                prepared = Prepared(
                    run_id=message.spec.run_id, layer_names=LAYERS, costs=costs if message.profile else ()
                )
                await self._relay(worker.worker_id, prepared)
            case Adopt() if worker.plan is None or worker.plan.generation < message.plan.generation:
                worker.plan = message.plan
                await self._relay(worker.worker_id, Adopted(generation=message.plan.generation))
                self._do(self._train(worker, message.plan))
            case WriteModel():
                model = ModelWritten(
                    checkpoint_step=message.checkpoint_step, url=message.url, num_parameters=4, weights_sha256="2" * 64
                )
                await self._relay(worker.worker_id, model)

    async def _beat(self, link: ClientConnection, beat_s: float) -> None:
        async def beat() -> None:
            with suppress(ConnectionClosed):
                await link.send(encode(Beat(silence_s=dict.fromkeys(self.workers, 0.0))).decode())

        await repeat(beat, lambda: link.state is State.CLOSED, every_s=beat_s)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _train(self, worker: WorkerDouble, plan: Plan) -> None:
        while self.training.committed < worker.num_steps - 1:
            await turn()
            if plan.reporter == worker.worker_id:
                self.training.committed += 1
                await self._relay(worker.worker_id, _committed(plan, self.training.committed))
        for layer in {layer for stage in plan.hosted_by(worker.worker_id) for layer in stage.layers}:
            await self._relay(worker.worker_id, _saved(worker.num_steps - 1, layer))
        await self._relay(worker.worker_id, RunComplete(generation=plan.generation, step=worker.num_steps - 1))

    async def _relay(self, worker_id: WorkerId, message: FromWorker) -> None:
        await self._say(WorkerSaid(worker_id=worker_id, message=message))

    async def _say(self, message: AgentMessage) -> None:
        self.said += 1
        envelope = Envelope(sequence=self.said, sent_at=0.0, message=message)
        self.unheard.append(envelope)
        if self.link is not None:
            with suppress(ConnectionClosed):
                await self.link.send(encode(envelope).decode())

    def _forget(self, sequence: int) -> None:
        self.unheard = [envelope for envelope in self.unheard if envelope.sequence > sequence]


def _committed(plan: Plan, step: int) -> StepCommitted:
    return StepCommitted(
        generation=plan.generation,
        plan_generation=plan.generation,
        summary=StepSummary(step=step, losses=(1.0 / (1 + step),), square_norms=(1.0,)),
        learning_rate=0.1,
        step_s=STEP_S,
        num_samples=4,
    )


def _saved(step: int, layer: int) -> LayerSaved:
    return LayerSaved(
        checkpoint_step=step,
        layer=layer,
        name=LAYERS[layer],
        file=f"layer-{layer}",
        num_bytes=7,
        file_sha256="0" * 64,
        parameters_sha256="1" * 64,
    )
