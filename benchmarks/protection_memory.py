"""Claim: what each protection keeps in memory is what `bamboo plan` says that it keeps.

Real workers, one pipeline of four stages, layers of 17 MB; each mode in processes of its own. Measured: the peak of a
worker's resident memory in its steps, less that before its plan; compared with the formula (docs/planner.md) stage by
stage, as the difference to ``off`` in the same stage, so that what Python, torch and the allocator take cancels out.

    python -m benchmarks.protection_memory
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from bamboo_trainer import control
from bamboo_trainer.arrangement import arrangement_of
from bamboo_trainer.memory import memory_of
from bamboo_trainer.plan import Mode, Plan

from benchmarks.fleet import Process, claim, finish, fleet, spec_of

CASE: dict[str, Any] = {
    "recipe": "mlp",
    "recipe_options": {"depth": 8, "width": 1024, "dropout": 0.0, "clip_norm": None},
    "stages": 4,
    "microbatch_size": 256,
}
NUM_MICROBATCHES = 8
NUM_STEPS = 5
MODES = [Mode.OFF, Mode.MIRROR, Mode.LAZY, Mode.BUBBLE, Mode.EAGER, Mode.FULL]
LIMIT = 0.2
"""Of the formula's difference to ``off``, the mean over stages: what the measured one may be off by."""
MB = 1 << 20


def peak_bytes(process: Process) -> int:
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def forget_peak(process: Process) -> None:
    """The peak is the present again (proc(5), clear_refs)."""
    Path(f"/proc/{process.process.pid}/clear_refs").write_text("5")


def measured(mode: Mode) -> tuple[list[int], list[int]]:
    """Bytes by stage: seen, and by the formula."""
    with tempfile.TemporaryDirectory() as folder, fleet(CASE["stages"]) as workers:
        spec = spec_of(CASE, NUM_MICROBATCHES, 10**6, folder)
        costs = workers.prepare(spec)
        plan = workers.plan(spec, costs, 1, CASE["stages"], mode)
        processes = [workers.processes[stage.host] for stage in plan.pipelines[0].stages]
        for process in processes:
            forget_peak(process)
        before = [peak_bytes(process) for process in processes]
        workers.adopt(plan)
        for _, _, message in workers.hear():
            if isinstance(message, control.StepCommitted) and message.summary.step == NUM_STEPS - 1:
                break
        after = [peak_bytes(process) for process in processes]
    return [a - b for a, b in zip(after, before, strict=True)], formula(plan, costs)


def formula(plan: Plan, costs: tuple[control.LayerCost, ...] | Any) -> list[int]:
    shares = []
    for stage in plan.pipelines[0].stages:
        slotted = stage.slots[0][-1] / (len(stage.layers) * NUM_MICROBATCHES) if stage.slots else 0.0
        shares.append(slotted if stage.mode is Mode.BUBBLE else 1.0)
    arrangement = arrangement_of(plan)
    return [memory_of(arrangement, costs, 0, s, shares).usual for s in range(len(shares))]


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    claims, figures = [], {}
    seen_off, said_off = measured(Mode.OFF)
    figures[Mode.OFF.value] = {"seen_mb": [x // MB for x in seen_off], "formula_mb": [x // MB for x in said_off]}
    for mode in MODES[1:]:
        seen, said = measured(mode)
        more_seen = fmean(a - b for a, b in zip(seen, seen_off, strict=True))
        more_said = fmean(a - b for a, b in zip(said, said_off, strict=True))
        figures[mode.value] = {"seen_mb": [x // MB for x in seen], "formula_mb": [x // MB for x in said]}
        print(f"{mode}: {more_seen / MB:.0f} MB more than off, formula {more_said / MB:.0f}", file=sys.stderr)
        claims.append(
            claim(f"{mode}: more than off, seen / formula, distance from 1", abs(more_seen / more_said - 1), LIMIT)
        )
    return finish("protection_memory", claims, figures=figures)


if __name__ == "__main__":
    sys.exit(main())
