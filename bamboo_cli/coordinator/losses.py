"""The verdict "this worker, this node is gone". What follows from it is decided elsewhere."""

from collections import Counter
from dataclasses import replace

from bamboo_agent.messages import StopWorker
from bamboo_trainer.control import PeerBroken
from bamboo_trainer.plan import NodeId, WorkerId, node_id_of

from bamboo_cli.coordinator import fleet, way
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.entities import Node, Worker
from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.run_entities import BrokenLink, Run
from bamboo_cli.coordinator.states import LEASED, NodeReason, NodeState


def lose_worker(board: Board, worker: Worker, why: str, *, fence: bool) -> Node:
    """``fence``: its process may still run, and is killed."""
    worker_id, node_id = worker.worker_id, worker.node_id
    if fence:
        board.send(node_id, StopWorker(worker_id=worker_id, fence=True, reason=why))
    board.tell(StoryKind.LOSS, f"worker {worker_id} is lost: {why}", node_id=node_id)
    if board.run is not None:
        board.run = replace(
            board.run, broken=tuple(b for b in board.run.broken if worker_id not in (b.reporter, b.peer))
        )
    fleet.note_loss(board, board.nodes[node_id])
    return board.remove_worker(worker)


def lose_node(board: Board, node: Node, reason: NodeReason, why: str) -> None:
    """All its workers at once."""
    workers = node.workers
    for worker in workers:
        node = lose_worker(board, worker, why, fence=True)
    if not workers:
        board.tell(StoryKind.LOSS, f"node {node.node_id} is lost: {why}", node_id=node.node_id)
    board.move_node(node, NodeState.LOST, reason)


def peer_broken(board: Board, reporter: WorkerId, message: PeerBroken) -> None:
    """Kept until restored, or until an end is lost or out of the plan. Links outlive plans: no generation counts."""
    run = board.active_run
    if run is None or run.plan is None or not board.is_live(message.peer):
        return
    members = run.plan.worker_ids()
    known = any((b.reporter, b.peer) == (reporter, message.peer) for b in run.broken)
    if reporter not in members or message.peer not in members or known:
        return
    link = BrokenLink(reporter=reporter, peer=message.peer, since=board.now)
    board.run = replace(run, broken=(*run.broken, link))


def peer_restored(board: Board, reporter: WorkerId, peer: WorkerId) -> None:
    run = board.active_run
    if run is not None and any((b.reporter, b.peer) == (reporter, peer) for b in run.broken):
        kept = tuple(b for b in run.broken if (b.reporter, b.peer) != (reporter, peer))
        board.run = replace(run, broken=kept)


def watch(board: Board) -> None:
    """After every event. While no node at all is heard, nobody is blamed: that they all fell silent together is less
    likely than that we are cut off, and if they did, the cloud says so."""
    was_deaf, board.pulse.deaf = board.pulse.deaf, _is_deaf(board)
    if board.pulse.deaf or was_deaf:
        if not was_deaf and not way.excuses_silence(board):
            board.tell(StoryKind.COORDINATOR, "no node is heard any more: is the network here down? Nobody is blamed")
        _hold_still(board, everybody=not board.pulse.deaf and _last_heard_s(board) <= board.config.lease_s)
    if board.pulse.deaf:
        return
    _cut_off(board)
    _leases(board)
    _broken_for_long(board)


def _is_deaf(board: Board) -> bool:
    silent_s = _last_heard_s(board)
    return way.excuses_silence(board) or board.config.lease_s / 2 < silent_s < board.config.uplink_patience_s


def _last_heard_s(board: Board) -> float:
    """How long ago any node was; 0 where there is none."""
    leased = [n.node_id for n in board.nodes.values() if n.state in LEASED]
    return min((board.now - board.pulse.heard_at.get(n, board.now) for n in leased), default=0.0)


def _hold_still(board: Board, *, everybody: bool) -> None:
    """All clocks of a verdict begin anew. ``everybody``: one is heard again, and the others have a lease to come."""
    if everybody:
        board.pulse.heard_at = {node_id: max(at, board.now) for node_id, at in board.pulse.heard_at.items()}
    board.pulse.moved_at = board.now
    if board.run is not None and (board.run.broken or board.run.pause):
        broken = tuple(replace(b, since=board.now) for b in board.run.broken)
        pause = replace(board.run.pause, since=board.now) if board.run.pause else None
        board.run = replace(board.run, broken=broken, pause=pause)


def awake(board: Board) -> None:
    """Before every event; ticks come often. A gap means that the coordinator itself slept: nobody is blamed for it."""
    before, board.pulse.awake_at = board.pulse.awake_at, board.now
    gap = 0.0 if before is None else board.now - before
    if gap <= board.config.lease_s / 2:
        return
    board.pulse.heard_at = {node_id: at + gap for node_id, at in board.pulse.heard_at.items()}
    board.pulse.moved_at += gap
    if board.run is not None and board.run.broken:
        later = tuple(replace(b, since=b.since + gap) for b in board.run.broken)
        board.run = replace(board.run, broken=later)


def _cut_off(board: Board) -> None:
    """Its agent's link ended and a peer lost its worker: two signs are sure enough."""
    if board.active_run is None or not board.pulse.dropped:
        return
    reported = {b.peer for b in board.active_run.broken}
    for node in board.in_order():
        if node.state not in LEASED or node.node_id not in board.pulse.dropped:
            continue
        if any(worker.worker_id in reported for worker in node.workers):
            fleet.count_taken(board, node)  # most likely; the cloud says so later, perhaps after the run
            lose_node(
                board, board.nodes[node.node_id], NodeReason.CUT_OFF, "its agent and its peers lost touch with it"
            )


def _leases(board: Board) -> None:
    for node in board.in_order():
        if node.state not in LEASED:
            continue
        silent_s = board.now - board.pulse.heard_at.setdefault(node.node_id, board.now)
        if silent_s > board.config.lease_s:
            lose_node(board, node, NodeReason.SILENT, f"its agent was silent for {silent_s:.1f} s")


def _broken_for_long(board: Board) -> None:
    """One verdict an event; but whoever follows on the same node is lost with it, for its network is what broke."""
    node_id: NodeId | None = None
    while (run := board.active_run) is not None:
        ripe = [b for b in run.broken if board.now - b.since > board.config.lease_s]
        victim = choose_victim(run, ripe) if ripe else None
        if victim is None or node_id not in (None, node_id_of(victim)):
            return
        node_id = node_id_of(victim)
        spared = tuple(b.peer if b.reporter == victim else b.reporter for b in ripe if victim in (b.reporter, b.peer))
        board.run = replace(run, suspects=(*run.suspects, *spared))
        worker = board.worker_of(victim)
        if worker is None:
            return
        lose_worker(board, worker, f"its links to its peers have been down for {board.config.lease_s:g} s", fence=True)


def choose_victim(run: Run, broken: list[BrokenLink]) -> WorkerId:
    """The worker with the most broken links, whichever end reported them; then the one that was spared more often in
    such a verdict before; then one whose stages all have a shadow; then the later id.

    A worker that is cut off may be the only one to report: all its links are down, and each of its peers has one.
    """
    assert run.plan is not None
    links = Counter(worker_id for pair in {frozenset((b.reporter, b.peer)) for b in broken} for worker_id in pair)
    spared = Counter(run.suspects)
    unshadowed = {stage.host for stage in run.plan.stages() if not stage.shadows}
    return max(links, key=lambda w: (links[w], spared[w], w not in unshadowed, w))
