"""The coordinator's decisions, without any I/O: events in, instructions out.

``handle`` first notes what the event says, then lets everything follow that follows from what is now known: losses, the
run, workers, the fleet, requests. Since the second half looks at what is so and not at what just happened, the order of
events, repetitions and restarts do not matter much: whatever still holds is done, whatever does not is not.
"""

from collections.abc import Mapping
from dataclasses import replace

from bamboo_agent.messages import Hint, MetadataTrouble, Notice, WorkerExited, WorkerSaid, WorkerStarted
from bamboo_trainer.control import (
    Adopted,
    CheckpointFailed,
    DigestMismatch,
    FromWorker,
    LayerSaved,
    Learned,
    ModelWritten,
    PeerBroken,
    PeerRestored,
    Prepared,
    Recorded,
    RunComplete,
    StepCommitted,
    Stopped,
    TookOver,
    WorkerFailed,
    WorkerReady,
)
from pydantic import TypeAdapter

from bamboo_cli.coordinator import (
    budget,
    checkpoints,
    endings,
    fleet,
    handover,
    idle,
    links,
    losses,
    plans,
    preparation,
    progress,
    reports,
    requests,
    runs,
    way,
    workers,
    zones,
)
from bamboo_cli.coordinator.board import Board, Pulse
from bamboo_cli.coordinator.entities import Node, Worker
from bamboo_cli.coordinator.events import (
    AgentBeat,
    AgentDropped,
    AgentJoined,
    AgentSaid,
    CheckpointMarked,
    CompleteCheckpoints,
    CreateFailed,
    CreateSucceeded,
    Event,
    InstanceEnded,
    InstanceSeen,
    Instruction,
    ListingFailed,
    MarkFailed,
    PreparationFailed,
    RequestMade,
    SpentSoFar,
    Started,
    StepBegun,
    StoryKind,
    StrangerRefused,
    Tick,
    WayFound,
    WayLost,
)
from bamboo_cli.coordinator.rows import Entity, decode_row, encode_row
from bamboo_cli.coordinator.settings import ClusterConfig
from bamboo_cli.coordinator.states import NodeReason, NodeState, RunReason

_PULSE: TypeAdapter[Pulse] = TypeAdapter(Pulse)


