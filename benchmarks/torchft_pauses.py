"""torchft-nightly on emulated layers: how long the survivor of a killed replica group commits nothing."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers import python_with

RELEASE = "torchft-nightly==2026.10.26"
"""torchft 0.2.0, the newest release proper, crashes the survivor with torch 2.13."""
HEARTBEAT_S = 1.0
"""The default is 5 s."""
DEADLINE_S = 60.0
POLL_S = 0.005
STEPS_BETWEEN = 8
TRAINER = Path(__file__).parents[1] / "trainer"
"""For the layer that sleeps."""


def pauses(*, depth: int, width: int, step_s: float, num_kills: int) -> tuple[float, list[float]]:
    """Seconds of an undisturbed step, and of the pause after each kill. Raises NotInstalled.

    ``step_s``: that all layers of one group sleep in a step, a third of it forward.
    """
    python = python_with("torchft", [RELEASE])
    with tempfile.TemporaryDirectory(prefix="bamboo-bench-") as name, _lighthouse(python) as address:
        folder = Path(name)
        job = {
            "depth": depth,
            "width": width,
            "forward_s": step_s / 3 / depth,
            "backward_s": step_s * 2 / 3 / depth,
            "batch": 16,
            "lighthouse": address,
            "folder": name,
        }
        (folder / "job.json").write_text(json.dumps(job))
        groups = [_start(python, folder, group) for group in (0, 1)]
        try:
            found = [_kill(python, folder, groups) for _ in range(num_kills)]
        finally:
            for group in groups:
                _end(group)
    return median(usual for usual, _ in found), [pause for _, pause in found]


def _kill(python: Path, folder: Path, groups: list["subprocess.Popen[bytes]"]) -> tuple[float, float]:
    """The second group, in mid-step, when both have made some steps together; and a new one in its place."""
    lines = _wait(folder, lambda lines: _num_together(lines) >= STEPS_BETWEEN)
    together = [b["at"] - a["at"] for a, b in pairwise(lines[-STEPS_BETWEEN:])]
    usual_s = median(together)
    newest = len(lines)
    lines = _wait(folder, lambda lines: len(lines) > newest)
    time.sleep(0.4 * usual_s)
    before = [line for line in lines if line["committed"]][-1]
    _end(groups[1])
    killed_at = time.time()
    lines = _wait(folder, lambda lines: any(line["committed"] and line["at"] > killed_at for line in lines))
    after = next(line for line in lines if line["committed"] and line["at"] > killed_at)
    groups[1] = _start(python, folder, 1)
    return usual_s, after["at"] - before["at"] - usual_s


def _num_together(lines: list[dict[str, Any]]) -> int:
    """Steps up to the newest that were committed by both groups in a row."""
    alone = [index for index, line in enumerate(lines) if not line["committed"] or line["groups"] < 2]
    return len(lines) - 1 - alone[-1] if alone else len(lines)


def _wait(folder: Path, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The survivor's lines."""
    deadline = time.monotonic() + DEADLINE_S
    path = folder / "group0"
    while time.monotonic() < deadline:
        text = path.read_text() if path.exists() else ""
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        if enough(lines):
            return lines
        time.sleep(POLL_S)
    raise RuntimeError("torchft made no progress; BAMBOO_BENCH_LOG=1 shows why")


def _start(python: Path, folder: Path, group: int) -> "subprocess.Popen[bytes]":
    program = Path(__file__).with_name("torchft_peer.py")
    return _spawn([str(python), str(program), str(folder / "job.json"), str(group)])


@contextmanager
def _lighthouse(python: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    timeouts = [f"--heartbeat_timeout_ms={HEARTBEAT_S * 1e3:.0f}", "--join_timeout_ms=1000", "--quorum_tick_ms=50"]
    command = [str(python.with_name("torchft_lighthouse")), "--min_replicas=1", f"--bind=127.0.0.1:{port}", *timeouts]
    process = _spawn(command)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        _end(process)


def _spawn(command: list[str]) -> "subprocess.Popen[bytes]":
    log = None if os.environ.get("BAMBOO_BENCH_LOG") else subprocess.DEVNULL
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TRAINER)}
    return subprocess.Popen(command, env=settings, stdout=log, stderr=log, start_new_session=True)


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
