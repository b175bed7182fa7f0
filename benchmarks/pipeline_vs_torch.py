"""Claim: with redundancy off, a step takes no more than 1.05 times one of torch's own Schedule1F1B.

Same layers, cut, data, optimizer and machine; rounds of both engines take turns, and the medians of their steps are
compared. Twice: real compute on two stages (two cores cannot show more), and four stages of emulated device time
(layers that sleep for their forward and backward, the GIL released), where only the schedule and the transport count.

    python -m benchmarks.pipeline_vs_torch [--rounds 5] [--steps 15]
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bamboo_trainer.plan import Mode

from benchmarks.fleet import claim, finish, step_seconds

PLAIN_GPT = str(Path(__file__).with_name("plain_gpt.py"))
WARM_UP = 3
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


def ours(case: dict[str, Any], num_steps: int) -> tuple[list[float], list[tuple[int, int]]]:
    """Seconds of each step, and the cut that both engines use."""
    seconds, plan = step_seconds(case, num_steps, NUM_MICROBATCHES, Mode.OFF)
    return seconds[WARM_UP:], [(s.first_layer, s.end_layer) for s in plan.pipelines[0].stages]


def torchs(case: dict[str, Any], num_steps: int, cut: list[tuple[int, int]]) -> list[float]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    job = case | {"cut": cut, "num_microbatches": NUM_MICROBATCHES, "num_steps": num_steps, "port": port}
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
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(job))
            process.stdin.close()
            process.stdin = None
        output = processes[0].communicate(timeout=300)[0]
        for process in processes[1:]:
            process.communicate(timeout=60)
    finally:
        for process in processes:
            process.kill()
    seconds: list[float] = json.loads(output.splitlines()[-1])
    return seconds[WARM_UP:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    arguments = parser.parse_args()
    claims, figures = [], {}
    for name, case in CASES.items():
        our_rounds, torch_rounds = [], []
        for _ in range(arguments.rounds):
            seconds, cut = ours(case, arguments.steps + WARM_UP)
            our_rounds.append(statistics.median(seconds))
            torch_rounds.append(statistics.median(torchs(case, arguments.steps + WARM_UP, cut)))
            print(f"{name}: ours {our_rounds[-1] * 1e3:.1f} ms, torch {torch_rounds[-1] * 1e3:.1f} ms", file=sys.stderr)
        # the ratio of each round, so that a machine that slows down slows both
        ratio = statistics.median(a / b for a, b in zip(our_rounds, torch_rounds, strict=True))
        claims.append(claim(f"{name}: step time / Schedule1F1B step time", ratio, 1.05))
        figures[name] = {"ours_ms": [x * 1e3 for x in our_rounds], "torch_ms": [x * 1e3 for x in torch_rounds]}
    return finish("pipeline_vs_torch", claims, figures=figures)


if __name__ == "__main__":
    sys.exit(main())
