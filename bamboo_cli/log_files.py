"""The logs of a cluster on this machine: the coordinator's, and each node's agent and workers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo_cli import paths
from bamboo_cli.errors import UsageError

if TYPE_CHECKING:
    from bamboo_cli.coordinator.status import ClusterStatus

POLL_S = 0.3
NODE_LOGS = ("agent.log", "worker.log", "worker-*.log")
"""The last: of further accelerators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    source: str
    """``coordinator``, ``n3 agent``, ``n3 worker``, ``n3 worker-1``."""
    path: Path


def log_files(status: "ClusterStatus", cluster_dir: Path, node: str | None) -> tuple[LogFile, ...]:
    """Those that exist; of one node, or of all and the coordinator. Raises UsageError for an unknown node."""
    known = [found.node_id for found in status.nodes]
    if node is not None and node not in known:
        raise UsageError(f"there is no node {node}", next_step=f"There were: {', '.join(known) or 'none'}.")
    found = [LogFile(source="coordinator", path=cluster_dir / "coordinator.log")] if node is None else []
    for one in status.nodes:
        if one.instance_id and node in (None, one.node_id):
            folder = paths.local_cloud_dir() / "instances" / one.instance_id
            paths_there = [path for pattern in NODE_LOGS for path in sorted(folder.glob(pattern))]
            found += [LogFile(source=f"{one.node_id} {path.stem}", path=path) for path in paths_there]
    return tuple(file for file in found if file.path.exists())


def last_lines(file: LogFile, count: int) -> list[str]:
    lines = file.path.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-count:] if count else []


def follow(files: Callable[[], Sequence[LogFile]], say: Callable[[str, str], None]) -> None:
    """Call ``say(source, line)`` for every new line until interrupted; new files are read from their beginning."""
    read = {file.path: file.path.stat().st_size for file in files()}
    while True:
        for file in files():
            with file.path.open("rb") as stream:
                stream.seek(read.get(file.path, 0))
                whole, newline, _ = stream.read().rpartition(b"\n")
            if newline:
                read[file.path] = read.get(file.path, 0) + len(whole) + 1
                for line in whole.decode(errors="replace").splitlines():
                    say(file.source, line)
        time.sleep(POLL_S)
