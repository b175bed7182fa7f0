"""State files of clusters that were closed and put aside are found like those of today: by cluster id, by run."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bamboo_cli import clusters, paths
from bamboo_cli.coordinator.reader import read_cluster_id, read_runs
from bamboo_cli.coordinator.status import RunStatus
from bamboo_cli.errors import StateError


def state_files(cluster: str | None) -> tuple[Path, ...]:
    """Of the clusters of that name, or of all; the one that was written last comes first."""
    found = paths.clusters_dir().glob("*/*.db") if cluster is None else paths.cluster_dir(cluster).glob("*.db")
    return tuple(sorted(found, key=lambda path: path.stat().st_mtime, reverse=True))


def copies(files: tuple[Path, ...]) -> dict[Path, Path]:
    """Of those of the same cluster, all but the first, and whose copy each is. One that cannot be read is none."""
    first: dict[str, Path] = {}
    found: dict[Path, Path] = {}
    for path in files:
        with suppress(StateError):
            original = first.setdefault(read_cluster_id(path), path)
            if original != path:
                found[path] = original
    return found


def state_file(cluster: str | None) -> Path:
    """As ``clusters.state_file``; ``cluster`` may also be the id of one, closed or put aside. Raises StateError."""
    if cluster is None or (paths.clusters_dir() / cluster / "state.db").exists():
        return clusters.state_file(cluster)
    for path in state_files(None):
        if path.stem == cluster or (path.stem == "state" and _has_id(path, cluster)):
            return path
    return clusters.state_file(cluster)


def put_aside(path: Path) -> tuple[str, ...]:
    """Ids of the earlier clusters of the same name, the newest first."""
    return tuple(found.stem for found in state_files(path.parent.name) if found != path and found.stem != "state")


def find_run(run_id: str, cluster: str | None) -> Path:
    """The state file that has the run. Raises StateError when none has."""
    damaged: list[str] = []
    for path, runs in _readable(_files_of(cluster), damaged):
        if any(run.run_id == run_id for run in runs):
            return path
    folder = paths.clusters_dir() / (cluster or "")
    also = f" ({'; '.join(damaged)})" if damaged else ""
    raise StateError(
        f"there is no run {run_id} in {folder}{also}", next_step="`bamboo status` names the newest run of a cluster."
    )


def all_runs(cluster: str) -> tuple[RunStatus, ...]:
    """Of the clusters of that name, the newest first. Files that cannot be read are passed over."""
    found = [run for _, runs in _readable(state_files(cluster), []) for run in runs]
    return tuple(sorted(found, key=lambda run: run.started_at, reverse=True))


def _files_of(cluster: str | None) -> tuple[Path, ...]:
    if cluster is None or (paths.clusters_dir() / cluster).exists():
        return state_files(cluster)
    return (state_file(cluster),)


def _readable(files: tuple[Path, ...], damaged: list[str]) -> Iterator[tuple[Path, tuple[RunStatus, ...]]]:
    """Adds to ``damaged`` what is wrong with the others."""
    for path in files:
        try:
            yield path, read_runs(path)
        except StateError as error:
            damaged.append(error.message)


def _has_id(path: Path, cluster_id: str) -> bool:
    try:
        return clusters.read_identity(path.parent).cluster_id == cluster_id
    except StateError:
        return False
