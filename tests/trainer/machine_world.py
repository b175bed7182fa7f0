"""The coordinator's real machine over real executors on integers: agents, cloud and links in memory, no real time.

The clock moves only when nothing else does. A node is lost with everything on it; what its peers, its agent's link and
the cloud say of that arrives in an order that the test picks. The coordinator can be restarted between any two events.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from bamboo_agent.messages import (
    PROTOCOL_VERSION,
    AgentMessage,
    Join,
    Notice,
    StartWorker,
    StopWorker,
    TellWorker,
    ToAgent,
    WorkerExited,
    WorkerSaid,
    WorkerState,
)
from bamboo_trainer import control
from bamboo_trainer.plan import Mode, NodeId, WorkerId, node_id_of
from bamboo_trainer.schedule import Action

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.machine import Machine
from bamboo_cli.coordinator.settings import ClusterConfig, RunSpec
from bamboo_cli.coordinator.states import ENDED, RunState
from bamboo_cli.providers.base import EndReason, Instance, InstanceState
from tests.coordinator.invariants import check_invariants
from tests.trainer.world import World

RUN_ID = "r1"


@dataclass
class Node:
    instance: Instance
    boot_id: str
    sequence: int = 0
    unacknowledged: list[tuple[int, AgentMessage]] = field(default_factory=list)
    workers: dict[WorkerId, int] = field(default_factory=dict)
    """The generation of each, those included that have ended."""


class MachineWorld:
    """``run`` goes on until the run has ended; ``before_action`` may take nodes away."""

    def __init__(
        self,
        *,
        num_pipelines: int,
        num_stages: int,
        num_microbatches: int = 3,
        num_steps: int = 4,
        mode: Mode = Mode.BUBBLE,
        level: int = 1,
        num_accelerators: int = 1,
        replace_nodes: bool = True,
        seed: int = 0,
        restarts: Collection[int] = (),
    ) -> None:
        self.rng = random.Random(seed)
        self.restarts = restarts
        self.num_layers = 2 * num_stages
        self.is_away = False
        self.lost_a_layer = False
        """At some loss, no live worker held one of the layers."""
        self.world = World(self.num_layers, num_microbatches, num_steps, tied=True, checkpoint_every=2)
        self.world.on_report = self._worker_says
        self.config = ClusterConfig(
            cluster_id="c",
            num_nodes=math.ceil(num_pipelines * num_stages / num_accelerators),
            num_accelerators=num_accelerators,
            zones=("a", "b"),
            replace=replace_nodes,
            gather_s=0.0,
        )
        self.machine = Machine(self.config)
        self.rows: dict[str, str] = {}
        self.now = 1000.0
        self.num_events = 0
        self.nodes: dict[NodeId, Node] = {}
        self.events: deque[ev.Event] = deque([ev.Started()])
        self.marked: dict[int, set[int]] = {}
        self.steps: dict[int, float] = {}
        self.story: list[str] = []
        self.save_fails: Callable[[int, int], bool] = lambda step, layer: False
        spec = RunSpec(
            training=self.world.spec,
            num_pipelines=num_pipelines,
            num_stages=num_stages,
            mode=mode,
            level=level,
            checkpoints_kept=2,
        )
        self.events.append(ev.RequestMade(request_id=1, request=ev.StartRun(spec=spec)))

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(
        self, before_action: Callable[[WorkerId, Action], bool] = lambda w, a: False, max_turns: int = 3000
    ) -> None:
        """``before_action`` returns True when it has lost the node whose turn it was."""
        for _ in range(max_turns):
            self._drain_events()
            if self.machine.board.run is not None and self.machine.board.run.state in ENDED:
                return
            if not self._turn(before_action) and not self.events:
                self.now += 0.5
                for node_id in list(self.nodes):
                    self.events.append(ev.AgentBeat(node_id=node_id, silence_s={}))
                self.events.append(ev.Tick())
        raise AssertionError("the run does not end:\n" + "\n".join(self.story[-30:]))

    def _turn(self, before_action: Callable[[WorkerId, Action], bool]) -> bool:
        """One visit to each worker. False: nothing moved."""
        moved = False
        for worker_id in list(self.world.executors):
            if worker_id not in self.world.executors:
                continue
            moved |= self.world.deliver(worker_id)
            executor = self.world.executors[worker_id]
            action = executor.next()
            if action is not None:
                moved = True
                self.world.num_actions += 1
                if not before_action(worker_id, action):
                    executor.perform(action)
        return moved

    def _drain_events(self) -> None:
        while self.events and not self.is_away:
            event = self.events.popleft()
            self.num_events += 1
            if self.num_events in self.restarts:
                self.restart_coordinator()
            instructions = self.machine.handle(event, self.now)
            self.rows |= self.machine.changed_rows()
            check_invariants(self.machine)
            for instruction in instructions:
                self._do(instruction)

    def leave(self) -> None:
        """The coordinator is killed; agents keep what it does not acknowledge. Until ``restart_coordinator``."""
        self._drain_events()
        self.is_away = True

    def restart_coordinator(self) -> None:
        """Killed and started again: only the stored rows live on, and what agents keep until it is acknowledged."""
        self.is_away = False
        waiting = [e for e in self.events if not isinstance(e, ev.AgentSaid | ev.AgentJoined | ev.AgentBeat)]
        self.machine = Machine(self.config)
        self.machine.load(self.rows)
        self.events = deque([ev.Started(), *waiting])
        for node_id in self.nodes:
            self._join(node_id)

    # --- the cloud and the agents -----------------------------------------------------------------------------------

    def _do(self, instruction: ev.Instruction) -> None:
        match instruction:
            case ev.Tell():
                self.story.append(f"{self.now:.1f} {instruction.kind}: {instruction.text}")
            case ev.SendToAgent():
                if instruction.node_id in self.nodes:
                    self._agent_hears(instruction.node_id, instruction.message)
            case ev.CreateInstance():
                self._boot(instruction)
            case ev.TerminateInstance():
                self.nodes.pop(instruction.node_id, None)
                self.events.append(ev.InstanceEnded(node_id=instruction.node_id, reason=EndReason.USER, at=self.now))
            case ev.ListCheckpoints():
                self.events.append(ev.CompleteCheckpoints(run_id=RUN_ID, steps=tuple(sorted(self.marked))))
            case ev.MarkCheckpoint():
                self.marked[instruction.step] = {entry.layer for entry in instruction.entries}
                self.events.append(ev.CheckpointMarked(run_id=RUN_ID, step=instruction.step))
            case ev.RecordStep():
                self.steps[instruction.step] = instruction.loss
            case _:
                pass

    def _boot(self, create: ev.CreateInstance) -> None:
        if create.node_id in self.nodes:
            return
        instance = Instance(
            instance_id=f"i-{create.node_id}",
            token=create.token,
            node_id=create.node_id,
            cluster_id="c",
            instance_type="t",
            zone=create.zone,
            state=InstanceState.RUNNING,
            address="",
            launched_at=self.now,
        )
        self.nodes[create.node_id] = Node(instance, f"boot-{create.node_id}")
        self.events.append(ev.CreateSucceeded(instance=instance))
        self._join(create.node_id)

    def _join(self, node_id: NodeId) -> None:
        node = self.nodes[node_id]
        workers = tuple(
            WorkerState(worker_id=worker_id, ready=True, port=1, generation=generation)
            for worker_id, generation in node.workers.items()
            if worker_id in self.world.executors
        )
        join = Join(
            protocol_version=PROTOCOL_VERSION,
            node_id=node_id,
            boot_id=node.boot_id,
            instance_id=node.instance.instance_id,
            zone=node.instance.zone,
            address="",
            pid=1,
            workers=workers,
            num_accelerators=self.config.num_accelerators,
        )
        self.events.append(ev.AgentJoined(join=join))
        for sequence, message in node.unacknowledged:
            self.events.append(ev.AgentSaid(node_id=node_id, message=message, boot_id=node.boot_id, sequence=sequence))

    def _agent_hears(self, node_id: NodeId, message: ToAgent) -> None:
        node = self.nodes[node_id]
        match message:
            case StartWorker() if message.worker_id not in self.world.executors:
                node.workers[message.worker_id] = 0
                self.world.add_worker(message.worker_id)
                self.world.computes[message.worker_id].on_saved = self._saver(message.worker_id)
                self._agent_says(
                    node_id,
                    WorkerSaid(worker_id=message.worker_id, message=control.WorkerReady(address="", port=1, pid=1)),
                )
            case StopWorker() if message.worker_id in self.world.executors:
                self.world.lose(message.worker_id)
                self._agent_says(node_id, WorkerExited(worker_id=message.worker_id, exit_code=-9, log_tail=""))
            case TellWorker() if message.worker_id in self.world.executors:
                self._worker_hears(node, message.worker_id, message.message)
            case _:
                if hasattr(message, "acknowledged") or hasattr(message, "sequence"):
                    upto = getattr(message, "acknowledged", getattr(message, "sequence", 0))
                    node.unacknowledged = [(s, m) for s, m in node.unacknowledged if s > upto]

    def _worker_hears(self, node: Node, worker_id: WorkerId, message: control.ToWorker) -> None:
        executor = self.world.executors[worker_id]
        match message:
            case control.Prepare():
                names = tuple(f"l{i}" for i in range(self.num_layers))
                costs = tuple(
                    control.LayerCost(name=n, forward_s=0.01, backward_s=0.02, parameter_bytes=8, activation_bytes=8)
                    for n in names
                )
                reply = control.Prepared(run_id=RUN_ID, layer_names=names, costs=costs if message.profile else ())
                self._worker_says(worker_id, reply)
            case control.Adopt():
                node.workers[worker_id] = message.plan.generation
                executor.adopt(message.plan)
            case control.Learn():
                executor.learn(message)
            case control.Quiesce():
                executor.quiesce(message.generation)
            case control.Halt():
                executor.halt(message.generation)
            case control.Save():
                executor.save(message.generation, message.step)
            case control.WriteModel():
                written = control.ModelWritten(
                    checkpoint_step=message.checkpoint_step, url=message.url, num_parameters=1, weights_sha256="x"
                )
                self._worker_says(worker_id, written)
            case _:
                pass

    def _saver(self, worker_id: WorkerId) -> Callable[[int, int], None]:
        def saved(step: int, layer: int) -> None:
            if self.save_fails(step, layer):
                failed = control.CheckpointFailed(checkpoint_step=step, layer=layer, detail="no space")
                self._worker_says(worker_id, failed)
                return
            self._worker_says(
                worker_id,
                control.LayerSaved(
                    checkpoint_step=step,
                    layer=layer,
                    name=f"l{layer}",
                    file=f"{layer}",
                    num_bytes=8,
                    file_sha256="",
                    parameters_sha256="",
                ),
            )

        return saved

    def _worker_says(self, worker_id: WorkerId, message: control.FromWorker) -> None:
        node_id = node_id_of(worker_id)
        if node_id in self.nodes:
            self._agent_says(node_id, WorkerSaid(worker_id=worker_id, message=message))

    def _agent_says(self, node_id: NodeId, message: AgentMessage) -> None:
        node = self.nodes[node_id]
        node.sequence += 1
        node.unacknowledged.append((node.sequence, message))
        self.events.append(ev.AgentSaid(node_id=node_id, message=message, boot_id=node.boot_id, sequence=node.sequence))

    # --- what tests do ----------------------------------------------------------------------------------------------

    def lose_node(self, worker_id: WorkerId) -> None:
        """The machine under the worker vanishes with all its workers; half of what they had sent still arrives."""
        node_id = node_id_of(worker_id)
        del self.nodes[node_id]
        gone = [w for w in self.world.executors if node_id_of(w) == node_id]
        peers = [w for w in self.world.executors if w not in gone]
        # what they had told their agent is lost too, but for what has left the machine already
        for worker_id in gone:
            self.world.lose(worker_id, [w for w in peers if self.rng.random() < 0.5])
        held = {layer for compute in self.world.computes_alive() for layer in compute.held_layers()}
        self.lost_a_layer |= len(held) < self.num_layers
        news: list[ev.Event] = [ev.AgentDropped(node_id=node_id)]
        self.rng.shuffle(peers)
        self.events.extend(news if self.rng.random() < 0.5 else [])
        late = news if not any(isinstance(e, ev.AgentDropped) for e in self.events) else []
        for peer in peers:
            executor = self.world.executors[peer]
            for worker_id in gone:
                if executor.plan is not None and worker_id in executor.plan.worker_ids():
                    broken = control.PeerBroken(generation=executor.generation, peer=worker_id, detail="gone")
                    self._worker_says(peer, broken)
        self.events.extend(late)
        self.events.append(ev.InstanceEnded(node_id=node_id, reason=EndReason.PREEMPTED, at=self.now))

    def lose_worker(self, worker_id: WorkerId) -> None:
        """Its process ends; its agent says so, and so do its peers, in any order."""
        peers = [w for w in self.world.executors if w != worker_id]
        self.world.lose(worker_id, [w for w in peers if self.rng.random() < 0.5])
        says: list[Callable[[], None]] = [
            lambda: self._agent_says(
                node_id_of(worker_id), WorkerExited(worker_id=worker_id, exit_code=-9, log_tail="")
            )
        ]
        for peer in peers:
            plan, generation = self.world.executors[peer].plan, self.world.executors[peer].generation
            if plan is not None and worker_id in plan.worker_ids():
                broken = control.PeerBroken(generation=generation, peer=worker_id, detail="gone")
                says.append(partial(self._worker_says, peer, broken))
        self.rng.shuffle(says)
        for say in says:
            say()

    def notice(self, worker_id: WorkerId, seconds: float) -> None:
        node_id = node_id_of(worker_id)
        self._agent_says(node_id, Notice(action="terminate", deadline=self.now + seconds))

    @property
    def state(self) -> RunState | None:
        return self.machine.board.run.state if self.machine.board.run else None

    def final_weights(self) -> dict[int, object]:
        last = self.world.spec.num_steps - 1
        return {layer: self.world.disk.files[last, layer] for layer in range(self.num_layers)}
