"""Processes as this machine has them: started as groups of their own, found again by their environment, ended."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

CLUSTER_VARIABLE = "BAMBOO_CLUSTER"
INSTANCE_VARIABLE = "BAMBOO_INSTANCE"
"""Every process of an instance carries both in its environment, its children included."""
END_S = 5.0
CLOCK_SLACK_S = 2.0
"""psutil computes a process's start from the boot time, which moves when the clock is set."""


def start(command: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """In a session (hence a process group) of its own, with ``folder/agent.log`` for what it prints."""
    with (folder / "agent.log").open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def is_alive(pid: int, created_at: float) -> bool:
    """Whether that very process is there; a zombie and another process under the same number are not."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created_at) < CLOCK_SLACK_S and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def marked(variable: str, value: str) -> Iterator[psutil.Process]:
    """Live processes of this user whose environment has ``variable=value``."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable) == value:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone, a zombie, or another user's
            continue


def end_marked(variable: str, value: str, *, group: int | None) -> list[int]:
    """SIGKILL to the process group (if it is there) and to all that carry the mark; returns what would not die."""
    if group is not None:
        _kill_group(group, variable, value)
    deadline = time.monotonic() + END_S
    while victims := list(marked(variable, value)):
        if time.monotonic() > deadline:
            return [process.pid for process in victims]
        for process in victims:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(victims, timeout=0.2)
    return []


def _kill_group(group: int, variable: str, value: str) -> None:
    """All members at one moment, as a machine vanishes. Only a leader with the mark: numbers are used again."""
    try:
        if psutil.Process(group).environ().get(variable) == value:
            os.killpg(group, signal.SIGKILL)
    except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
        return


def title(process: psutil.Process) -> str:
    """The command line, for people."""
    try:
        return " ".join(process.cmdline())[:120] or process.name()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return "ended meanwhile"
