"""A cloud, agents and workers in memory, with behaviour, for tests of the machine alone.

Workers do no arithmetic; a step is committed when all members of a plan are there, have adopted it and hold their
layers. What they hold, at which step, is modelled exactly, and every plan is held against it: a plan that sends a
worker to a source without the layer, or rolls forward what is not held, fails the test there.

Nothing happens by itself: a test (or hypothesis) says what happens next.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bamboo_agent.messages import (
    PROTOCOL_VERSION,
    Acknowledge,
    AgentMessage,
    Envelope,
    Join,
    Leave,
    Notice,
    StartWorker,
    StopWorker,
    TellWorker,
    Welcome,
    WorkerExited,
    WorkerSaid,
    WorkerState,
)
from bamboo_trainer import control
from bamboo_trainer.plan import NodeId, Plan, PlanKind, StepSummary, WorkerId, node_id_of
from bamboo_trainer.plan_rules import check_plan

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.machine import Machine
from bamboo_cli.coordinator.settings import ClusterConfig
from bamboo_cli.providers.base import EndReason, Instance, InstanceState
from tests.coordinator.invariants import check_invariants

PORT = 7000
LAYER_COST_S = 0.01


def summary_of(step: int) -> StepSummary:
    """The loss falls from 4 by 1/16 a step."""
    return StepSummary(step=step, losses=(4.0 - step / 16,), square_norms=(1.0,))


@dataclass
class FakeWorker:
    """What a worker process holds and was told."""

    worker_id: WorkerId
    accelerator: int = 0
    ready: bool = False
    frozen: bool = False
    cut: bool = False
    spec: control.TrainingSpec | None = None
    plan: Plan | None = None
    generation: int = 0
    committed_step: int = -1
    held_step: int | None = None
    layers: set[int] = field(default_factory=set)
    awaited: dict[int, WorkerId] = field(default_factory=dict)
    stopped: bool = True
    stop_wanted: bool = False
    silent_since: float | None = None
    unread: list[control.ToWorker] = field(default_factory=list)
    """What reached it while it was frozen."""
    to_save: int | None = None
    save_after: int | None = None
    learned: control.Learn | None = None

    @property
    def node_id(self) -> NodeId:
        return node_id_of(self.worker_id)


@dataclass
class FakeNode:
    """An instance and its agent."""

    node_id: NodeId
    instance: Instance
    boot_id: str
    linked: bool = False
    frozen: bool = False
    gone: bool = False
    left: bool = False
    sequence: int = 0
    unacknowledged: list[Envelope] = field(default_factory=list)
    outbox: deque[Envelope] = field(default_factory=deque)
    inbox: deque[Any] = field(default_factory=deque)
    workers: dict[WorkerId, FakeWorker] = field(default_factory=dict)


class World:
    def __init__(self, config: ClusterConfig, num_layers: int = 6) -> None:
        self.config = config
        self.num_layers = num_layers
        self.machine = Machine(config)
        self.now = 1000.0
        self.nodes: dict[NodeId, FakeNode] = {}
        self.cloud_events: deque[ev.Event] = deque()
        self.asked: deque[ev.Instruction] = deque()
        self.short_zones: set[str] = set()
        self.markers: set[int] = set()
        self.broken_checkpoints: set[int] = set()
        self.full_disk = False
        self.free_bytes: dict[NodeId, int] = {}
        """On the devices of those nodes."""
        self.told: list[ev.Tell] = []
        self.steps: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.answers: dict[int, ev.FinishRequest] = {}
        self.trace: list[str] = []
        self.before_each: Callable[[ev.Event], None] = lambda event: None
        self.duplicate = False
        self.stopped = False

    # --- the machine ----------------------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        self.before_each(event)
        for _ in range(2 if self.duplicate else 1):
            instructions = self.machine.handle(event, self.now)
            self.machine.changed_rows()
            check_invariants(self.machine)
            for instruction in instructions:
                self._perform(instruction)

    def restart(self, *, announced: bool = True) -> None:
        """Another process with the stored rows. Announced: as after kill -9; else only to see that the rows are all."""
        rows = self.machine.dump()
        self.machine = Machine(self.config)
        if announced:
            rows.pop("pulse")
        self.machine.load(rows)
        if announced:
            for node in self.nodes.values():
                node.linked = False
                node.inbox.clear()
            self.asked.clear()
            self.handle(ev.Started())

    def _perform(self, instruction: ev.Instruction) -> None:
        match instruction:
            case ev.SendToAgent():
                node = self.nodes.get(instruction.node_id)
                if node is not None and node.linked and not node.gone:
                    node.inbox.append(instruction.message)
            case ev.RefuseAgent():
                node = self.nodes[instruction.node_id]
                node.linked, node.left = False, True
                node.workers.clear()
            case ev.Tell():
                self.told.append(instruction)
            case ev.RecordStep():
                self.steps[instruction.step] = self.steps.get(instruction.step, 0) + 1
            case ev.FinishRequest():
                assert instruction.request_id not in self.answers, "a request is finished once"
                self.answers[instruction.request_id] = instruction
            case ev.StopCoordinator():
                self.stopped = True
            case _:
                self.asked.append(instruction)
        if line := describe(instruction):
            self.trace.append(line)

    # --- the cloud and the archive --------------------------------------------------------------------------------

    def answer_one(self) -> bool:
        """Carry out the oldest thing that was asked of the cloud or the archive."""
        if not self.asked:
            return False
        asked = self.asked.popleft()
        match asked:
            case ev.CreateInstance():
                self.cloud_events.append(self._create(asked))
            case ev.TerminateInstance():
                self._end(asked.node_id, EndReason.USER)
            case ev.PreemptInstance():
                if asked.notice:
                    self.notice(asked.node_id, 30.0)
                else:
                    self.kill_node(asked.node_id)
            case ev.ListCheckpoints():
                steps = tuple(sorted(self.markers))
                self.cloud_events.append(ev.CompleteCheckpoints(run_id=asked.run_id, steps=steps))
            case ev.MarkCheckpoint():
                assert [e.layer for e in asked.entries] == list(range(self.num_layers))
                if self.full_disk:
                    failed = ev.MarkFailed(run_id=asked.run_id, step=asked.step, detail="no space left")
                    self.cloud_events.append(failed)
                else:
                    self.markers.add(asked.step)
                    self.cloud_events.append(ev.CheckpointMarked(run_id=asked.run_id, step=asked.step))
            case ev.PruneCheckpoints():
                self.markers &= set(asked.kept)
        return True

    def _create(self, asked: ev.CreateInstance) -> ev.Event:
        if asked.zone in self.short_zones:
            return ev.CreateFailed(
                node_id=asked.node_id, token=asked.token, fault=ev.CreateFault.CAPACITY, detail="no capacity"
            )
        node = self.nodes.get(asked.node_id)
        if node is None:
            number = int(asked.node_id[1:])
            instance = Instance(
                instance_id=f"i-{number}",
                token=asked.token,
                node_id=asked.node_id,
                cluster_id=self.config.cluster_id,
                instance_type="small",
                zone=asked.zone,
                state=InstanceState.RUNNING,
                address=f"127.0.0.{number}",
                launched_at=self.now,
            )
            node = self.nodes[asked.node_id] = FakeNode(
                node_id=asked.node_id, instance=instance, boot_id=f"boot-{number}"
            )
        return ev.CreateSucceeded(instance=node.instance)

    def _end(self, node_id: NodeId, reason: EndReason) -> None:
        node = self.nodes.get(node_id)
        if node is not None and not node.gone:
            node.gone = True
            node.workers.clear()
            node.outbox.clear()
            node.instance = replace(node.instance, state=InstanceState.TERMINATED)
        self.cloud_events.append(ev.InstanceEnded(node_id=node_id, reason=reason, at=self.now))

    # --- deliveries -----------------------------------------------------------------------------------------------

    def hear_cloud(self) -> bool:
        if not self.cloud_events:
            return False
        self.handle(self.cloud_events.popleft())
        return True

    def join(self, node: FakeNode) -> bool:
        """The agent's link comes up; what was not acknowledged is sent again."""
        if node.linked or node.gone or node.frozen or node.left:
            return False
        node.linked = True
        node.outbox = deque(node.unacknowledged)
        workers = tuple(
            WorkerState(worker_id=w.worker_id, ready=w.ready, generation=w.generation) for w in node.workers.values()
        )
        self.handle(
            ev.AgentJoined(
                join=Join(
                    protocol_version=PROTOCOL_VERSION,
                    node_id=node.node_id,
                    boot_id=node.boot_id,
                    instance_id=node.instance.instance_id,
                    zone=node.instance.zone,
                    address=node.instance.address,
                    pid=1,
                    workers=workers,
                    num_accelerators=self.config.num_accelerators,
                )
            )
        )
        return True

    def send_one(self, node: FakeNode) -> bool:
        """The agent's oldest message reaches the coordinator."""
        if not node.linked or node.frozen or node.gone or not node.outbox:
            return False
        envelope = node.outbox.popleft()
        self.handle(
            ev.AgentSaid(
                node_id=node.node_id, message=envelope.message, boot_id=node.boot_id, sequence=envelope.sequence
            )
        )
        return True

    def receive_one(self, node: FakeNode) -> bool:
        """The coordinator's oldest message reaches the agent and its worker."""
        if node.frozen or node.gone or not node.inbox:
            return False
        message = node.inbox.popleft()
        match message:
            case Acknowledge() | Welcome():
                upto = message.sequence if isinstance(message, Acknowledge) else message.acknowledged
                node.unacknowledged = [e for e in node.unacknowledged if e.sequence > upto]
                node.outbox = deque(e for e in node.outbox if e.sequence > upto)
            case StartWorker():
                if message.worker_id not in node.workers:
                    node.workers[message.worker_id] = FakeWorker(
                        worker_id=message.worker_id, accelerator=message.accelerator
                    )
            case StopWorker():
                if message.worker_id in node.workers:
                    self.end_worker(node, message.worker_id, -9 if message.fence else 0)
            case TellWorker():
                worker = node.workers.get(message.worker_id)
                if worker is not None and worker.frozen:
                    worker.unread.append(message.message)
                elif worker is not None:
                    self._tell_worker(worker, message.message)
            case Leave():
                node.workers.clear()
                node.left = True
                node.linked = False
        return True

    def beat(self) -> None:
        for node in list(self.nodes.values()):
            if node.linked and not node.frozen and not node.gone:
                silence = {
                    w.worker_id: self.now - w.silent_since for w in node.workers.values() if w.silent_since is not None
                }
                self.handle(ev.AgentBeat(node_id=node.node_id, silence_s=silence))

    def pass_time(self, seconds: float) -> None:
        """In ticks of a quarter of a second, with a beat each second."""
        for i in range(round(seconds * 4)):
            self.now += 0.25
            if i % 4 == 3:
                self.beat()
            self.handle(ev.Tick())

    def say(self, node: FakeNode, message: AgentMessage) -> None:
        node.sequence += 1
        envelope = Envelope(sequence=node.sequence, sent_at=self.now, message=message)
        node.unacknowledged.append(envelope)
        node.outbox.append(envelope)

    def report(self, worker: FakeWorker, message: control.FromWorker) -> None:
        node = self.nodes[worker.node_id]
        self.say(node, WorkerSaid(worker_id=worker.worker_id, message=message))

    # --- what workers do ------------------------------------------------------------------------------------------

    def warm(self, node: FakeNode) -> bool:
        """A worker of the node gets ready."""
        for worker in node.workers.values():
            if not worker.ready and not worker.frozen and not node.frozen:
                worker.ready = True
                number = int(node.node_id[1:])
                port = PORT + number + 100 * worker.accelerator
                self.report(worker, control.WorkerReady(address=f"127.0.0.{number}", port=port, pid=1))
                return True
        return False

    def _tell_worker(self, worker: FakeWorker, message: control.ToWorker) -> None:
        match message:
            case control.Prepare():
                self._prepare(worker, message)
            case control.Adopt():
                self._adopt(worker, message.plan)
            case control.Learn():
                worker.learned = message
                layers = tuple(sorted(f.layer for f in message.fetches))
                self.report(worker, control.Learned(base_generation=message.base_generation, layers=layers))
            case control.Quiesce():
                if message.generation == worker.generation and worker.plan is not None:
                    worker.stop_wanted = True
                    if worker.stopped:
                        self._report_stopped(worker)
            case control.Halt():
                if message.generation >= worker.generation:
                    worker.generation = message.generation
                    worker.stopped = True
                    self._report_stopped(worker)
            case control.Save() if message.generation == worker.generation:
                if message.step == worker.committed_step and not worker.awaited:
                    worker.to_save = message.step
                    self._save(worker)
                else:
                    worker.save_after = message.step
            case control.WriteModel():
                if message.checkpoint_step not in self.markers:
                    failed = control.WorkerFailed(fault="checkpoint_unreadable", detail="no such checkpoint")
                    self.report(worker, failed)
                    return
                written = control.ModelWritten(
                    checkpoint_step=message.checkpoint_step,
                    url=message.url,
                    num_parameters=1,
                    weights_sha256=f"weights after step {message.checkpoint_step}",
                )
                self.report(worker, written)

    def _prepare(self, worker: FakeWorker, message: control.Prepare) -> None:
        if worker.spec != message.spec:
            assert worker.plan is None, "a worker is prepared before it takes part"
            worker.spec = message.spec
        names = tuple(f"layer{i}" for i in range(self.num_layers))
        costs = tuple(
            control.LayerCost(
                name=name, forward_s=LAYER_COST_S, backward_s=2 * LAYER_COST_S, parameter_bytes=8, activation_bytes=8
            )
            for name in names
        )
        self.report(
            worker,
            control.Prepared(
                run_id=message.spec.run_id,
                layer_names=names,
                costs=costs if message.profile else (),
                device=f"the device of {worker.node_id}",
                device_bytes=self.free_bytes.get(worker.node_id),
            ),
        )

    def _adopt(self, worker: FakeWorker, plan: Plan) -> None:
        if plan.generation <= worker.generation:
            return
        check_plan(plan)
        assert worker.spec is not None, "only prepared workers are given a plan"
        self._save(worker)
        rolled = plan.roll_forward
        if rolled is not None and rolled.step == worker.committed_step + 1 and worker.layers:
            assert worker.held_step == rolled.step, f"{worker.worker_id} cannot roll forward to {rolled.step}"
            self._commit_on(worker, rolled.step)
        worker.generation, worker.plan, worker.stop_wanted = plan.generation, plan, False
        is_member = worker.worker_id in plan.worker_ids()
        if plan.kind is PlanKind.BOUNDARY:
            self._adopt_boundary(worker, plan)
        elif is_member:
            self._settle(worker)
        worker.stopped = not is_member or worker.committed_step + 1 >= worker.spec.num_steps
        self._retell(worker)
        if is_member:
            self._dial(worker, plan)

    def _dial(self, worker: FakeWorker, plan: Plan) -> None:
        """The smaller id dials; peers that cannot be reached are reported."""
        for peer_id in plan.worker_ids():
            peer = self.worker(peer_id)
            if worker.worker_id < peer_id and (peer is None or worker.cut or peer.cut):
                broken = control.PeerBroken(generation=worker.generation, peer=peer_id, detail="cannot be reached")
                self.report(worker, broken)

    def _retell(self, worker: FakeWorker) -> None:
        """A new reporter tells of the last step again."""
        if worker.plan and worker.worker_id == worker.plan.reporter and worker.committed_step >= 0:
            self._report_commit(worker, worker.committed_step)

    def _adopt_boundary(self, worker: FakeWorker, plan: Plan) -> None:
        if worker.committed_step != plan.first_step - 1:
            worker.layers.clear()
            worker.committed_step = plan.first_step - 1
        worker.held_step = None
        worker.awaited = {}
        followed = self._followed(worker, plan)
        for fetch in plan.fetches:
            if fetch.worker_id != worker.worker_id:
                continue
            if fetch.source is not None:
                if fetch.layer in followed:
                    worker.layers.add(fetch.layer)
                else:
                    worker.awaited[fetch.layer] = fetch.source
                continue
            if plan.checkpoint_step is not None:
                assert plan.checkpoint_step == plan.first_step - 1
                if plan.checkpoint_step in self.broken_checkpoints or plan.checkpoint_step not in self.markers:
                    failed = control.WorkerFailed(fault="checkpoint_unreadable", detail="truncated")
                    self.report(worker, failed)
                    return
            else:
                assert plan.first_step == 0
            worker.layers.add(fetch.layer)
        if not any(fetch.source == worker.worker_id for fetch in plan.fetches):
            worker.layers &= set(plan.layers_of(worker.worker_id))
        self._settle(worker)

    def _followed(self, worker: FakeWorker, plan: Plan) -> set[int]:
        """What it has learned and followed up to the plan's first step."""
        lesson, worker.learned = worker.learned, None
        if lesson is None or lesson.base_generation != plan.continues:
            return set()
        return {f.layer for f in lesson.fetches if f.source is not None and self.worker(f.source) is not None}

    def _settle(self, worker: FakeWorker) -> None:
        assert worker.plan is not None and worker.spec is not None
        if worker.awaited:
            return
        missing = set(worker.plan.layers_of(worker.worker_id)) - worker.layers
        assert not missing, f"{worker.worker_id} lacks layers {missing} under plan {worker.plan.generation}"
        self.report(worker, control.Adopted(generation=worker.generation))
        if worker.committed_step + 1 >= worker.spec.num_steps and worker.worker_id in worker.plan.worker_ids():
            worker.to_save = worker.spec.num_steps - 1

    def fetch(self, worker: FakeWorker) -> bool:
        """One layer travels."""
        if not self._is_up(worker) or worker.plan is None:
            return False
        for layer, source_id in worker.awaited.items():
            source = self.worker(source_id)
            if source is None or not self._is_up(source) or source.cut or worker.cut:
                continue
            if source.generation != worker.generation or source.plan != worker.plan:
                continue
            assert layer in source.layers, f"{source_id} was to hand over layer {layer}, which it does not hold"
            assert source.committed_step == worker.plan.first_step - 1
            del worker.awaited[layer]
            worker.layers.add(layer)
            self._settle(worker)
            return True
        return False

    def step(self, appliers: int | None = None) -> bool:
        """The step in flight is done by all and committed; ``appliers``: the first so many only get to apply it."""
        members = self._ready_members()
        if members is None:
            return False
        step = members[0].committed_step + 1
        behind = [m for m in members if m.committed_step < max(x.committed_step for x in members)]
        if behind:  # a peer tells of the commit: whoever holds the gradients applies them too
            step = behind[0].committed_step + 1
            members = behind
        stop = any(m.stop_wanted for m in self._ready_members() or ()) and not behind
        for m in members:
            m.held_step = step
        for m in members[:appliers]:
            self._commit_on(m, step)
            assert m.plan is not None and m.spec is not None
            if m.worker_id == m.plan.reporter:
                self._report_commit(m, step)
            if step == m.spec.num_steps - 1 or (step + 1) % m.spec.checkpoint_every == 0 or step == m.save_after:
                m.to_save = step
            m.stopped = stop or step == m.spec.num_steps - 1
            if stop:
                self._report_stopped(m)
        return True

    def _ready_members(self) -> list[FakeWorker] | None:
        """All members of the newest plan that a running worker has, if all of them can do a step together."""
        running = [w for n in self.nodes.values() for w in n.workers.values() if w.plan is not None]
        if not running:
            return None
        newest = max(running, key=lambda w: w.generation)
        plan = newest.plan
        assert plan is not None
        members = [self.worker(worker_id) for worker_id in plan.worker_ids()]
        for m in members:
            if m is None or not self._is_up(m) or m.plan != plan or m.generation != plan.generation:
                return None
            if m.awaited or (m.cut and len(members) > 1):
                return None
        found = [m for m in members if m is not None]
        at = {m.committed_step for m in found}
        going = [m for m in found if m.committed_step == min(at)]
        if any(m.stopped for m in going) or max(at) - min(at) > 1:
            return None
        if len(at) == 2 and any(m.held_step != max(at) for m in going):
            return None
        return found

    def _commit_on(self, worker: FakeWorker, step: int) -> None:
        assert worker.committed_step == step - 1
        worker.committed_step, worker.held_step = step, None
        if worker.plan is not None:  # layers that were only kept for others do not move with the step
            worker.layers &= set(worker.plan.layers_of(worker.worker_id))
        self.committed[step] = self.committed.get(step, 0) + 1

    def _report_commit(self, worker: FakeWorker, step: int) -> None:
        self.report(
            worker,
            control.StepCommitted(
                generation=worker.generation,
                plan_generation=worker.generation,
                summary=summary_of(step),
                learning_rate=0.1,
                step_s=0.5,
                num_samples=8,
                num_tokens=80,
            ),
        )

    def _report_stopped(self, worker: FakeWorker) -> None:
        held = worker.held_step if worker.held_step == worker.committed_step + 1 and not worker.awaited else None
        self.report(
            worker,
            control.Stopped(
                generation=worker.generation,
                committed_step=worker.committed_step,
                layers=tuple(sorted(worker.layers)),
                summary=summary_of(worker.committed_step) if worker.committed_step >= 0 else None,
                held_step=held,
            ),
        )

    def save(self, worker: FakeWorker) -> bool:
        """The worker's background writer gets its files down."""
        if worker.to_save is None or not self._is_up(worker):
            return False
        self._save(worker)
        return True

    def _save(self, worker: FakeWorker) -> None:
        if worker.to_save is None or worker.plan is None or worker.spec is None:
            return
        step, worker.to_save = worker.to_save, None
        for layer in range(self.num_layers):
            if worker.plan.stage_of_layer(layer % worker.plan.num_pipelines, layer).host != worker.worker_id:
                continue
            if self.full_disk:
                detail = "no space left on device"
                self.report(worker, control.CheckpointFailed(checkpoint_step=step, layer=layer, detail=detail))
                continue
            self.report(
                worker,
                control.LayerSaved(
                    checkpoint_step=step,
                    layer=layer,
                    name=f"layer{layer}",
                    file=f"layer-{layer}",
                    num_bytes=100,
                    file_sha256="f",
                    parameters_sha256="p",
                ),
            )
        if step == worker.spec.num_steps - 1:
            self.report(worker, control.RunComplete(generation=worker.generation, step=step))

    def worker(self, worker_id: WorkerId) -> FakeWorker | None:
        node = self.nodes.get(node_id_of(worker_id))
        return None if node is None else node.workers.get(worker_id)

    def _is_up(self, worker: FakeWorker) -> bool:
        node = self.nodes[worker.node_id]
        return not worker.frozen and not node.frozen and not node.gone

    def all_workers(self) -> list[FakeWorker]:
        return [w for n in self.nodes.values() for w in n.workers.values()]

    # --- misfortune -----------------------------------------------------------------------------------------------

    def kill_node(self, node_id: NodeId, reason: EndReason = EndReason.FAILED) -> None:
        """The machine vanishes: its link ends, its peers notice, the cloud says so last."""
        node = self.nodes[node_id]
        if node.gone:
            return
        workers = list(node.workers)
        self._end(node_id, reason)
        node.linked = False
        node.inbox.clear()
        self.handle(ev.AgentDropped(node_id=node_id))
        for worker_id in workers:
            self._break_links_to(worker_id)

    def _break_links_to(self, worker_id: WorkerId) -> None:
        for peer in self.all_workers():
            members = peer.plan.worker_ids() if peer.plan else ()
            if peer.worker_id != worker_id and {peer.worker_id, worker_id} <= set(members) and self._is_up(peer):
                self.report(peer, control.PeerBroken(generation=peer.generation, peer=worker_id, detail="reset"))

    def end_worker(self, node: FakeNode, worker_id: WorkerId, exit_code: int) -> None:
        """The process ends; its agent sees it, its peers' links break."""
        del node.workers[worker_id]
        self.say(node, WorkerExited(worker_id=worker_id, exit_code=exit_code, log_tail="Killed\n"))
        self._break_links_to(worker_id)

    def cut_worker(self, worker: FakeWorker) -> None:
        """Its links to its peers drop and stay down. (A frozen one would not notice.)"""
        if not self._is_up(worker):
            return
        worker.cut = True
        self._break_links_to(worker.worker_id)
        for peer in worker.plan.worker_ids() if worker.plan else ():
            if peer != worker.worker_id:
                self.report(worker, control.PeerBroken(generation=worker.generation, peer=peer, detail="cut"))

    def freeze_worker(self, worker: FakeWorker) -> None:
        worker.frozen = True
        worker.silent_since = self.now

    def hang_worker(self, worker: FakeWorker) -> None:
        """Its process beats and its links are up; what it computes never ends."""
        worker.frozen = True

    def thaw(self) -> None:
        for node in self.nodes.values():
            node.frozen = False
            for worker in node.workers.values():
                worker.frozen, worker.silent_since = False, None
                while worker.unread:
                    self._tell_worker(worker, worker.unread.pop(0))

    def drop_link(self, node: FakeNode) -> None:
        if node.linked:
            node.linked = False
            node.inbox.clear()
            self.handle(ev.AgentDropped(node_id=node.node_id))

    def notice(self, node_id: NodeId, seconds: float) -> None:
        node = self.nodes[node_id]
        if not node.gone:
            self.say(node, Notice(action="terminate", deadline=self.now + seconds))

    # --- everything that can happen by itself ---------------------------------------------------------------------

    def pump(self, *, training: bool = True, limit: int = 5000) -> None:
        """Until nothing more happens without time, misfortune or (``training`` False) another step."""
        for _ in range(limit):
            if not self.pump_once(training=training):
                return
        raise AssertionError("the world does not come to rest")

    def pump_once(self, *, training: bool) -> bool:
        progressed = self.answer_one() or self.hear_cloud()
        for node in list(self.nodes.values()):
            progressed |= self.join(node)
            progressed |= self.receive_one(node)
            progressed |= self.warm(node)
            progressed |= self.send_one(node)
        for worker in self.all_workers():
            progressed |= self.fetch(worker) or self.save(worker)
        if progressed:
            return True
        if training and self.step():
            self.now += 0.5
            return True
        return False


