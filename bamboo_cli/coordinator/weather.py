"""What the run has seen of losses, links and pauses, as the planner wants to know it. Pure; docs/planner.md."""

import math

from bamboo_trainer.wanted import (
    HORIZON_S,
    PRIOR_BYTES_PER_S,
    PRIOR_HAZARD,
    PRIOR_RESTORE_S,
    PRIOR_SWITCH_S,
    Wanted,
    Weather,
)

from bamboo_cli.coordinator import checkpoints
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.states import LEASED, NodeState

LATELY_S = 3600.0
"""Losses and nodes of so long ago count."""
UNSETTLED = 3
"""So many losses lately make a pattern; fewer are bad luck."""
MEMORY_USED = 0.9
"""Of what is free on a device; the allocator's slack is not in the formula of ``memory``."""
BURST_S = 2.0
"""Losses so close to each other are one."""


def wanted_of(board: Board) -> Wanted:
    """What the run asks of its plans, as of now."""
    run = board.run
    assert run is not None
    return run.spec.wanted(run.costs, weather(board))


def weather(board: Board) -> Weather:
    """Rounded, so that it changes seldom: what is expected of the next hour is not known better than that. A change of
    plan is never taken to be cheaper than the prior: what the layers' travel takes from training is not in its pause.
    """
    run, known = board.run, board.progress
    assert run is not None and known is not None
    num_switches = known.failovers + known.reconfigurations + known.restores
    return Weather(
        hazard=_rounded(hazard(board)),
        num_accelerators=num_accelerators(board),
        link_bytes_per_s=_rounded(known.link_bytes_per_s or PRIOR_BYTES_PER_S),
        switch_s=_rounded(max(PRIOR_SWITCH_S, (PRIOR_SWITCH_S + known.pause_s) / (1 + num_switches))),
        restore_s=_rounded(_restore_s(board)),
        memory_bytes=memory_bytes(board),
    )


def memory_bytes(board: Board) -> int | None:
    """That a worker has for the model: as the job says, else what is free on the poorest of their devices, less what
    the allocator's slack takes; in whole GB, so that it changes seldom. None: no limit is known."""
    assert board.run is not None
    if board.run.spec.memory_bytes is not None:
        return board.run.spec.memory_bytes
    workers = (worker for node in board.nodes.values() if node.state in LEASED for worker in node.workers)
    free = [worker.device_bytes for worker in workers if worker.device_bytes is not None]
    return int(MEMORY_USED * min(free) // 1e9 * 1e9) if free else None


def num_accelerators(board: Board) -> int:
    """Of a node: the most that any has."""
    there = (len(node.accelerators) for node in board.nodes.values() if node.state in LEASED)
    return max(there, default=0) or board.config.num_accelerators


def num_workers(board: Board) -> int:
    """When all nodes are there."""
    return board.config.num_nodes * num_accelerators(board)


def hazard(board: Board) -> float:
    """Losses per node and hour lately, with one loss in the prior's time; or, while losses make a pattern, one in each
    horizon, if that is more."""
    since = board.now - LATELY_S
    node_seconds = 0.0
    for node in board.nodes.values():
        if node.joined_at is not None:
            until = node.since if node.state is NodeState.ENDED else board.now
            node_seconds += max(0.0, until - max(since, node.joined_at))
    num_lost = sum(loss.at >= since for loss in board.cluster.losses)
    known = 3600.0 * (1 + num_lost) / (3600.0 / prior_hazard(board) + node_seconds)
    expected_s = horizon_s(board)
    if expected_s >= HORIZON_S:
        return known
    num_nodes = max(1, sum(node.state in LEASED for node in board.nodes.values()))
    return max(known, 3600.0 / max(BURST_S, expected_s) / num_nodes)


def prior_hazard(board: Board) -> float:
    """What the job knows of its cloud, else what is usual."""
    return (board.run.spec.hazard if board.run is not None else None) or PRIOR_HAZARD


def horizon_s(board: Board) -> float:
    """How long a plan may be thought to be in force: an hour; after several losses lately the mean time between them,
    or as long as it has been calm since, whichever is longer."""
    bursts: list[float] = []
    for loss in board.cluster.losses:
        if loss.at >= board.now - LATELY_S and (not bursts or loss.at - bursts[-1] > BURST_S):
            bursts.append(loss.at)
    if len(bursts) < UNSETTLED:
        return HORIZON_S
    between_s = (bursts[-1] - bursts[0]) / (len(bursts) - 1)
    return min(HORIZON_S, max(between_s, board.now - bursts[-1]))


def _restore_s(board: Board) -> float:
    """Reading all layers, and half of what is between two checkpoints."""
    run, known = board.run, board.progress
    assert run is not None and known is not None
    step_s = known.usual_step_s
    if not step_s or run.training is None:
        return PRIOR_RESTORE_S
    read_s = sum(cost.state_bytes for cost in run.costs) / checkpoints.DISK_BYTES_PER_S
    return PRIOR_SWITCH_S + read_s + step_s * run.training.checkpoint_every / 2


def _rounded(value: float) -> float:
    """To the nearest power of the square root of two."""
    return math.exp2(round(2 * math.log2(max(value, 1e-9))) / 2)
