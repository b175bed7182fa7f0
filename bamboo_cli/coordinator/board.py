"""What the machine works on: all that is known, the moment, and the instructions that the event at hand has led to."""

from dataclasses import dataclass, field, replace

from bamboo_agent.messages import TellWorker, ToAgent
from bamboo_trainer.control import ToWorker
from bamboo_trainer.plan import NodeId, WorkerId, node_id_of

from bamboo_cli.coordinator.entities import Accelerator, Cluster, Node, Worker
from bamboo_cli.coordinator.events import FinishRequest, Instruction, SendToAgent, StoryKind, Tell
from bamboo_cli.coordinator.run_entities import Checkpoints, Progress, Run
from bamboo_cli.coordinator.settings import ClusterConfig
from bamboo_cli.coordinator.states import (
    ENDED,
    NODE_MOVES,
    RUN_MOVES,
    IllegalMove,
    NodeReason,
    NodeState,
    RunState,
    WorkerState,
)

STORY_KEPT = 40
"""Lines that an IllegalMove quotes."""


@dataclass
class Pulse:
    """Signs of life. Not stored: after a restart every lease starts anew."""

    heard_at: dict[NodeId, float] = field(default_factory=dict)
    linked: set[NodeId] = field(default_factory=set)
    dropped: set[NodeId] = field(default_factory=set)
    """Whose link was seen to end. A node that has not come back after a restart is not among them."""
    clock_ahead_s: dict[NodeId, float] = field(default_factory=dict)
    """Of each agent's clock, before ours: the most that a beat has shown, since its way only makes it less."""
    deaf: bool = False
    """Nobody at all is heard: see ``losses.watch``."""
    way_lost_at: float | None = None
    """Since when the bastion cannot be reached: see ``way``."""
    awake_at: float | None = None
    moved_at: float = 0.0
    """When a step was last heard to be committed, or this coordinator began."""


class Board:
    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.now = 0.0
        self.cluster = Cluster()
        self.nodes: dict[NodeId, Node] = {}
        self.run: Run | None = None
        self.progress: Progress | None = None
        self.checkpoints: Checkpoints | None = None
        self.pulse = Pulse()
        self.out: list[Instruction] = []
        self.story: list[str] = []

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def active_run(self) -> Run | None:
        """The run that has not ended."""
        return self.run if self.run is not None and self.run.state not in ENDED else None

    def worker_of(self, worker_id: WorkerId) -> Worker | None:
        """None: it is not the newest on its accelerator, or does not live."""
        node = self.nodes.get(node_id_of(worker_id))
        return node.worker(worker_id) if node is not None else None

    def is_live(self, worker_id: WorkerId) -> bool:
        return self.worker_of(worker_id) is not None

    def in_order(self) -> list[Node]:
        return sorted(self.nodes.values(), key=lambda node: node.number)

    def live_members(self) -> list[WorkerId]:
        """Of the run's plan."""
        if self.run is None or self.run.plan is None:
            return []
        return [w for w in self.run.plan.worker_ids() if self.is_live(w)]

    def workers(self, *states: WorkerState) -> list[Worker]:
        """In one of the states, node after node."""
        return [worker for node in self.in_order() for worker in node.workers if worker.state in states]

    def workers_on(self, node_id: NodeId, *states: WorkerState) -> list[Worker]:
        return [worker for worker in self.nodes[node_id].workers if worker.state in states]

    def staying(self, *states: WorkerState) -> list[Worker]:
        """The same, on nodes that are not leaving."""
        return [worker for worker in self.workers(*states) if not self.nodes[worker.node_id].leaving]

    # --- changes ------------------------------------------------------------------------------------------------

    def put(self, node: Node) -> Node:
        self.nodes[node.node_id] = node
        return node

    def put_accelerator(self, node: Node, index: int, accelerator: Accelerator) -> Node:
        others = node.accelerators
        return self.put(replace(node, accelerators=(*others[:index], accelerator, *others[index + 1 :])))

    def put_worker(self, worker: Worker) -> Node:
        node = self.nodes[worker.node_id]
        accelerator = node.accelerators[worker.accelerator]
        return self.put_accelerator(node, worker.accelerator, replace(accelerator, worker=worker))

    def remove_worker(self, worker: Worker) -> Node:
        node = self.nodes[worker.node_id]
        accelerator = node.accelerators[worker.accelerator]
        return self.put_accelerator(node, worker.accelerator, replace(accelerator, worker=None))

    def remove_workers(self, node: Node) -> Node:
        return self.put(replace(node, accelerators=tuple(replace(each, worker=None) for each in node.accelerators)))

    def move_node(self, node: Node, state: NodeState, reason: NodeReason = NodeReason.NONE) -> Node:
        """Raises IllegalMove when ``NODE_MOVES`` has no such move."""
        if state not in NODE_MOVES[node.state]:
            raise self._illegal(f"node {node.node_id}", node.state, state)
        return self.put(replace(node, state=state, reason=reason, since=self.now))

    def move_run(self, state: RunState) -> Run:
        """Raises IllegalMove when ``RUN_MOVES`` has no such move."""
        assert self.run is not None
        if state not in RUN_MOVES[self.run.state]:
            raise self._illegal(f"run {self.run.run_id}", self.run.state, state)
        self.run = replace(self.run, state=state, since=self.now)
        return self.run

    def next_generation(self) -> int:
        self.cluster = replace(self.cluster, generation=self.cluster.generation + 1)
        return self.cluster.generation

    def _illegal(self, what: str, before: str, after: str) -> IllegalMove:
        story = "\n  ".join(self.story) or "nothing has happened"
        return IllegalMove(f"{what} cannot go from {before} to {after}. The story so far:\n  {story}")

    # --- instructions -------------------------------------------------------------------------------------------

    def send(self, node_id: NodeId, message: ToAgent) -> None:
        """Only to a linked node: what still holds is said again when it joins."""
        if node_id in self.pulse.linked:
            self.out.append(SendToAgent(node_id=node_id, message=message))

    def tell_worker(self, worker_id: WorkerId, message: ToWorker) -> None:
        if self.is_live(worker_id):
            self.send(node_id_of(worker_id), TellWorker(worker_id=worker_id, message=message))

    def tell(self, kind: StoryKind, text: str, *, node_id: NodeId | None = None, **numbers: float) -> None:
        """One line of the story; the run at hand is named by itself."""
        run_id = self.active_run.run_id if self.active_run else None
        self.out.append(Tell(kind=kind, text=text, node_id=node_id, run_id=run_id, numbers=tuple(numbers.items())))
        self.story = [*self.story, f"{self.now:.3f} {kind}: {text}"][-STORY_KEPT:]

    def finish(self, request_id: int, ok: bool, text: str) -> None:
        open_ones = tuple(r for r in self.cluster.requests if r.request_id != request_id)
        self.cluster = replace(self.cluster, requests=open_ones)
        self.out.append(FinishRequest(request_id=request_id, ok=ok, text=text))
