"""A cluster on which nothing runs costs what it costs: after a while all of it is given back. Pure."""

from dataclasses import replace

from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.events import StoryKind


def watch(board: Board) -> None:
    """After every event. By the clock on the wall, also over restarts: whoever's laptop slept meanwhile paid too."""
    cluster, idle_s = board.cluster, board.config.idle_s
    if cluster.closing or not idle_s:
        return
    if board.active_run is not None:
        if cluster.gives_back_at is not None:
            board.cluster = replace(cluster, gives_back_at=None)
    elif cluster.gives_back_at is None:
        board.cluster = replace(cluster, gives_back_at=board.now + idle_s)
    elif board.now >= cluster.gives_back_at:
        board.cluster = replace(cluster, closing=True)
        board.tell(StoryKind.NODE, f"nothing has run for {idle_s / 60:g} min: all nodes are given back")