class Machine:
    """One cluster and its newest run. ``board`` is for reading: nodes, run, progress, checkpoints."""

    def __init__(self, config: ClusterConfig) -> None:
        self.board = Board(config)
        self._stored: dict[str, Entity] = {}

    # --- events in, instructions out -------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """``now``: seconds since the epoch. Raises IllegalMove when it has a bug, and never otherwise."""
        board = self.board
        board.now, board.out = now, []
        losses.awake(board)
        self._note(event)
        losses.watch(board)
        budget.watch(board)
        runs.advance(board)
        idle.watch(board)
        workers.keep(board)
        fleet.keep(board)
        requests.finish_those_done(board)
        return board.out

    def _note(self, event: Event) -> None:
        board = self.board
        match event:
            case Started():
                self._start()
            case Tick():
                pass  # time has passed
            case AgentJoined():
                links.joined(board, event.join)
            case AgentDropped():
                links.dropped(board, event.node_id)
            case AgentBeat():
                links.beat(board, event)
            case AgentSaid():
                node = links.said(board, event)
                if node is not None:
                    self._note_agent(node, event)
            case StrangerRefused():
                board.tell(StoryKind.REFUSAL, f"{event.address} was refused: {event.detail}")
            case CreateSucceeded() | InstanceSeen():
                fleet.instance_seen(board, event.instance)
            case CreateFailed():
                fleet.create_failed(board, event)
            case InstanceEnded():
                fleet.instance_ended(board, event)
            case StepBegun():
                preparation.begun(board, event)
            case PreparationFailed():
                preparation.failed(board, event)
            case WayLost():
                way.lost(board, event)
            case WayFound():
                way.found(board, event)
            case CompleteCheckpoints():
                if checkpoints.listed(board, event.run_id, event.steps):
                    endings.fail(board, RunReason.CHECKPOINT_UNREADABLE, event.not_copied)
            case ListingFailed():
                checkpoints.not_listed(board, event.run_id, event.detail)
            case CheckpointMarked():
                checkpoints.marked(board, event.run_id, event.step)
            case MarkFailed():
                is_ours = board.run is not None and board.run.run_id == event.run_id
                if is_ours and checkpoints.failed(board, event.step, event.detail):
                    endings.without_last_checkpoint(board, event.detail)
            case RequestMade():
                requests.made(board, event)
            case SpentSoFar():
                budget.heard(board, event)

    def _start(self) -> None:
        """With loaded state or none: nobody is linked, every lease starts anew, what was asked may be unheard."""
        board = self.board
        board.pulse = Pulse(heard_at=dict.fromkeys(board.nodes, board.now), moved_at=board.now)
        if board.run is not None:
            broken = tuple(replace(b, since=board.now) for b in board.run.broken)
            pause = replace(board.run.pause, since=board.now) if board.run.pause else None
            board.run = replace(board.run, broken=broken, pause=pause)
        board.tell(StoryKind.COORDINATOR, "the coordinator begins")
        way.begin_again(board)
        fleet.ask_again(board)
        checkpoints.ask_again(board)

    def _note_agent(self, node: Node, event: AgentSaid) -> None:
        board, message = self.board, event.message
        match message:
            case WorkerStarted():
                pass  # WorkerReady is what counts
            case WorkerExited():
                why = workers.exited(board, node, message)
                if why:
                    endings.fail(board, RunReason.WORKER_CRASHES, why)
            case WorkerSaid():
                if (worker := node.worker(message.worker_id)) is not None:
                    self._note_worker(worker, message.message)
                else:
                    progress.stale(board)
            case Notice():
                self._notice(node, message)
            case Hint():
                zones.remember(board, node.zone, hinted=True)
                board.tell(StoryKind.HINT, f"{node.node_id}: {message.detail}", node_id=node.node_id)
            case MetadataTrouble():
                text = f"the metadata service of {node.node_id} answers badly: {message.detail}"
                board.tell(StoryKind.NODE, text, node_id=node.node_id)

    def _notice(self, node: Node, message: Notice) -> None:
        board = self.board
        deadline = links.by_our_clock(board, node.node_id, message.deadline)
        if node.deadline is not None and abs(node.deadline - deadline) < links.MEASURABLE_S:
            return
        fleet.count_taken(board, node)
        node = board.put(replace(board.nodes[node.node_id], leaving=True, deadline=deadline))
        if node.state is not NodeState.DRAINING:
            board.move_node(node, NodeState.DRAINING, NodeReason.NOTICED)
        left_s = deadline - board.now
        text = f"{node.node_id} is noticed ({message.action}): {left_s:.0f} s left"
        board.tell(StoryKind.NOTICE, text, node_id=node.node_id, left_s=left_s)

    def _note_worker(self, worker: Worker, message: FromWorker) -> None:
        board, worker_id = self.board, worker.worker_id
        match message:
            case WorkerReady():
                workers.ready(board, worker, message)
            case Prepared():
                workers.prepared(board, worker, message)
            case Adopted():
                reports.adopted(board, worker_id, message)
            case Learned():
                handover.learned(board, worker_id, message)
            case StepCommitted():
                progress.step_committed(board, message)
            case Stopped():
                plans.stopped(board, worker_id, message)
            case PeerBroken():
                losses.peer_broken(board, worker_id, message)
            case PeerRestored():
                losses.peer_restored(board, worker_id, message.peer)
            case TookOver():
                num = message.forwards_at_hand
                text = (
                    f"{worker_id} hosts stage {message.stage_index} of pipeline {message.pipeline_index} too, in step "
                    f"{message.step}; {num} {'forward was' if num == 1 else 'forwards were'} at hand"
                )
                board.tell(StoryKind.FAILOVER, text, node_id=worker.node_id, step=message.step)
            case Recorded():
                reports.recorded(board, worker_id, message)
            case LayerSaved():
                checkpoints.layer_saved(board, message)
            case CheckpointFailed():
                if checkpoints.layer_failed(board, message):
                    endings.without_last_checkpoint(board, message.detail)
            case DigestMismatch():
                reports.digest_mismatch(board, worker_id, message)
            case RunComplete():
                reports.run_complete(board, worker_id, message)
            case ModelWritten():
                reports.model_written(board, worker_id, message)
            case WorkerFailed():
                reports.worker_failed(board, worker_id, message)

    # --- what is stored --------------------------------------------------------------------------------------------

    def changed_rows(self) -> dict[str, str]:
        """Rows that differ from what the last call returned: JSON by name. Values are frozen, so identity tells."""
        entities = self._entities()
        changed = {name: entity for name, entity in entities.items() if self._stored.get(name) is not entity}
        self._stored = entities
        return {name: encode_row(name, entity) for name, entity in changed.items()}

    def dump(self) -> dict[str, str]:
        """Every row, and the signs of life (``pulse``), which are not worth a write and need not be loaded."""
        rows = {name: encode_row(name, entity) for name, entity in self._entities().items()}
        return rows | {"pulse": _PULSE.dump_json(self.board.pulse).decode()}

    def load(self, rows: Mapping[str, str]) -> None:
        """Stored rows, into a new machine. Raises pydantic.ValidationError on what ``changed_rows`` did not give."""
        board = self.board
        if "cluster" in rows:
            board.cluster = decode_row("cluster", rows["cluster"])
        for name, text in rows.items():
            if name.startswith("node/"):
                board.put(decode_row(name, text))
        run_id = board.cluster.run_id
        if run_id is not None:  # rows of earlier runs are left alone
            board.run = decode_row("run", rows[f"run/{run_id}"])
            board.progress = decode_row("progress", rows[f"progress/{run_id}"])
            board.checkpoints = decode_row("checkpoints", rows[f"checkpoints/{run_id}"])
        if "pulse" in rows:
            board.pulse = _PULSE.validate_json(rows["pulse"])
        self._stored = self._entities()

    def _entities(self) -> dict[str, Entity]:
        board = self.board
        entities: dict[str, Entity] = {"cluster": board.cluster}
        entities |= {f"node/{node_id}": node for node_id, node in board.nodes.items()}
        if board.run is not None and board.progress is not None and board.checkpoints is not None:
            run_id = board.run.run_id
            entities |= {
                f"run/{run_id}": board.run,
                f"progress/{run_id}": board.progress,
                f"checkpoints/{run_id}": board.checkpoints,
            }
        return entities
