"""Waiting until the nodes of a cluster are ready, and what is said meanwhile."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo_cli import output
from bamboo_cli.errors import StateError

if TYPE_CHECKING:
    from bamboo_cli.coordinator.status import ClusterStatus

POLL_S = 0.2
RECENTLY_S = 30.0
"""What a coordinator that has just been started may have told already."""


def num_ready(status: "ClusterStatus") -> int:
    """Nodes with a ready worker. Once a run has ended, workers are started only by the next: joined is all then."""
    ready = {"standby", "active"}
    if status.run is not None and status.run.ended_at is not None:
        ready.add("joined")
    return sum(node.state in ready for node in status.nodes)


def await_nodes(path: Path) -> "ClusterStatus":
    """Until all wanted nodes are ready for a run. Raises StateError when the coordinator dies meanwhile."""
    from bamboo_cli.coordinator.reader import read_status
    from bamboo_cli.coordinator.store import ClusterState

    told, since = -1, time.time() - RECENTLY_S
    with output.waiting("the nodes") as saw:
        while True:
            status = read_status(path, now=time.time())
            ready = num_ready(status)
            if ready >= status.wanted_nodes:
                return status
            if status.gave_up:
                raise StateError(
                    f"no further node is rented: {status.gave_up}",
                    next_step=f"What each step wrote is in {path.parent / 'nodes'}. End it with `bamboo down`, mend "
                    "what is wrong, and begin again.",
                )
            if status.state is not ClusterState.UP:
                raise StateError(
                    f"cluster {status.name} was taken down meanwhile", next_step="`bamboo up JOB` starts another."
                )
            if not status.coordinator.alive:
                raise StateError(
                    "the coordinator ended while the nodes were coming up",
                    next_step=f"See {path.parent / 'coordinator.log'}; `bamboo up` starts it again.",
                )
            told = _tell_refusals(path, told, since)
            reasons = {node.reason for node in status.nodes if node.state in ("intended", "booting") and node.reason}
            saw(f"{ready} of {status.wanted_nodes} ready" + (f" ({', '.join(sorted(reasons))})" if reasons else ""))
            time.sleep(POLL_S)


def _tell_refusals(path: Path, after_id: int, since: float) -> int:
    """What the cloud refused after that event, and what can be done; returns the newest event told."""
    from bamboo_cli.coordinator.events import StoryKind
    from bamboo_cli.coordinator.reader import read_events

    refused = [event for event in read_events(path, after_id) if event.kind in (StoryKind.CAPACITY, StoryKind.CLOUD)]
    for event in refused:
        if event.at > since:
            output.note(event.text)
    return max((event.event_id for event in refused), default=after_id)
