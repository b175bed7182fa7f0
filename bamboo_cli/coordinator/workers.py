"""The worker processes, one on each accelerator: started before they are needed, prepared for the run, started anew
when they end."""

from dataclasses import replace

from bamboo_agent.messages import StartWorker, StopWorker, WorkerExited
from bamboo_trainer.control import LayerCost, Prepared, WorkerReady
from bamboo_trainer.plan import NodeId, WorkerId

from bamboo_cli.coordinator import links, losses
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.entities import Accelerator, Node, Worker
from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.states import ENDED, UNDER_PLAN, NodeState, RunState, WorkerState
from bamboo_cli.coordinator.weather import num_workers

MAX_CRASHES = 3
"""So many workers in a row that end on one accelerator before they are prepared end the run: it is not bad luck."""
MAX_RESTART_DELAY_S = 60.0

MAX_CRASHES_A_STAGE = 4
"""So many prepared workers, times the stages, that end or hang in the same step end the run: another would only do the
same."""

_AT_HOME = frozenset({NodeState.JOINED, NodeState.STANDBY, NodeState.ACTIVE})


def keep(board: Board) -> None:
    """After every event: each accelerator has a worker, prepared when there is a run, and its node a state that says
    so."""
    for node in board.in_order():
        if node.state in _AT_HOME:
            for index, accelerator in enumerate(node.accelerators):
                _keep_worker(board, node.node_id, index, accelerator)
        _seat(board, board.nodes[node.node_id])


def _keep_worker(board: Board, node_id: NodeId, index: int, accelerator: Accelerator) -> None:
    worker = accelerator.worker
    if worker is None:
        if _are_wanted(board) and board.now >= accelerator.restart_at:
            _start(board, board.nodes[node_id], index)
    elif worker.state is WorkerState.STARTING and board.now - worker.since > board.config.warm_patience_s:
        losses.lose_worker(board, worker, "it did not get ready", fence=True)
        _crashed(board, worker, "it did not get ready")
    elif worker.state is WorkerState.READY and board.active_run is not None and board.active_run.training is not None:
        board.put_worker(replace(worker, state=WorkerState.PREPARING, since=board.now))
        links.prepare(board, worker, profile=False)


def _are_wanted(board: Board) -> bool:
    """Between the end of a run and the next one none are started: the nodes are likely to go."""
    return board.run is None or board.run.state not in ENDED


def _start(board: Board, node: Node, index: int) -> None:
    incarnation = node.incarnation + 1
    worker_id = WorkerId(f"{node.node_id}/{incarnation}")
    worker = Worker(worker_id=worker_id, accelerator=index, state=WorkerState.STARTING, since=board.now)
    accelerator = replace(node.accelerators[index], worker=worker, incarnation=incarnation)
    board.put_accelerator(replace(node, incarnation=incarnation), index, accelerator)
    board.send(node.node_id, StartWorker(worker_id=worker_id, accelerator=index))


def _seat(board: Board, node: Node) -> None:
    if node.state not in _AT_HOME:
        return
    run = board.active_run
    is_ready = any(worker.state is not WorkerState.STARTING for worker in node.workers)
    members = run.plan.worker_ids() if run is not None and run.plan is not None and run.state in UNDER_PLAN else ()
    is_member = any(worker.worker_id in members for worker in node.workers)
    wanted = NodeState.ACTIVE if is_member else NodeState.STANDBY if is_ready else NodeState.JOINED
    if wanted is NodeState.ACTIVE and node.state is NodeState.JOINED:
        node = board.move_node(node, NodeState.STANDBY)
    if node.state is not wanted:
        board.move_node(node, wanted)


def ready(board: Board, worker: Worker, message: WorkerReady) -> None:
    if worker.state is WorkerState.STARTING:
        board.put_worker(
            replace(worker, state=WorkerState.READY, since=board.now, address=message.address, port=message.port)
        )
        board.tell(StoryKind.WORKER, f"worker {worker.worker_id} is ready", node_id=worker.node_id)


