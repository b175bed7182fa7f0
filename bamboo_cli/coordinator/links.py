"""Agents on the line: joining, silence, and what is said again to one that comes back."""

import math
from dataclasses import replace

from bamboo_agent.messages import (
    PROTOCOL_VERSION,
    Acknowledge,
    Join,
    StartWorker,
    StopWorker,
    Welcome,
)
from bamboo_trainer.control import Adopt, Halt, Prepare, Quiesce, WriteModel
from bamboo_trainer.plan import NodeId, WorkerId

from bamboo_cli.coordinator import fleet, handover, losses, preparation, saving
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.entities import Accelerator, Node, Worker
from bamboo_cli.coordinator.events import AgentBeat, AgentSaid, RefuseAgent, StoryKind
from bamboo_cli.coordinator.states import (
    LEASED,
    UNDER_PLAN,
    NodeReason,
    NodeState,
    PauseKind,
    RunState,
    WorkerState,
)

MEASURABLE_S = 2.0


def joined(board: Board, join: Join) -> None:
    node = board.nodes.get(join.node_id)
    refusal = _refusal(node, join)
    if refusal or node is None:
        board.out.append(RefuseAgent(node_id=join.node_id, reason=refusal, final=True))
        board.tell(StoryKind.REFUSAL, f"the agent of {join.node_id} was refused: {refusal}")
        return
    if node.state is NodeState.LOST and node.leaving:
        fleet.release(board, node, NodeReason.NOT_WANTED)
        board.out.append(RefuseAgent(node_id=join.node_id, reason="the node is not wanted any more", final=True))
        return
    new_life = join.boot_id != node.boot_id
    board.pulse.linked.add(node.node_id)
    board.pulse.dropped.discard(node.node_id)
    board.pulse.heard_at[node.node_id] = board.now
    node = _enter(board, node, join, new_life)
    board.send(node.node_id, Welcome(acknowledged=node.acknowledged, beat_s=board.config.beat_s))
    _compare_workers(board, node, join, new_life)
    for worker in board.nodes[node.node_id].workers:
        _say_again(board, worker)


def _refusal(node: Node | None, join: Join) -> str:
    """Why the agent must go away; empty: it may stay."""
    if join.protocol_version != PROTOCOL_VERSION:
        return f"it speaks version {join.protocol_version} of the protocol, not {PROTOCOL_VERSION}"
    if node is None:
        return "no such node was ever rented"
    if node.state in (NodeState.RELEASED, NodeState.ENDED):
        return "the node is not wanted any more"
    if node.instance_id and node.instance_id != join.instance_id:
        return f"it runs on instance {join.instance_id}, the node is {node.instance_id}"
    return ""


def _enter(board: Board, node: Node, join: Join, new_life: bool) -> Node:
    if new_life:
        node = replace(node, boot_id=join.boot_id, acknowledged=0)
    if node.joined_at is None:
        node = replace(node, joined_at=board.now)
    node = replace(node, detail="")
    missing = max(0, join.num_accelerators - len(node.accelerators))
    node = board.put(
        replace(
            node,
            instance_id=join.instance_id,
            zone=join.zone,
            address=join.address,
            asked=False,
            retry_at=None,
            accelerators=(*node.accelerators, *(Accelerator() for _ in range(missing))),
        )
    )
    if node.state is NodeState.LOST:
        board.tell(StoryKind.NODE, f"{node.node_id} came back", node_id=node.node_id)
        return board.move_node(fleet.uncount_taken(board, node), NodeState.JOINED, NodeReason.RETURNED)
    if node.state in (NodeState.INTENDED, NodeState.BOOTING):
        board.tell(StoryKind.NODE, f"{node.node_id} joined from {join.zone}", node_id=node.node_id)
        preparation.succeeded(board)
        return board.move_node(node, NodeState.JOINED)
    return node


def _compare_workers(board: Board, node: Node, join: Join, new_life: bool) -> None:
    """Worker processes that should not be there are killed; one that should and is not is lost."""
    there = {worker.worker_id for worker in join.workers}
    for worker_id in sorted(there):
        if node.worker(worker_id) is None:
            board.send(node.node_id, StopWorker(worker_id=worker_id, fence=True, reason="its generation is over"))
    for worker in node.workers:
        if worker.worker_id in there:
            continue
        if worker.state is WorkerState.STARTING and not new_life:
            board.send(node.node_id, StartWorker(worker_id=worker.worker_id, accelerator=worker.accelerator))
        else:
            losses.lose_worker(board, worker, "its agent came without it", fence=False)
    node = board.nodes[node.node_id]
    board.put(replace(node, accelerators=node.accelerators[: max(1, join.num_accelerators)]))


