"""Keeping the wanted number of nodes: intents, create calls and their back-off, zones, giving nodes back."""

from dataclasses import replace

from bamboo_agent.messages import Leave
from bamboo_trainer.plan import NodeId, WorkerId

from bamboo_cli.coordinator import way
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.entities import Node, SeenLoss
from bamboo_cli.coordinator.events import (
    CreateFailed,
    CreateFault,
    CreateInstance,
    InstanceEnded,
    StopCoordinator,
    StoryKind,
    TerminateInstance,
)
from bamboo_cli.coordinator.states import UNDER_PLAN, WANTED, NodeReason, NodeState, RunState
from bamboo_cli.coordinator.zones import candidates, choose_zone, is_short, is_usable, remember, remember_quota
from bamboo_cli.providers.base import EndReason, Instance, InstanceState

LOSSES_KEPT = 32
NO_HURRY_S = 60.0
"""Between tries where only the user can help: credentials, a wrong request."""
REGION_S = 1.0
"""Before another region is asked: until it is known what comes of those that are asked for in this one."""
QUOTA_PATIENCE_S = 300.0
"""Between tries where a quota is used up and there is no other region."""

_REASONS = {
    CreateFault.CAPACITY: NodeReason.CAPACITY,
    CreateFault.QUOTA: NodeReason.QUOTA,
    CreateFault.CREDENTIALS: NodeReason.CREDENTIALS,
    CreateFault.REFUSED: NodeReason.REFUSED,
    CreateFault.CLOUD: NodeReason.CLOUD,
}


def keep(board: Board) -> None:
    """After every event: as many nodes as wanted, none that is of no use."""
    if board.cluster.closing:
        _close(board)
        return
    _give_back(board)
    wanted = [node for node in board.in_order() if node.state in WANTED]
    for node in reversed(wanted[board.config.num_nodes :]):
        if node.state is NodeState.INTENDED and not node.asked:
            end(board, node, NodeReason.NOT_WANTED)
    if board.cluster.gave_up:
        for node in wanted:
            if node.state is NodeState.INTENDED and not node.asked:
                end(board, node, NodeReason.NOT_WANTED)
        return
    for _ in range(board.config.num_nodes - len(wanted)):
        if board.config.replace or board.cluster.num_named < board.config.num_nodes:
            _intend(board)
    if board.pulse.way_lost_at is not None:
        return  # nothing that is rented now could be made a node
    for node in board.in_order():
        if node.state is NodeState.INTENDED and not node.asked and (node.retry_at or 0.0) <= board.now:
            _ask(board, node)


def ask_again(board: Board) -> None:
    """After a restart: what was asked of the cloud, or of the shell, may not have reached it."""
    if board.cluster.closed:
        board.out.append(StopCoordinator())
    for node in board.in_order():
        if node.state is NodeState.INTENDED and node.asked:
            board.out.append(_create(node))
        elif node.state is NodeState.RELEASED:
            board.out.append(TerminateInstance(node_id=node.node_id))


# --- what the cloud says ----------------------------------------------------------------------------------------


def instance_seen(board: Board, instance: Instance) -> None:
    """Also the answer to a create call. An instance that nobody waits for is given back at once."""
    node = board.nodes.get(NodeId(instance.node_id))
    if node is None or node.state in (NodeState.RELEASED, NodeState.ENDED):
        if instance.state in (InstanceState.PENDING, InstanceState.RUNNING):
            board.out.append(TerminateInstance(node_id=NodeId(instance.node_id)))
        return
    facts = {"instance_id": instance.instance_id, "address": instance.address, "zone": instance.zone}
    if any(getattr(node, name) != value for name, value in facts.items()) or node.asked:
        node = board.put(
            replace(
                node,
                instance_id=instance.instance_id,
                address=instance.address,
                zone=instance.zone,
                asked=False,
                retry_at=None,
            )
        )
    if node.state is NodeState.INTENDED:
        board.move_node(node, NodeState.BOOTING)
        board.tell(StoryKind.NODE, f"{node.node_id} is rented in {node.zone}", node_id=node.node_id)


