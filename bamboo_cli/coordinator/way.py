"""The way to the machines, where it leads through a bastion: while that is down, silence says nothing of a node.

Nodes train on by themselves; the cloud still says which of them are gone. Pure; docs/remote.md.
"""

from dataclasses import replace

from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.events import StoryKind, WayFound, WayLost
from bamboo_cli.coordinator.states import LEASED
from bamboo_cli.remote.settings import BASTION_STEP

RETURN_S = 30.0
"""Before a lease runs again, once the way is found: 64 connections are made anew, and a link in each."""


def lost(board: Board, event: WayLost) -> None:
    board.pulse.way_lost_at = board.now
    text = (
        f"the bastion {event.bastion} cannot be reached: {event.detail}. Nodes go on by themselves and none is blamed; "
        "nothing is rented until it is back"
    )
    board.tell(StoryKind.COORDINATOR, text)


def found(board: Board, event: WayFound) -> None:
    """Every node has the time to be heard again, and what was given up since the way was lost is begun again."""
    since, board.pulse.way_lost_at = board.pulse.way_lost_at, None
    lost_s = 0.0 if since is None else board.now - since
    board.tell(StoryKind.COORDINATOR, f"the bastion {event.bastion} is back after {lost_s:.0f} s", lost_s=lost_s)
    for node in board.nodes.values():
        if node.state in LEASED:
            board.pulse.heard_at[node.node_id] = board.now + RETURN_S
    begin_again(board)


def begin_again(board: Board) -> None:
    """What was given up for the bastion. Also when the coordinator begins: nobody tells it then that it is back."""
    if board.cluster.failed_step == BASTION_STEP:
        board.cluster = replace(board.cluster, failed_step="", num_failed=0, rent_after=0.0, gave_up="")


def excuses_silence(board: Board) -> bool:
    """For a time: after it, agents have ended their machines, or they are gone."""
    since = board.pulse.way_lost_at
    return since is not None and board.now - since < board.config.way_patience_s
