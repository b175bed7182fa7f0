"""The coordinator as a process of its own, which outlives the command that starts it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from bamboo_cli.coordinator import lock
from bamboo_cli.coordinator.reader import read_status
from bamboo_cli.coordinator.store import state_path
from bamboo_cli.errors import StateError

LOG_FILE = "coordinator.log"
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 20.0
POLL_S = 0.05
LOG_LINES = 15


def start(cluster_dir: Path) -> int:
    """Returns the process id once the coordinator answers.

    Raises StateError with the end of its log when it does not, or when another one owns the cluster.
    """
    status = read_status(state_path(cluster_dir), now=time.time())
    if lock.is_locked(cluster_dir):
        raise StateError(
            f"{cluster_dir} is in use by another coordinator (process {lock.owner(cluster_dir) or 'unknown'})",
            next_step="Only one may run; `bamboo status` shows what it does.",
        )
    pid = _launch(cluster_dir, status.cluster_id)
    deadline = time.monotonic() + START_DEADLINE_S
    while not _answers(cluster_dir, pid):
        late = time.monotonic() > deadline
        if late or not _is_there(pid):
            if late:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise StateError(
                f"the coordinator did not start:\n{_log_end(cluster_dir)}",
                next_step=f"Its whole log is {cluster_dir / LOG_FILE}.",
            )
        time.sleep(POLL_S)
    return pid


def stop(cluster_dir: Path) -> None:
    """End the coordinator, if one runs, and wait for it; agents and training go on. Raises StateError when it stays."""
    pid = lock.owner(cluster_dir)
    if pid is None:
        return
    with suppress(ProcessLookupError):  # it has just ended by itself
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_DEADLINE_S
    while lock.is_locked(cluster_dir):
        if time.monotonic() > deadline:
            raise StateError(
                f"the coordinator (process {pid}) does not end", next_step=f"Try `kill -9 {pid}`; that is safe."
            )
        time.sleep(POLL_S)


def _launch(cluster_dir: Path, cluster_id: str) -> int:
    """The id of a process that is nobody's child. Its mark lets ``down`` find it."""
    with (cluster_dir / LOG_FILE).open("ab") as log:
        started = subprocess.run(
            [sys.executable, "-m", "bamboo_cli.coordinator", str(cluster_dir.absolute()), "--detach"],
            cwd="/",
            env={**os.environ, "BAMBOO_CLUSTER": cluster_id},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            check=False,
        )
    if started.returncode != 0:
        raise StateError(
            f"the coordinator did not start:\n{_log_end(cluster_dir)}",
            next_step=f"Its whole log is {cluster_dir / LOG_FILE}.",
        )
    return int(started.stdout)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _answers(cluster_dir: Path, pid: int) -> bool:
    """It listens for agents, and has said so in the state file."""
    if lock.owner(cluster_dir) != pid:
        return False
    return read_status(state_path(cluster_dir), now=time.time()).coordinator.pid == pid


def _log_end(cluster_dir: Path) -> str:
    lines = (cluster_dir / LOG_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-LOG_LINES:]) or "  (its log is empty)"