def create_failed(board: Board, event: CreateFailed) -> None:
    node = board.nodes.get(event.node_id)
    if node is None or node.token != event.token or not node.asked:
        return
    if node.state is NodeState.RELEASED:
        if event.fault is not CreateFault.CLOUD:  # else something may have come of it: the cloud is looked at for it
            end(board, node, NodeReason.CLOSED)
        return
    if node.state is not NodeState.INTENDED:
        return
    node = board.put(replace(node, asked=False, reason=_REASONS[event.fault]))
    delay = _delay(board, node, event.fault)
    board.put(replace(node, retry_at=board.now + delay))
    when = f"in {delay:.0f} s" if delay else "at once"
    text = f"{node.zone} gave no node for {node.node_id}: {event.detail}; next try {when}"
    board.tell(StoryKind.CAPACITY, text, node_id=node.node_id, delay_s=delay)


def _delay(board: Board, node: Node, fault: CreateFault) -> float:
    """Until the next try; none where another zone, or another way to buy, may have what this one had not."""
    if fault is CreateFault.CAPACITY:
        remember(board, node.zone, short=True)
    elif fault is CreateFault.QUOTA:
        remember_quota(board, node.zone)
    if fault in (CreateFault.CAPACITY, CreateFault.QUOTA):
        if any(is_usable(board, zone) for zone in candidates(board)):
            return 0.0
        if _may_be_on_demand(board) and not node.on_demand:
            return 0.0
        if any(is_usable(board, zone) for zone in candidates(board, settled=True)):
            return REGION_S
    if fault is CreateFault.QUOTA:
        return QUOTA_PATIENCE_S
    if fault in (CreateFault.CREDENTIALS, CreateFault.REFUSED):
        return NO_HURRY_S
    return min(board.config.max_back_off_s, 2.0 ** min(node.num_creates - 1, 10))


def _may_be_on_demand(board: Board) -> bool:
    return board.config.on_demand_fallback and all(is_short(board, zone) for zone in candidates(board))


def instance_ended(board: Board, event: InstanceEnded) -> None:
    """The surest sign of a loss, and the confirmation of what was given back."""
    node = board.nodes.get(event.node_id)
    if node is None or node.state is NodeState.ENDED:
        return
    by_cloud = event.reason in (EndReason.PREEMPTED, EndReason.FAILED) and node.state is not NodeState.RELEASED
    if by_cloud:
        count_taken(board, node)
    reason = {
        EndReason.PREEMPTED: NodeReason.PREEMPTED,
        EndReason.FAILED: NodeReason.FAILED,
    }.get(event.reason, NodeReason.INSTANCE_GONE)
    kind = StoryKind.PREEMPTION if by_cloud else StoryKind.NODE
    why = event.reason or "no longer listed"
    if event.reason is EndReason.USER:  # so clouds call whoever has credentials
        why = "given back" if node.state is NodeState.RELEASED else "ended by somebody, not by Bamboo"
    board.tell(kind, f"{node.node_id} is gone: {why}", node_id=node.node_id)
    end(board, board.nodes[node.node_id], node.reason if node.state is NodeState.RELEASED else reason)


def count_taken(board: Board, node: Node) -> None:
    """Once per node: the run's preemptions, the hazard, the zone's memory."""
    if node.taken:
        return
    board.put(replace(node, taken=True))
    note_loss(board, node)
    board.cluster = replace(board.cluster, num_taken=board.cluster.num_taken + 1)
    remember(board, node.zone, took=True)
    if board.active_run is not None and board.progress is not None:
        board.progress = replace(board.progress, preemptions=board.progress.preemptions + 1)


def note_loss(board: Board, node: Node) -> None:
    """Whatever its cause; a node's once, with however many workers."""
    seen = SeenLoss(node_id=node.node_id, incarnation=node.incarnation, at=board.now)
    before = board.cluster.losses
    if all((loss.node_id, loss.incarnation) != (seen.node_id, seen.incarnation) for loss in before):
        board.cluster = replace(board.cluster, losses=(*before, seen)[-LOSSES_KEPT:])