def _say_again(board: Board, worker: Worker) -> None:
    """Everything that still holds for a worker of the node. All of it is harmless to hear twice."""
    run = board.active_run
    if run is None:
        return
    if worker.state is WorkerState.PREPARING:
        prepare(board, worker, profile=worker.worker_id == run.profiler and not run.costs)
    if run.model_writer == worker.worker_id:
        write_model(board)
    handover.say_again(board, worker.worker_id)
    if run.state not in UNDER_PLAN or run.plan is None or worker.worker_id not in run.plan.worker_ids():
        return
    if run.state is not RunState.HALTING:
        board.tell_worker(worker.worker_id, Adopt(plan=run.plan))
    saving.say_again(board, worker.worker_id)
    if run.pause is not None and worker.worker_id not in {stop.worker_id for stop in run.pause.stops}:
        board.tell_worker(worker.worker_id, pause_message(run.pause.kind, run.pause.generation))


def prepare(board: Board, worker: Worker, *, profile: bool) -> None:
    run = board.active_run
    assert run is not None
    spec = run.training or replace(run.spec.training, checkpoint_every=max(1, run.spec.training.checkpoint_every))
    board.tell_worker(worker.worker_id, Prepare(spec=spec, profile=profile))


def pause_message(kind: PauseKind, generation: int) -> Quiesce | Halt:
    return Quiesce(generation=generation) if kind is PauseKind.QUIESCE else Halt(generation=generation)


def write_model(board: Board) -> None:
    run = board.active_run
    assert run is not None and run.model_writer is not None
    training = run.spec.training
    url = run.spec.model_url or f"{training.checkpoint_url.rstrip('/')}/model.safetensors"
    board.tell_worker(run.model_writer, WriteModel(checkpoint_step=training.num_steps - 1, url=url))


def dropped(board: Board, node_id: NodeId) -> None:
    if node_id in board.pulse.linked:
        board.pulse.linked.discard(node_id)
        board.pulse.dropped.add(node_id)
        board.tell(StoryKind.NODE, f"the link to the agent of {node_id} ended", node_id=node_id)


def beat(board: Board, event: AgentBeat) -> None:
    node = _heard(board, event.node_id)
    if event.sent_at:
        ahead = board.pulse.clock_ahead_s
        ahead[event.node_id] = max(event.sent_at - board.now, ahead.get(event.node_id, -math.inf))
    for worker in node.workers if node is not None else ():
        silence = event.silence_s.get(worker.worker_id, 0.0)
        if worker.state is not WorkerState.STARTING and silence > board.config.lease_s:
            losses.lose_worker(board, worker, f"it was silent for {silence:.1f} s", fence=True)


def by_our_clock(board: Board, node_id: NodeId, at: float) -> float:
    """A moment that the agent told by its own. Less than a beat's way may take is no difference."""
    ahead_s = board.pulse.clock_ahead_s.get(node_id, 0.0)
    return at - ahead_s if abs(ahead_s) > MEASURABLE_S else at


def said(board: Board, event: AgentSaid) -> Node | None:
    """The node, when the message is to be handled; acknowledges numbered ones."""
    node = _heard(board, event.node_id)
    if node is None or event.sequence == 0:
        return node
    if event.boot_id != node.boot_id:
        return None
    board.send(node.node_id, Acknowledge(sequence=event.sequence))
    if event.sequence <= node.acknowledged:
        return None
    return board.put(replace(node, acknowledged=event.sequence))


def _heard(board: Board, node_id: NodeId) -> Node | None:
    """Renews the lease. A node that was given up and speaks again on its old link is back."""
    node = board.nodes.get(node_id)
    if node is None:
        return None
    if node.state is NodeState.LOST and node_id in board.pulse.linked:
        if node.leaving:
            fleet.release(board, node, NodeReason.NOT_WANTED)
            return None
        board.tell(StoryKind.NODE, f"{node_id} came back", node_id=node_id)
        node = board.move_node(fleet.uncount_taken(board, node), NodeState.JOINED, NodeReason.RETURNED)
        for accelerator in node.accelerators:
            if accelerator.incarnation:
                old = WorkerId(f"{node_id}/{accelerator.incarnation}")
                board.send(node_id, StopWorker(worker_id=old, fence=True, reason="its generation is over"))
    if node.state not in LEASED:
        return None
    board.pulse.heard_at[node_id] = board.now
    return node
