"""Which cluster a command means, and asking its coordinator for something."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bamboo_cli import output, paths
from bamboo_cli.errors import BambooError, StateError, UsageError

if TYPE_CHECKING:
    from bamboo_cli.coordinator.store import RequestKind

POLL_S = 0.1
ANSWER_DEADLINE_S = 120.0


class RefusedError(BambooError):
    """The coordinator said no; the message says why."""


def state_file(cluster: str | None) -> Path:
    """``state.db`` of the named cluster, or of the only one that is up (else the one that was used last).

    Raises StateError when there is none, UsageError when several are up.
    """
    from bamboo_cli.coordinator.store import ClusterState, state_path

    if cluster is not None:
        path = state_path(paths.cluster_dir(cluster))
        if not path.exists():
            raise StateError(f"there is no cluster {cluster} in {paths.clusters_dir()}", next_step=_known_clusters())
        return path
    found = sorted(paths.clusters_dir().glob("*/state.db"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise StateError(
            f"there is no cluster in {paths.clusters_dir()}",
            next_step="Start one with `bamboo up JOB` or `bamboo run JOB`.",
        )
    up = [path for path in found if len(found) > 1 and _state(path) != ClusterState.CLOSED]
    if len(up) > 1:
        names = ", ".join(path.parent.name for path in up)
        raise UsageError(f"several clusters are up: {names}", next_step="Say which one with --cluster NAME.")
    return up[0] if up else found[-1]


def _state(path: Path) -> str | None:
    from bamboo_cli.coordinator.reader import read_status

    try:
        return read_status(path, now=time.time()).state
    except StateError:
        return None  # damaged or foreign: not closed for sure, so it counts as up and has to be named


def _known_clusters() -> str:
    names = sorted(path.parent.name for path in paths.clusters_dir().glob("*/state.db"))
    return f"There are: {', '.join(names)}." if names else "Start one with `bamboo up JOB`."


def ask(path: Path, kind: "RequestKind", payload: dict[str, Any], *, what: str) -> str:
    """Make a request of the coordinator and wait for its answer; returns the outcome.

    Raises RefusedError with the coordinator's reason, StateError when no coordinator answers.
    """
    from bamboo_cli.coordinator.lock import is_locked
    from bamboo_cli.coordinator.store import RequestState, make_request, request_outcome

    request_id = make_request(path, kind, payload)
    deadline = time.monotonic() + ANSWER_DEADLINE_S
    with output.waiting(what) as saw:
        while time.monotonic() < deadline:
            answer = request_outcome(path, request_id)
            if answer.state is RequestState.REFUSED:
                raise RefusedError(answer.outcome)
            if answer.state is RequestState.DONE:
                return answer.outcome
            if not is_locked(path.parent):
                raise StateError(
                    "the coordinator is not running, so nobody answered",
                    next_step=f"`bamboo up` starts it again; its log is {path.parent / 'coordinator.log'}.",
                )
            saw("asked the coordinator")
            time.sleep(POLL_S)
    raise StateError(
        f"the coordinator did not answer within {ANSWER_DEADLINE_S:.0f} s",
        next_step=f"See {path.parent / 'coordinator.log'}.",
    )
