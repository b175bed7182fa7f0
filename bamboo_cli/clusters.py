"""Which cluster a command means; making one; its coordinator, and asking it for something."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bamboo_cli import output, paths
from bamboo_cli.errors import BambooError, StateError, UsageError

if TYPE_CHECKING:
    from bamboo_cli.config import JobConfig
    from bamboo_cli.coordinator.store import ClusterState, RequestKind

IDENTITY_FILE = "cluster.json"
CRON_VARIABLE = "BAMBOO_CRON"
"""In the environment of a command that a night starts: the id of its entry, which marks the clusters it makes."""
POLL_S = 0.1
ANSWER_DEADLINE_S = 120.0
HOPE_S = 10.0
"""Before an answer is given up: what the story says may be about to change."""


class RefusedError(BambooError):
    """The coordinator said no; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Beside the state file, so that `down` can sweep by the cluster's mark even when that file is damaged."""

    cluster_id: str
    cloud: str
    regions: tuple[str, ...] = ()
    """In which anything may have been rented, whatever came of it."""
    profile: str | None = None
    cron: str | None = None
    """Id of the entry whose night made the cluster; None: somebody did, by hand."""


# --- which one --------------------------------------------------------------------------------------------------


def state_file(cluster: str | None) -> Path:
    """``state.db`` of the named cluster, or of the only one that is up (else the one that was used last).

    Raises StateError when there is none, UsageError when several are up.
    """
    found = _records()
    if cluster is not None:
        path = paths.cluster_dir(cluster) / "state.db"
        if path not in found:
            names = ", ".join(sorted(path.parent.name for path in found))
            raise StateError(
                f"there is no cluster {cluster} in {paths.clusters_dir()}",
                next_step=f"There are: {names}." if names else "Start one with `bamboo up JOB`.",
            )
        return path
    if not found:
        raise StateError(
            f"there is no cluster in {paths.clusters_dir()}",
            next_step="Start one with `bamboo up JOB` or `bamboo run JOB`. Of one on AWS whose folder is lost, the tag "
            "`bamboo:cluster` of its instances says what `bamboo down --cluster-id ID` takes.",
        )
    up = [path for path in found if len(found) > 1 and not _is_closed(path)]
    if len(up) > 1:
        names = ", ".join(path.parent.name for path in up)
        raise UsageError(f"several clusters are up: {names}", next_step="Say which one with --cluster NAME.")
    return up[0] if up else found[-1]


def _records() -> list[Path]:
    """Of all clusters, the one that was used last at the end. Where a state file is gone, its identity is enough."""
    used: dict[Path, float] = {}
    for name in (IDENTITY_FILE, "state.db"):
        used |= {file.with_name("state.db"): file.stat().st_mtime for file in paths.clusters_dir().glob(f"*/{name}")}
    return sorted(used, key=lambda path: used[path])


def _is_closed(path: Path) -> bool:
    from bamboo_cli.coordinator.store import ClusterState

    try:
        return read_state(path) is ClusterState.CLOSED
    except StateError:
        return False  # damaged or foreign: not closed for sure, so it has to be named


def read_state(path: Path) -> "ClusterState":
    """Raises StateError."""
    from bamboo_cli.coordinator import reader

    return reader.read_state(path)


def read_identity(cluster_dir: Path) -> Identity:
    """Raises StateError when neither file can be read."""
    try:
        stored = json.loads((cluster_dir / IDENTITY_FILE).read_text(encoding="utf-8"))
        return Identity(**stored | {"regions": tuple(stored.get("regions", ()))})
    except (OSError, ValueError, TypeError, AttributeError):
        from bamboo_cli.config import JobConfig
        from bamboo_cli.coordinator.reader import read_status
        from bamboo_cli.coordinator.store import state_path

        status = read_status(state_path(cluster_dir), now=time.time())
        if status.cloud == "local":
            return Identity(cluster_id=status.cluster_id, cloud=status.cloud)
        return _identity(status.cluster_id, JobConfig.model_validate(status.job))


def _identity(cluster_id: str, job: "JobConfig") -> Identity:
    if job.cloud != "aws":
        return Identity(cluster_id=cluster_id, cloud=job.cloud)
    return Identity(cluster_id=cluster_id, cloud=job.cloud, regions=job.on_aws.regions, profile=job.on_aws.profile)


def is_up(cluster_dir: Path) -> bool:
    """Whether there is one of that name that is not closed. Raises StateError."""
    from bamboo_cli.coordinator.store import ClusterState, state_path

    path = state_path(cluster_dir)
    return path.exists() and read_state(path) is not ClusterState.CLOSED


# --- making one -------------------------------------------------------------------------------------------------


