"""Claim: ``bamboo status`` of 200 nodes takes less than half a second of the processor.

25 pipelines of 8 stages in the middle of a run, 100 nodes that were lost before, 20 000 steps, two days of prices. The
command runs in a process of its own, as users start it, and draws for a terminal of 100 × 40. What Python, the command
line and loading take is told apart, as is what one look of ``--watch`` takes when everything is loaded.

    python -m benchmarks.wide_status [--rounds 5]
"""

import argparse
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.fleet import claim, finish
from tests.cli import wide_file

LOADING = (
    "import gc; gc.set_threshold(50_000); "
    "import bamboo_cli.main, bamboo_cli.coordinator.reader, bamboo_cli.views.cluster; gc.freeze()"
)
LOOKS = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bamboo-bench-") as folder:
        path = wide_file.make(
            Path(folder) / "clusters" / "wide",
            now=time.time(),
            num_gone=100,
            num_steps=30_000,
            hours=48,
            num_events=5_000,
        )
        command = [sys.executable, "-m", "bamboo_cli.main"]
        took = {
            "status": [_run(folder, *command, "status") for _ in range(arguments.rounds)],
            "json": [_run(folder, *command, "status", "--json") for _ in range(arguments.rounds)],
            "version": [_run(folder, *command, "--version") for _ in range(arguments.rounds)],
            "python": [_run(folder, sys.executable, "-c", "pass") for _ in range(arguments.rounds)],
            "loading": [_run(folder, sys.executable, "-c", LOADING) for _ in range(arguments.rounds)],
        }
        look_s = _look_s(path)
    wall_s = {name: median(one[0] for one in listed) for name, listed in took.items()}
    processor_s = {name: median(one[1] for one in listed) for name, listed in took.items()}
    return finish(
        "wide_status",
        [claim("processor seconds of `bamboo status`", processor_s["status"], 0.5)],
        figures={
            "wall_s": wall_s["status"],
            "processor seconds of Python alone": processor_s["python"],
            "of Python and loading": processor_s["loading"],
            "of `bamboo --version`": processor_s["version"],
            "of `bamboo status --json`": processor_s["json"],
            "of one look of `--watch`": look_s,
        },
    )


def _run(home: str, *command: str) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = os.environ | {"BAMBOO_HOME": home, "COLUMNS": "100", "LINES": "40"}
    subprocess.run(command, env=environment, capture_output=True, check=True)
    wall_s, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _look_s(path: Path) -> float:
    """Of the processor: reading and drawing, when what does not change has been read before."""
    from rich.console import Console

    from bamboo_cli.coordinator.looking import Seen
    from bamboo_cli.coordinator.reader import read_look
    from bamboo_cli.views.screen import Screen

    console, seen = Console(file=io.StringIO(), force_terminal=True, width=100, height=40), Seen()
    began = 0.0
    for number in range(LOOKS + 1):
        if number == 1:
            began = time.process_time()
        console.print(Screen(read_look(path, now=time.time(), num_events=5, before=seen), time.time()))
    return (time.process_time() - began) / LOOKS


if __name__ == "__main__":
    sys.exit(main())
