"""What the user asks for: accepted, refused, and finished when it is so."""

from dataclasses import replace

from bamboo_cli.coordinator import endings, fleet, runs
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.entities import OpenRequest
from bamboo_cli.coordinator.events import CloseCluster, Drain, RequestMade, StartRun, StopRun, StoryKind
from bamboo_cli.coordinator.states import NodeReason, NodeState, RunReason, RunState


def made(board: Board, event: RequestMade) -> None:
    """Request ids grow; one that was seen is not handled again."""
    if event.request_id <= board.cluster.last_request_id:
        return
    opened = OpenRequest(request_id=event.request_id, request=event.request)
    board.cluster = replace(board.cluster, last_request_id=event.request_id, requests=(*board.cluster.requests, opened))
    match event.request:
        case StartRun():
            _start_run(board, event.request_id, event.request)
        case StopRun():
            _stop_run(board, event.request_id, event.request)
        case Drain():
            _drain(board, event.request_id, event.request)
        case CloseCluster():
            _close(board)


def _start_run(board: Board, request_id: int, request: StartRun) -> None:
    run = board.active_run
    if board.cluster.closing:
        board.finish(request_id, False, "the cluster is being closed")
    elif run is not None:
        board.finish(
            request_id, False, f"run {run.run_id} is {run.state} and there is one at a time; end it with `bamboo down`"
        )
    elif board.run is not None and board.run.run_id == request.spec.run_id:
        board.finish(request_id, False, f"there was a run {request.spec.run_id} already")
    else:
        runs.begin(board, request.spec)
        board.finish(request_id, True, request.spec.run_id)


def _stop_run(board: Board, request_id: int, request: StopRun) -> None:
    run = board.active_run
    if run is None or run.run_id != request.run_id:
        board.finish(request_id, False, f"run {request.run_id} does not go on")
    else:
        board.run = replace(run, stop_requested=True)
        board.tell(StoryKind.REQUEST, f"run {run.run_id} is to stop at the next boundary")


def _drain(board: Board, request_id: int, request: Drain) -> None:
    node = board.nodes.get(request.node_id)
    if node is None or node.state in (NodeState.RELEASED, NodeState.ENDED):
        board.finish(request_id, False, f"there is no node {request.node_id}")
    elif node.state is NodeState.INTENDED and not node.asked:
        fleet.end(board, node, NodeReason.DRAINED)
    elif node.state in (NodeState.INTENDED, NodeState.BOOTING, NodeState.LOST):
        fleet.release(board, node, NodeReason.DRAINED)
    elif not node.leaving:
        board.move_node(board.put(replace(node, leaving=True)), NodeState.DRAINING, NodeReason.DRAINED)
        board.tell(StoryKind.REQUEST, f"{node.node_id} is to be drained", node_id=node.node_id)


def _close(board: Board) -> None:
    if not board.cluster.closing:
        board.cluster = replace(board.cluster, closing=True)
        board.tell(StoryKind.REQUEST, "the cluster is to be closed")
        if board.active_run is not None:
            endings.end(board, RunState.STOPPED, RunReason.CLOSED, "")


def finish_those_done(board: Board) -> None:
    """After every event."""
    for opened in board.cluster.requests:
        match opened.request:
            case StopRun(run_id=run_id):
                if board.run is not None and (board.active_run is None or board.run.run_id != run_id):
                    board.finish(opened.request_id, True, f"run {run_id} is {board.run.state}")
            case Drain(node_id=node_id):
                if board.nodes[node_id].state is NodeState.ENDED:
                    board.finish(opened.request_id, True, f"{node_id} has ended")
            case CloseCluster():
                if board.cluster.closed:
                    board.finish(
                        opened.request_id,
                        True,
                        "1 node has ended" if len(board.nodes) == 1 else f"{len(board.nodes)} nodes have ended",
                    )