def open_or_create(job: "JobConfig", job_text: str, cluster: str | None) -> Path:
    """The cluster's folder. A closed one of that name is put aside with its story and bill.

    Raises StateError.
    """
    from bamboo_cli.coordinator import store

    cluster_dir = paths.cluster_dir(cluster or job.name)
    path = store.state_path(cluster_dir)
    if is_up(cluster_dir):
        if not (cluster_dir / IDENTITY_FILE).exists():  # a command was killed right after it had made the cluster
            _write_identity(cluster_dir, read_identity(cluster_dir))
        return cluster_dir
    if path.exists():
        _put_aside(path)
    elif (cluster_dir / IDENTITY_FILE).exists():
        raise StateError(
            f"the state file of cluster {cluster_dir.name} is gone, and what it rented may still be there",
            next_step=f"Give it back first: `bamboo down --cluster {cluster_dir.name}`.",
        )
    cluster_id = store.create_cluster(
        cluster_dir,
        name=cluster_dir.name,
        cloud=job.cloud,
        job_text=job_text,
        job=job.model_dump(mode="json", exclude_unset=True),
        wanted_nodes=job.num_nodes,
    )
    _write_identity(cluster_dir, replace(_identity(cluster_id, job), cron=os.environ.get(CRON_VARIABLE)))
    return cluster_dir


def _write_identity(cluster_dir: Path, identity: Identity) -> None:
    unfinished = cluster_dir / f"{IDENTITY_FILE}.new"
    unfinished.write_text(json.dumps(asdict(identity)), encoding="utf-8")
    unfinished.replace(cluster_dir / IDENTITY_FILE)


def _put_aside(path: Path) -> None:
    """Killed anywhere, it can be done again. Its identity goes first: `down` must never take it for the next one's."""
    cluster_id = read_identity(path.parent).cluster_id
    (path.parent / IDENTITY_FILE).unlink(missing_ok=True)
    nodes = path.with_name(paths.NODES)
    if nodes.exists():  # the next cluster's begin with n1 again
        nodes.rename(path.with_name(f"{cluster_id}.{paths.NODES}"))
    for suffix in ("", "-wal", "-shm"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(path.with_name(f"{cluster_id}.db{suffix}"))


def require_up(path: Path) -> None:
    """Raises StateError when the cluster was taken down, or is being."""
    from bamboo_cli.coordinator.store import ClusterState

    name, state = path.parent.name, read_state(path)
    if state is not ClusterState.UP:
        raise StateError(
            f"cluster {name} is {'down' if state is ClusterState.CLOSED else 'being taken down'}",
            next_step="`bamboo up JOB` starts another, `bamboo run JOB` does all in one.",
        )


# --- its coordinator --------------------------------------------------------------------------------------------


def ensure_coordinator(cluster_dir: Path) -> bool:
    """Start the coordinator unless it runs. True: it had to be started.

    Raises StateError with the end of its log.
    """
    from bamboo_cli.coordinator import daemon, lock

    if lock.is_locked(cluster_dir):
        return False
    daemon.start(cluster_dir)
    return True


def ask(
    path: Path,
    kind: "RequestKind",
    payload: dict[str, Any],
    *,
    what: str,
    deadline_s: float = ANSWER_DEADLINE_S,
    hopeless: Callable[[], str | None] = lambda: None,
) -> str:
    """Make a request of the coordinator and wait for its answer; returns the outcome. One that died is started again.

    ``hopeless``: why there is nothing to wait for. Raises RefusedError with that, or with the coordinator's reason;
    StateError when no coordinator answers.
    """
    from bamboo_cli.coordinator.lock import is_locked
    from bamboo_cli.coordinator.store import RequestState, make_request, request_outcome

    if ensure_coordinator(path.parent):
        output.note("the coordinator was not running; it was started again")
    request_id = make_request(path, kind, payload)
    asked_at = time.monotonic()
    deadline = asked_at + deadline_s
    with output.waiting(what) as saw:
        while time.monotonic() < deadline:
            alive = is_locked(path.parent)  # before the answer is looked for: it may end right after giving it
            answer = request_outcome(path, request_id)
            if answer.state is RequestState.REFUSED:
                raise RefusedError(answer.outcome)
            if answer.state is RequestState.DONE:
                return answer.outcome
            if not alive:
                raise StateError(
                    "the coordinator ended before it answered",
                    next_step=f"See {path.parent / 'coordinator.log'}; the next command starts it again.",
                )
            if time.monotonic() - asked_at > HOPE_S and (why := hopeless()) is not None:
                raise RefusedError(why)
            saw("")
            time.sleep(POLL_S)
    raise StateError(
        f"the coordinator did not answer within {deadline_s:.0f} s",
        next_step=f"See {path.parent / 'coordinator.log'}.",
    )