def describe(instruction: ev.Instruction) -> str:
    """One readable line for the trace; empty: too small to be traced."""
    match instruction:
        case ev.SendToAgent(node_id=node_id, message=message):
            return _describe_message(node_id, message)
        case ev.RefuseAgent():
            return f"{instruction.node_id}: refuse ({instruction.reason})"
        case ev.CreateInstance():
            return f"create {instruction.node_id} in {instruction.zone} ({instruction.token})"
        case ev.TerminateInstance():
            return f"terminate {instruction.node_id}"
        case ev.PreemptInstance():
            return f"preempt {instruction.node_id} {'with' if instruction.notice else 'without'} notice"
        case ev.ListCheckpoints():
            return "list checkpoints"
        case ev.MarkCheckpoint():
            return f"mark checkpoint {instruction.step}"
        case ev.PruneCheckpoints():
            return f"prune checkpoints but {', '.join(map(str, instruction.kept))}"
        case ev.RecordStep():
            return f"step {instruction.step} loss {instruction.loss:g}"
        case ev.Tell():
            return f"# {instruction.kind}: {instruction.text}"
        case ev.FinishRequest():
            return f"request {instruction.request_id} {'done' if instruction.ok else 'refused'}: {instruction.text}"
        case ev.StopCoordinator():
            return "stop"