def prepared(board: Board, worker: Worker, message: Prepared) -> None:
    """Of the profiler, also the measurements. It is prepared again when its spec was not complete yet."""
    run = board.active_run
    if run is None or message.run_id != run.run_id or worker.state is not WorkerState.PREPARING:
        return
    is_final = run.training is not None or run.spec.training.checkpoint_every > 0
    if run.state is RunState.PROFILING and worker.worker_id == run.profiler and not run.costs:
        board.run = replace(run, costs=message.costs or _equal_costs(message))
    state = WorkerState.PREPARED if is_final else WorkerState.READY
    told = replace(worker, device=message.device, device_bytes=message.device_bytes)
    node = board.put_worker(replace(told, state=state, since=board.now))
    accelerator = replace(node.accelerators[worker.accelerator], num_crashes=0)
    board.put_accelerator(node, worker.accelerator, accelerator)


def _equal_costs(message: Prepared) -> tuple[LayerCost, ...]:
    return tuple(
        LayerCost(name=name, forward_s=1e-3, backward_s=2e-3, parameter_bytes=1, activation_bytes=1)
        for name in message.layer_names
    )


def exited(board: Board, node: Node, message: WorkerExited) -> str | None:
    """Why the run must end, if it must: workers on this accelerator keep ending before they are prepared."""
    worker = node.worker(message.worker_id)
    if worker is None:
        return None
    how = f"signal {-message.exit_code}" if message.exit_code < 0 else f"exit code {message.exit_code}"
    losses.lose_worker(board, worker, f"its process ended with {how}", fence=False)
    last_words = message.log_tail.strip().splitlines()[-1:] or ["its log is empty"]
    if worker.state is WorkerState.PREPARED:
        return crashed_in_training(board, f"{how}: {last_words[0]}")
    return _crashed(board, worker, f"{how}: {last_words[0]}")


def crashed_in_training(board: Board, how: str) -> str | None:
    """Why the run must end, if it must. What a restore runs again is no progress."""
    run, progress = board.active_run, board.progress
    if run is None or progress is None:
        return None
    goes_on = progress.committed_step > run.crashed_after
    num_crashes = 1 if goes_on else run.num_crashes + 1
    board.run = replace(run, num_crashes=num_crashes, crashed_after=max(run.crashed_after, progress.committed_step))
    if num_crashes < MAX_CRASHES_A_STAGE * run.spec.num_hosts(num_workers(board)):
        return None
    step = run.crashed_after + 1
    return f"workers failed {num_crashes} times in a row without getting beyond step {step}; the last with {how}"


def _crashed(board: Board, worker: Worker, how: str) -> str | None:
    node = board.nodes[worker.node_id]
    accelerator = node.accelerators[worker.accelerator]
    num_crashes = accelerator.num_crashes + 1
    delay_s = 0.0 if num_crashes == 1 else min(MAX_RESTART_DELAY_S, 2.0 ** (num_crashes - 2))
    crashed = replace(accelerator, num_crashes=num_crashes, restart_at=board.now + delay_s)
    board.put_accelerator(node, worker.accelerator, crashed)
    if board.active_run is None or num_crashes < MAX_CRASHES:
        return None
    where = f"{node.node_id}, accelerator {worker.accelerator}," if len(node.accelerators) > 1 else node.node_id
    return f"{num_crashes} workers in a row on {where} ended before they were prepared; the last with {how}"


def stop_all(board: Board, reason: str) -> None:
    """At the end of a run: whoever was prepared for it goes, so that the next run begins with fresh processes."""
    for worker in board.workers(WorkerState.PREPARING, WorkerState.PREPARED):
        board.send(worker.node_id, StopWorker(worker_id=worker.worker_id, fence=False, reason=reason))
        board.remove_worker(worker)