def uncount_taken(board: Board, node: Node) -> Node:
    """It looked as if the cloud had taken the node, and now it is back."""
    if not node.taken or node.deadline is not None:
        return node
    board.cluster = replace(board.cluster, num_taken=board.cluster.num_taken - 1)
    if board.active_run is not None and board.progress is not None and board.progress.preemptions > 0:
        board.progress = replace(board.progress, preemptions=board.progress.preemptions - 1)
    return board.put(replace(node, taken=False))


# --- nodes come and go ------------------------------------------------------------------------------------------


def _intend(board: Board) -> None:
    number = board.cluster.num_named + 1
    board.cluster = replace(board.cluster, num_named=number)
    node_id, retry_at = NodeId(f"n{number}"), board.cluster.rent_after
    board.put(Node(node_id=node_id, state=NodeState.INTENDED, since=board.now, zone="", token="", retry_at=retry_at))


def _ask(board: Board, node: Node) -> None:
    """A new token for a new try, but the same one where it is unknown what came of the last."""
    unsure = node.reason is NodeReason.CLOUD
    num_creates = node.num_creates + 1
    zone = node.zone if unsure else choose_zone(board)
    token = node.token if unsure else f"{board.config.cluster_id}-{node.node_id}-{num_creates}"
    on_demand = _may_be_on_demand(board)
    node = replace(
        node, zone=zone, token=token, num_creates=num_creates, asked=True, retry_at=None, on_demand=on_demand
    )
    board.out.append(_create(board.put(node)))


def _create(node: Node) -> CreateInstance:
    return CreateInstance(node_id=node.node_id, zone=node.zone, token=node.token, on_demand=node.on_demand)


def release(board: Board, node: Node, reason: NodeReason) -> None:
    """Give the node back."""
    board.send(node.node_id, Leave(reason=reason))
    node = board.move_node(board.remove_workers(node), NodeState.RELEASED, reason)
    board.out.append(TerminateInstance(node_id=node.node_id))
    why = f"{reason}: {node.detail}" if reason is NodeReason.NOT_PREPARED else reason
    board.tell(StoryKind.NODE, f"{node.node_id} is given back: {why}", node_id=node.node_id)


def end(board: Board, node: Node, reason: NodeReason) -> None:
    if node.joined_at is not None:
        lived_s = max(0.0, board.now - node.joined_at)
        board.cluster = replace(board.cluster, node_seconds=board.cluster.node_seconds + lived_s)
    board.move_node(board.remove_workers(node), NodeState.ENDED, reason)
    board.pulse.linked.discard(node.node_id)
    board.pulse.dropped.discard(node.node_id)
    board.pulse.heard_at.pop(node.node_id, None)


def _give_back(board: Board) -> None:
    for node in board.in_order():
        age_s = board.now - node.since
        if node.state is NodeState.BOOTING and min(age_s, board.now - node.moved_at) > board.config.boot_patience_s:
            release(board, node, NodeReason.NEVER_JOINED)
        elif node.state is NodeState.LOST and age_s > board.config.lost_patience_s and not way.excuses_silence(board):
            release(board, node, NodeReason.NEVER_CAME_BACK)
        elif node.state is NodeState.DRAINING and not _is_needed(board, node):
            release(board, node, node.reason)


def _is_needed(board: Board, node: Node) -> bool:
    """A worker of it takes part, or holds layers that a waiting run has nowhere else."""
    run = board.active_run
    if run is None or run.plan is None:
        return False
    needed: set[WorkerId] = set()
    if run.state in UNDER_PLAN:
        needed = set(run.plan.worker_ids())
    elif run.state is RunState.WAITING and run.pause is not None:
        needed = {stop.worker_id for stop in run.pause.stops}
    return any(worker.worker_id in needed for worker in node.workers)


def _close(board: Board) -> None:
    for node in board.in_order():
        if node.state is NodeState.INTENDED and not node.asked:
            end(board, node, NodeReason.CLOSED)
        elif node.state not in (NodeState.RELEASED, NodeState.ENDED):
            release(board, node, NodeReason.CLOSED)
    if not board.cluster.closed and all(n.state is NodeState.ENDED for n in board.nodes.values()):
        board.cluster = replace(board.cluster, closed=True)
        board.tell(StoryKind.COORDINATOR, "the cluster is closed: all nodes have ended")
        board.out.append(StopCoordinator())