def _describe_message(node_id: NodeId, message: Any) -> str:
    match message:
        case Acknowledge() | Welcome():
            return ""
        case StartWorker(worker_id=worker_id, accelerator=accelerator):
            return f"{node_id}: start {worker_id}{f' on accelerator {accelerator}' if accelerator else ''}"
        case StopWorker():
            return f"{node_id}: {'fence' if message.fence else 'stop'} {message.worker_id} ({message.reason})"
        case Leave():
            return f"{node_id}: leave ({message.reason})"
        case TellWorker(worker_id=worker_id, message=control.Adopt(plan=plan)):
            stages = " ".join(
                f"{s.pipeline_index}.{s.stage_index}[{s.first_layer}-{s.end_layer - 1}]={'+'.join(s.holders)}"
                for s in plan.stages()
            )
            fetches = " ".join(f"{f.layer}<-{f.source or 'store'}" for f in plan.fetches if f.worker_id == worker_id)
            return (
                f"{worker_id}: adopt {plan.kind} {plan.generation} from {plan.first_step}: {stages} {fetches}".rstrip()
            )
        case TellWorker(worker_id=worker_id, message=control.Prepare() as prepare):
            return f"{worker_id}: prepare{' and measure' if prepare.profile else ''}"
        case TellWorker(worker_id=worker_id, message=control.Learn() as learn):
            asked = " ".join(f"{fetch.layer}<-{fetch.source}" for fetch in learn.fetches)
            return f"{worker_id}: learn under {learn.base_generation}: {asked}"
        case TellWorker(worker_id=worker_id, message=control.WriteModel() as write):
            return f"{worker_id}: write the model of step {write.checkpoint_step}"
        case TellWorker(worker_id=worker_id, message=told):
            return f"{worker_id}: {told.kind} {getattr(told, 'generation', '')}".rstrip()
    return f"{node_id}: {message}"
