"""Claim: without failures, every kind of protection costs little, and FRC in bubbles gets nearly all that fits.

Step time of each mode over that of ``off``: one pipeline of four stages of emulated device time (16 layers that sleep,
the GIL released; a backward twice as long as a forward) with 4, 8 and 16 microbatches; the modes take turns in the
same processes.

    python -m benchmarks.protection_price [--rounds 5] [--steps 10] [--microbatches 4 8 16] [--forward-ms 20]
"""

import argparse
import sys
from statistics import median
from typing import Any

from bamboo_trainer.bubbles import with_slots
from bamboo_trainer.dryrun import Durations
from bamboo_trainer.plan import Mode, Plan

from benchmarks.fleet import claim, finish, turns

STAGES = 4
WARM_UP = 2
DEPTH = 16


def case(layer_forward_s: float) -> dict[str, Any]:
    options = {
        "depth": DEPTH,
        "width": 64,
        "dropout": 0.0,
        "clip_norm": None,
        "sleep_forward_s": layer_forward_s,
        "sleep_backward_s": 2 * layer_forward_s,
    }
    return {"recipe": "mlp", "recipe_options": options, "stages": STAGES, "microbatch_size": 16}


MODES = [mode for mode in Mode if mode is not Mode.REROUTE]
"""``reroute`` takes another pipeline and does nothing until a loss: it is ``off``."""
LIMIT = 1.02
POINTS_ABOVE_BOUND = 0.03
MIN_SHARE = 0.85


def eager_bound(num_microbatches: int) -> float:
    """What no schedule can beat when a backward takes two forwards: the FRC that does not fit into the bubbles."""
    return 1 + max(0, num_microbatches - 3 * (STAGES - 1)) / (3 * (num_microbatches + STAGES - 1))


def num_placed(plan: Plan) -> int:
    """Layers of FRC in the slots of a plan, all shadows together."""
    return sum(slots[-1] for stage in plan.stages() for slots in stage.slots)


def share_of_what_fits(plan: Plan, layer_forward_s: float) -> float:
    """What the plan places, over what a plan without any margin would, if every layer took what it sleeps."""
    exact = Durations(forward=[layer_forward_s] * DEPTH, backward=[2 * layer_forward_s] * DEPTH)
    return num_placed(plan) / num_placed(with_slots(plan, exact, margin=0.0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--microbatches", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--forward-ms", type=float, default=20.0, help="of a stage")
    arguments = parser.parse_args()
    layer_forward_s = arguments.forward_ms / 1e3 / (DEPTH // STAGES)
    claims, figures = [], {}
    for m in arguments.microbatches:
        seconds, plans = turns(
            case(layer_forward_s), m, MODES, rounds=arguments.rounds, num_steps=arguments.steps, warm_up=WARM_UP
        )
        # the ratio of each round, so that a machine that slows down slows all modes
        ratios = {mode: median(a / b for a, b in zip(seconds[mode], seconds[Mode.OFF], strict=True)) for mode in MODES}
        print(f"M = {m}: " + ", ".join(f"{mode} {ratio:.3f}" for mode, ratio in ratios.items()), file=sys.stderr)
        claims += [
            claim(f"M={m} {mode}: step time / off", ratios[mode], LIMIT)
            for mode in (Mode.BUBBLE, Mode.MIRROR, Mode.LAZY)
        ]
        bound = eager_bound(m) + POINTS_ABOVE_BOUND
        claims.append(claim(f"M={m} eager: step time / off, bound + 0.03", ratios[Mode.EAGER], bound))
        share = share_of_what_fits(plans[Mode.BUBBLE], layer_forward_s)
        claims.append(claim(f"M={m} bubble: FRC placed / what fits", share, MIN_SHARE, at_most=False))
        wanted = m * DEPTH
        figures[f"M={m}"] = {
            "full_ratio": ratios[Mode.FULL],
            "eager_bound": eager_bound(m),
            "bubble_share_of_all_frc": num_placed(plans[Mode.BUBBLE]) / wanted,
            "step_ms": {mode: [x * 1e3 for x in seconds[mode]] for mode in MODES},
        }
    return finish("protection_price", claims, figures=figures)


if __name__ == "__main__":
    sys.exit(main())
