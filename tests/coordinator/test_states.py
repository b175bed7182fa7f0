"""The two tables of legal moves."""

import pytest
from bamboo_trainer.plan import NodeId

from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.entities import Node
from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.settings import ClusterConfig
from bamboo_cli.coordinator.states import (
    ENDED,
    LEASED,
    NODE_MOVES,
    RUN_MOVES,
    UNDER_PLAN,
    WANTED,
    IllegalMove,
    NodeState,
    RunState,
)


def test_every_state_has_its_line_in_the_table() -> None:
    assert set(NODE_MOVES) == set(NodeState)
    assert set(RUN_MOVES) == set(RunState)


@pytest.mark.parametrize("moves", [NODE_MOVES, RUN_MOVES])
def test_every_state_can_be_reached_and_nothing_is_listed_twice(moves: dict[str, tuple[str, ...]]) -> None:
    first = next(iter(moves))
    reached, front = {first}, [first]
    while front:
        for state in moves[front.pop()]:
            if state not in reached:
                reached.add(state)
                front.append(state)
    assert reached == set(moves)
    assert all(len(set(targets)) == len(targets) for targets in moves.values())


def test_every_life_can_end() -> None:
    """From everywhere, and only at the ends nothing more is possible."""
    assert {state for state, targets in NODE_MOVES.items() if not targets} == {NodeState.ENDED}
    assert {state for state, targets in RUN_MOVES.items() if not targets} == ENDED
    assert all(NodeState.ENDED in targets for state, targets in NODE_MOVES.items() if state is not NodeState.ENDED)
    assert all({RunState.FAILED, RunState.STOPPED} <= set(t) for s, t in RUN_MOVES.items() if s not in ENDED)


def test_a_node_that_is_given_back_or_has_ended_never_works_again() -> None:
    assert not (LEASED | WANTED) & {NodeState.RELEASED, NodeState.ENDED}
    assert NODE_MOVES[NodeState.RELEASED] == (NodeState.ENDED,)


def test_nobody_runs_under_a_plan_while_the_run_waits_or_prepares() -> None:
    assert not UNDER_PLAN & {RunState.STARTING, RunState.PROFILING, RunState.PREPARING, RunState.WAITING, *ENDED}


def test_an_illegal_move_raises_and_tells_the_story_so_far() -> None:
    board = Board(ClusterConfig(cluster_id="c", num_nodes=1, zones=("a",)))
    node = board.put(Node(node_id=NodeId("n1"), state=NodeState.ENDED, since=0.0, zone="a", token="t"))
    board.tell(StoryKind.NODE, "n1 was taken")
    with pytest.raises(IllegalMove, match=r"node n1 cannot go from ended to active(.|\n)*n1 was taken"):
        board.move_node(node, NodeState.ACTIVE)
