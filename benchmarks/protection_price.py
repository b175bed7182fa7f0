"""Claim: without failures, redundancy in bubbles costs little, and lazy redundancy next to nothing.

Step time of each mode over that of ``off``: one pipeline of four stages of emulated device time (16 layers that sleep
2.5 ms forward and 5 ms backward, the GIL released) and 8 microbatches; the modes take turns.

    python -m benchmarks.protection_price [--rounds 5] [--steps 15]
"""

import argparse
import sys
from statistics import median
from typing import Any

from bamboo_trainer.plan import Mode

from benchmarks.fleet import claim, finish, step_seconds

STAGES = 4
MICROBATCHES = 8
WARM_UP = 3
CASE: dict[str, Any] = {
    "recipe": "mlp",
    "recipe_options": {
        "depth": 16,
        "width": 64,
        "dropout": 0.0,
        "clip_norm": None,
        "sleep_forward_s": 0.0025,
        "sleep_backward_s": 0.005,
    },
    "stages": STAGES,
    "microbatch_size": 16,
}
EAGER_BOUND = 1 + max(0, MICROBATCHES - 3 * (STAGES - 1)) / (3 * (MICROBATCHES + STAGES - 1))
"""What no schedule can beat when a backward takes two forwards: the FRC that does not fit into the bubbles."""
LIMITS = {Mode.LAZY: 1.05, Mode.BUBBLE: 1.10}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    arguments = parser.parse_args()
    seconds: dict[Mode, list[float]] = {mode: [] for mode in Mode}
    for _ in range(arguments.rounds):
        for mode in Mode:
            taken, _ = step_seconds(CASE, arguments.steps + WARM_UP, MICROBATCHES, mode)
            seconds[mode].append(median(taken[WARM_UP:]))
        print(", ".join(f"{mode} {seconds[mode][-1] * 1e3:.1f} ms" for mode in Mode), file=sys.stderr)
    # the ratio of each round, so that a machine that slows down slows all modes
    ratios = {m: median(a / b for a, b in zip(seconds[m], seconds[Mode.OFF], strict=True)) for m in Mode}
    claims = [claim(f"{mode}: step time / off", ratios[mode], limit) for mode, limit in LIMITS.items()]
    return finish(
        "protection_price",
        claims,
        eager_ratio=ratios[Mode.EAGER],
        eager_bound=EAGER_BOUND,
        step_ms={mode: [x * 1e3 for x in seconds[mode]] for mode in Mode},
    )


if __name__ == "__main__":
    sys.exit(main())
