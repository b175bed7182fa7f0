"""Claim: ``bamboo cost`` on a state file with a million rows takes less than a second.

A year of 64 nodes, each replaced once a day, in three zones whose prices change every half hour, and the steps of 50
runs: a million rows of instances, prices and steps. The command runs in a process of its own, as users start it.

    python -m benchmarks.big_ledger [--rounds 5]
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.fleet import claim, finish
from tests.cli import ledger_file

ROWS = 1_000_000
DAYS = 365
NODES = 64
PRICES_A_DAY = 48
RUNS = 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    num_facts = DAYS * (NODES + len(ledger_file.ZONES) * PRICES_A_DAY)
    with tempfile.TemporaryDirectory(prefix="bamboo-bench-") as folder:
        path = ledger_file.make(
            Path(folder) / "clusters" / "year",
            begin=time.time() - (DAYS + 1) * 86_400,
            days=DAYS,
            num_nodes=NODES,
            prices_a_day=PRICES_A_DAY,
            num_steps=ROWS - num_facts,
            num_runs=RUNS,
        )
        print(
            f"{num_facts} rows of money, {ROWS - num_facts} of steps, {path.stat().st_size >> 20} MiB", file=sys.stderr
        )
        took = [_run(folder, "cost") for _ in range(arguments.rounds)]
        start = [_run(folder, "--version") for _ in range(arguments.rounds)]
    wall_s, processor_s = (median(one[i] for one in took) for i in (0, 1))
    claims = [claim("seconds of `bamboo cost`", wall_s, 1.0)]
    return finish(
        "big_ledger",
        claims,
        figures={
            "processor_s": processor_s,
            "bamboo --version, seconds": median(one[0] for one in start),
            "bamboo --version, processor seconds": median(one[1] for one in start),
        },
    )


def _run(home: str, *arguments: str) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "bamboo_cli.main", *arguments]
    subprocess.run(command, env=os.environ | {"BAMBOO_HOME": home}, capture_output=True, text=True, check=True)
    wall_s, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
