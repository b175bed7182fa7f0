"""Claim: with redundancy off, a step takes no more than 1.05 times one of torch's own Schedule1F1B.

Same layers, cut, data, optimizer and machine. Both engines are started once and take turns of a few steps, one resting
while the other runs, in alternating order; each pair of turns gives the ratio of its median steps, and the claim is of
the median ratio. Twice: real compute on two stages (two cores cannot show more), and four stages of emulated device
time (layers that sleep for their forward and backward, the GIL released), where only the schedule and the transport
count.

    python -m benchmarks.pipeline_vs_torch [--pairs 20] [--steps 4]
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bamboo_trainer.plan import Mode

from benchmarks.fleet import Stepper, claim, finish, stepper

PLAIN_GPT = str(Path(__file__).with_name("plain_gpt.py"))
WARM_UP = 1
"""Steps of a turn that do not count: caches are cold, and a plan's first step fetches its layers."""
CASES: dict[str, dict[str, Any]] = {
    "real_p2": {"recipe": PLAIN_GPT, "recipe_options": {}, "stages": 2, "microbatch_size": 4},
    "emulated_p4": {
        "recipe": "mlp",
        "recipe_options": {
            "depth": 8,
            "width": 64,
            "dropout": 0.0,
            "clip_norm": None,
            "sleep_forward_s": 0.005,
            "sleep_backward_s": 0.010,
        },
        "stages": 4,
        "microbatch_size": 16,
    },
}
NUM_MICROBATCHES = 8
LIMIT = 1.05


@contextmanager
def torchs(case: dict[str, Any], cut: list[tuple[int, int]]) -> Iterator[Stepper]:
    """Gives the seconds of each step; the processes rest between calls."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    job = case | {"cut": cut, "num_microbatches": NUM_MICROBATCHES, "port": port}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.torch_1f1b", str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(case["stages"])
    ]

    def say(line: str) -> None:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def steps(count: int) -> list[float]:
        say(str(count))
        assert processes[0].stdout is not None
        seconds: list[float] = json.loads(processes[0].stdout.readline())
        return seconds

    try:
        say(json.dumps(job))
        yield steps
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def pairs(case: dict[str, Any], num_pairs: int, num_steps: int) -> list[tuple[float, float]]:
    """Median seconds of a step of each engine (ours, torch's), turn by turn."""
    with stepper(case, NUM_MICROBATCHES, Mode.OFF) as (ours, plan):
        cut = [(stage.first_layer, stage.end_layer) for stage in plan.pipelines[0].stages]
        with torchs(case, cut) as theirs:
            engines = (ours, theirs)
            for engine in engines:
                engine(WARM_UP)
            found = []
            for index in range(num_pairs):
                turn = {
                    e: statistics.median(e(WARM_UP + num_steps)[WARM_UP:]) for e in engines[:: -1 if index % 2 else 1]
                }
                found.append((turn[ours], turn[theirs]))
                print(f"ours {turn[ours] * 1e3:.1f} ms, torch {turn[theirs] * 1e3:.1f} ms", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--case", choices=CASES, action="append", help="only this one")
    arguments = parser.parse_args()
    claims, figures = [], {}
    for name in arguments.case or CASES:
        found = pairs(CASES[name], arguments.pairs, arguments.steps)
        ratios = [ours / theirs for ours, theirs in found]
        claims.append(claim(f"{name}: step time / Schedule1F1B step time", statistics.median(ratios), LIMIT))
        quartiles = statistics.quantiles(ratios, n=4)
        figures[name] = {
            "ours_ms": round(statistics.median(ours for ours, _ in found) * 1e3, 1),
            "torch_ms": round(statistics.median(theirs for _, theirs in found) * 1e3, 1),
            "ratio_quartiles": [round(x, 3) for x in quartiles],
        }
    return finish("pipeline_vs_torch", claims, figures=figures)


if __name__ == "__main__":
    sys.exit(main())
