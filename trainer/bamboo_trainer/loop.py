"""The worker's loop: drains what arrived (peers, agent), does the most urgent action, waits when there is none.

One thread computes; readers, senders, the beat and the checkpoint writer have threads of their own and only post into
the inbox or write to the agent.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Literal, Protocol

import torch

from bamboo_trainer import control
from bamboo_trainer.device import CPU, Device, DeviceError, find_device
from bamboo_trainer.executor import Executor, Report, Send
from bamboo_trainer.frames import Frame, LearnLayer, Taught, Update, with_values
from bamboo_trainer.link import FrameArrived, FromPeers, LinkDown, LinkUp
from bamboo_trainer.manifest import CheckpointError
from bamboo_trainer.model_file import write_model
from bamboo_trainer.outbox import Outbox
from bamboo_trainer.plan import Member, Plan, PlanKind, WorkerId
from bamboo_trainer.profile import measure_layers
from bamboo_trainer.recipe import Recipe, RecipeError, load_recipe
from bamboo_trainer.recorder import RecordingExecutor
from bamboo_trainer.schedule import Kind
from bamboo_trainer.torch_compute import TorchCompute
from bamboo_trainer.wrapping import ExecutorLike

log = logging.getLogger("bamboo.worker")

WHAT_HELPS = (
    "Make `microbatch_size` smaller, or cut the layers into more `stages`; with `redundancy_memory: host`, or "
    "`redundancy: lazy` or `mirror`, less is kept for losses. Then train again: it goes on from the last checkpoint"
)


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """What a frame carries could not be copied from the device."""

    error: Exception


Inbox = SimpleQueue[FromPeers | control.ToWorker | CopyFailed]


class Transport(Protocol):
    def send(self, peer: WorkerId, frame: Frame) -> None: ...
    def set_peers(self, members: tuple[Member, ...], kept: frozenset[WorkerId] = frozenset()) -> None: ...
    def learn_from(self, members: tuple[Member, ...]) -> None: ...


MakeExecutor = Callable[[WorkerId, control.TrainingSpec, TorchCompute, Send, Report], ExecutorLike]


class _Job:
    """The run that this worker was prepared for."""

    def __init__(
        self,
        spec: control.TrainingSpec,
        recipe: Recipe,
        device: Device,
        compute: TorchCompute,
        executor: RecordingExecutor,
        outbox: Outbox | None,
    ) -> None:
        self.spec, self.recipe, self.device, self.compute, self.executor = spec, recipe, device, compute, executor
        self._outbox = outbox

    def receive(self, peer: WorkerId, frame: Frame) -> None:
        if self.device.apart:
            frame = with_values(frame, self.device.to_device)
        self.executor.receive(peer, frame)

    def close(self) -> None:
        """What was sent and saved before is on its way, and on disk."""
        if self._outbox is not None:
            self._outbox.close()
        self.compute.close()


class WorkerLoop:
    """``post`` is for the transport, from any thread; ``run`` returns when the agent says ``Exit``."""

    def __init__(
        self,
        worker_id: WorkerId,
        inbox: Inbox,
        report: Report,
        make_executor: MakeExecutor = Executor,
        clock: Callable[[], float] = time.monotonic,
        find_device: Callable[[control.DeviceWish], Device] = find_device,
    ) -> None:
        self._worker_id = worker_id
        self._inbox = inbox
        self._transport: Transport
        self._tell_agent = report
        self._make_executor = make_executor
        self._clock = clock
        self._find_device = find_device
        self._device = CPU
        self._last_commit_at = self._learn_began_at = clock()
        self._job: _Job | None = None
        self._unhurried: deque[tuple[WorkerId, Frame]] = deque()
        """Layers that are learned and taught, in order: a step in flight never waits for them."""

    def post(self, item: FromPeers) -> None:
        """Ends of links are told, arrivals noted, at once: the action at hand may take seconds."""
        job = self._job
        match item:
            case LinkUp(peer) if job:
                self._tell_agent(control.PeerRestored(generation=job.executor.generation, peer=peer))
            case FrameArrived(peer, frame) if job:
                job.executor.arrived(peer, frame)
            case LinkDown(peer, detail):
                log.warning("link to %s ended: %s", peer, detail)
                if job:
                    generation = job.executor.generation
                    self._tell_agent(control.PeerBroken(generation=generation, peer=peer, detail=detail))
        self._inbox.put(item)

    def run(self, transport: Transport) -> None:
        self._transport = transport
        while True:
            executor = self._job.executor if self._job else None
            action = executor.next() if executor and self._inbox.empty() else None
            if executor and action is not None:
                with self._telling(str(action)):
                    executor.perform(action)
                if action.kind is Kind.COMMIT:  # some are never idle: for them it must not become ever more
                    self._take_unhurried((len(self._unhurried) + 1) // 2)
                continue
            if self._unhurried and self._inbox.empty():
                self._take_unhurried(1)
                continue
            item = self._inbox.get()
            if isinstance(item, control.Exit):
                break
            with self._telling(type(item).__name__):
                self._take(item)
        if self._job:
            self._job.close()

    def _take_unhurried(self, at_most: int | None = None) -> None:
        num_waiting = len(self._unhurried)
        for _ in range(num_waiting if at_most is None else min(at_most, num_waiting)):
            peer, frame = self._unhurried.popleft()
            if self._job:
                with self._telling(type(frame).__name__):
                    self._job.receive(peer, frame)

    @contextmanager
    def _telling(self, doing: str) -> Iterator[None]:
        """What no other try would mend is told, and ends the run."""
        try:
            yield
        except RecipeError as error:
            self._fail("recipe", str(error))
        except DeviceError as error:
            self._fail("device", str(error))
        except torch.OutOfMemoryError:
            full = self._device.explain_full()
            self._fail("out_of_memory", f"{doing}: the device's memory is full: {full}. {WHAT_HELPS}")

    def _fail(self, fault: Literal["recipe", "device", "out_of_memory"], detail: str) -> None:
        log.exception("%s: %s", fault, detail)
        self._job = None
        self._tell_agent(control.WorkerFailed(fault=fault, detail=detail))

    def _take(self, item: FromPeers | control.ToWorker | CopyFailed) -> None:
        job = self._job
        match item:
            case CopyFailed():
                raise item.error
            case control.Prepare():
                self._prepare(item)
            case control.WriteModel() if job:
                self._write_model(job, item)
            case control.Adopt() if job:
                if item.plan.kind is PlanKind.BOUNDARY:
                    self._take_unhurried()  # what is learned by now counts under the plan
                self._adopt(job, item.plan)
            case control.Learn() if job:
                self._take_unhurried()
                self._learn_began_at = self._clock()
                self._transport.learn_from(item.sources)
                job.executor.learn(item)
            case control.Quiesce() if job:
                job.executor.quiesce(item.generation)
            case control.Halt() if job:
                job.executor.halt(item.generation)
            case control.Save() if job:
                job.executor.save(item.generation, item.step)
            case FrameArrived(peer, LearnLayer() | Taught() | Update() as frame) if job:
                self._unhurried.append((peer, frame))
            case FrameArrived(peer, frame) if job:
                job.receive(peer, frame)
            case LinkUp() if job:
                job.executor.link_up(item.peer)
            case LinkUp() | LinkDown():
                pass  # told by ``post``; a link that is made anew makes up for what was lost
            case _:
                log.warning("%s before a run was prepared: ignored", type(item).__name__)

    def _prepare(self, item: control.Prepare) -> None:
        """What is already prepared is not built again (a coordinator that was started anew asks twice)."""
        spec = item.spec
        if self._job is None or self._job.spec != spec:
            if self._job:
                self._job.close()
                self._job = None  # its memory is free before the next one's is needed
            self._unhurried.clear()
            self._job = self._make_job(spec)
            log.info("prepared %s of run %s on %s", spec.recipe, spec.run_id, self._job.device.name)
        job = self._job
        costs = measure_layers(spec, job.recipe, job.device) if item.profile else ()
        self._tell_agent(
            control.Prepared(
                run_id=spec.run_id,
                layer_names=tuple(name for name, _ in job.recipe.layers),
                costs=costs,
                device=job.device.name,
                device_bytes=job.device.free_bytes,
            )
        )

    def _make_job(self, spec: control.TrainingSpec) -> _Job:
        device = self._device = self._find_device(spec.device)
        recipe = load_recipe(spec.recipe, spec.recipe_options, spec.recipe_source)
        compute = TorchCompute(spec, recipe, self._tell_agent, device=device)
        outbox = None
        if device.apart:
            outbox = Outbox(device, self._transport.send, lambda error: self._inbox.put(CopyFailed(error)))
        send = outbox.send if outbox is not None else self._transport.send
        executor = self._make_executor(self._worker_id, spec, compute, send, self._report)
        recording = RecordingExecutor(executor, self._worker_id, spec.run_id, self._tell_agent)
        return _Job(spec, recipe, device, compute, recording, outbox)

    def _adopt(self, job: _Job, plan: Plan) -> None:
        log.info("plan %d (%s) from step %d: %s", plan.generation, plan.kind, plan.first_step, plan.reason)
        is_member = self._worker_id in plan.worker_ids()
        learners = job.executor.learners if plan.kind is PlanKind.FAILOVER else frozenset[WorkerId]()
        self._transport.set_peers(plan.members if is_member else (), learners)
        self._last_commit_at = self._clock()
        try:
            job.executor.adopt(plan)
        except CheckpointError as error:
            log.warning("restore: %s", error)
            self._tell_agent(control.WorkerFailed(fault="checkpoint_unreadable", detail=str(error)))

    def _report(self, message: control.FromWorker) -> None:
        """Adds what needs the clock or the recipe to what the executor says."""
        if isinstance(message, control.StepCommitted) and self._job:
            now = self._clock()
            recipe = self._job.recipe
            message = replace(
                message,
                learning_rate=recipe.learning_rate(message.summary.step),
                step_s=now - self._last_commit_at,
                num_tokens=message.num_samples * recipe.tokens_per_sample,
            )
            self._last_commit_at = now
        elif isinstance(message, control.Learned):
            message = replace(message, took_s=self._clock() - self._learn_began_at)
        self._tell_agent(message)

    def _write_model(self, job: _Job, item: control.WriteModel) -> None:
        try:
            num_parameters, digest = write_model(job.spec.checkpoint_url, item.checkpoint_step, item.url, job.recipe)
        except (CheckpointError, OSError) as error:
            self._tell_agent(control.WorkerFailed(fault="checkpoint_unreadable", detail=str(error)))
            return
        self._tell_agent(
            control.ModelWritten(
                checkpoint_step=item.checkpoint_step, url=item.url, num_parameters=num_parameters, weights_sha256=digest
            )
        )
