"""What becomes of machines that are made nodes, step by step: one that cannot be is given back, and another is tried.
What fails on every machine must not go on renting for ever. Pure; docs/remote.md.
"""

from dataclasses import replace

from bamboo_cli.coordinator import fleet
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.events import PreparationFailed, StepBegun, StoryKind
from bamboo_cli.coordinator.states import NodeReason, NodeState
from bamboo_cli.remote.settings import BASTION_STEP

LEAST_FAILURES = 3
"""In a row and in the same step, before it is taken for a rule."""
FIRST_PAUSE_S, LAST_PAUSE_S = 10.0, 300.0


def begun(board: Board, event: StepBegun) -> None:
    """A machine on which something goes on is waited for."""
    node = board.nodes.get(event.node_id)
    if node is None or node.state is not NodeState.BOOTING or node.instance_id != event.instance_id:
        return
    if node.detail != event.doing:
        board.tell(StoryKind.NODE, f"{node.node_id}: {event.doing}", node_id=node.node_id)
    board.put(replace(node, detail=event.doing, moved_at=board.now))


def failed(board: Board, event: PreparationFailed) -> None:
    """Of a node that has joined it is only told: whether it is lost is for its lease to say."""
    node = board.nodes.get(event.node_id)
    if node is None or node.instance_id != event.instance_id:
        return
    if node.state is not NodeState.BOOTING:
        if board.pulse.way_lost_at is not None:
            return  # that is told once, for all
        if node.state not in (NodeState.RELEASED, NodeState.ENDED) and node.detail != event.detail:
            board.put(replace(node, detail=event.detail))
            board.tell(StoryKind.NODE, f"{node.node_id} cannot be reached: {event.detail}", node_id=node.node_id)
        return
    board.put(replace(node, detail=event.detail))
    fleet.release(board, board.nodes[event.node_id], NodeReason.NOT_PREPARED)
    _count(board, event)


def succeeded(board: Board) -> None:
    """A machine became a node, so they can."""
    cluster = board.cluster
    if cluster.num_failed or cluster.gave_up:
        board.cluster = replace(cluster, failed_step="", num_failed=0, rent_after=0.0, gave_up="")


def _count(board: Board, event: PreparationFailed) -> None:
    cluster = board.cluster
    num = cluster.num_failed + 1 if cluster.failed_step == event.step else 1
    pause_s = min(LAST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(num - 1, 10))
    board.cluster = replace(cluster, failed_step=event.step, num_failed=num, rent_after=board.now + pause_s)
    if cluster.gave_up:
        return
    if event.step == BASTION_STEP and board.pulse.way_lost_at is not None:
        board.cluster = replace(board.cluster, gave_up=event.detail)
        board.tell(StoryKind.CAPACITY, f"no further node is rented: {event.detail}", num_failed=num)
    elif num >= max(LEAST_FAILURES, board.config.num_nodes):
        gave_up = f"{num} machines in a row could not be made nodes, all in the step `{event.step}`: {event.detail}"
        board.cluster = replace(board.cluster, gave_up=gave_up)
        board.tell(StoryKind.CAPACITY, f"no further node is rented: {gave_up}", num_failed=num)
