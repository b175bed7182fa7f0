"""Claim: however many pipelines there are, and however often their number changes in mid-run, the loss curve stays.

Real workers train a small GPT on text with 1, 2 and 3 pipelines, and with a number that changes six times (layers
travel between workers, as at any reconfiguration). Sums are then added in another order, so bits differ from the first
step on; losses must not, beyond the tolerance of docs/step.md. For scale: the same run from another seed.

    python -m benchmarks.loss_curves [--steps 300]
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from bamboo_trainer import control
from bamboo_trainer.placement import Candidate
from bamboo_trainer.plan import Mode, Plan, WorkerId
from bamboo_trainer.reconfigure import plan_boundary
from bamboo_trainer.wanted import Wanted

from benchmarks.fleet import Fleet, claim, finish, fleet, spec_of

CASE = {"recipe": "gpt2", "recipe_options": {"size": "tiny", "context": 32}, "microbatch_size": 4}
NUM_STAGES = 2
NUM_MICROBATCHES = 6
CHANGES = (3, 1, 2, 3, 2, 1, 3)
"""Pipelines, one after the other."""
TOLERANCE = 0.03
"""Of the loss at each of 300 steps, relative: docs/step.md."""
MEAN_TOLERANCE = 0.01
"""The same, of the mean loss of the last 50 steps."""
LAST = 50


def plan(
    workers: Fleet,
    spec: control.TrainingSpec,
    costs: Sequence[control.LayerCost],
    generation: int,
    first_step: int,
    num_pipelines: int,
    held: dict[WorkerId, frozenset[int]],
) -> Plan:
    """From live layers, but for the first."""
    members = [p.member for p in workers.processes.values() if p.member is not None]
    made = plan_boundary(
        generation=generation,
        first_step=first_step,
        candidates=[
            Candidate(
                worker_id=member.worker_id,
                node_id=member.node_id,
                zone="",
                address=member.address,
                port=member.port,
                layers=held.get(member.worker_id, frozenset()),
            )
            for member in members
        ],
        wanted=Wanted(
            num_pipelines=num_pipelines,
            num_stages=NUM_STAGES,
            mode=Mode.OFF,
            num_microbatches=spec.num_microbatches,
            costs=tuple(costs),
        ),
    )
    assert made.num_pipelines == num_pipelines
    assert first_step == 0 or all(fetch.source for fetch in made.fetches)
    return made


def curve(
    workers: Fleet, spec: control.TrainingSpec, pipelines: Sequence[int], generations: Iterator[int]
) -> list[float]:
    """The loss of each step, from the seed; the run is divided about evenly among the numbers of ``pipelines``."""
    costs = workers.prepare_again(spec)
    held: dict[WorkerId, frozenset[int]] = {}
    losses: list[float] = []
    for index, num_pipelines in enumerate(pipelines, start=1):
        generation = next(generations)
        now = plan(workers, spec, costs, generation, len(losses), num_pipelines, held)
        workers.adopt(now)
        enough, held = spec.num_steps * index // len(pipelines), {}
        for _, who, message in workers.hear():
            match message:
                case control.StepCommitted(generation=g, summary=summary) if g == generation:
                    if summary.step == len(losses):
                        losses.append(summary.loss)
                    if len(losses) >= enough:
                        for worker_id in now.worker_ids():
                            workers.tell(worker_id, control.Quiesce(generation=generation))
                case control.Stopped(generation=g, layers=layers) if g == generation:
                    held[who] = frozenset(layers)
            if len(held) == len(now.worker_ids()):
                break
    return losses


def furthest(curve: Sequence[float], reference: Sequence[float]) -> float:
    """The largest distance of two losses of the same step, relative."""
    return max(abs(a - b) / b for a, b in zip(curve, reference, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    generations = itertools.count(1)
    with tempfile.TemporaryDirectory() as folder, fleet(3 * NUM_STAGES) as workers:
        spec = spec_of(CASE, NUM_MICROBATCHES, steps, folder)
        workers.prepare(spec)
        fixed = {d: curve(workers, spec, [d], generations) for d in (1, 2, 3)}
        changing = curve(workers, spec, CHANGES, generations)
        other_seed = curve(workers, replace(spec, seed=1), [1], generations)
    curves = {"2 pipelines": fixed[2], "3 pipelines": fixed[3], "the number changed six times": changing}
    claims, figures = [], {}
    for name, found in {**curves, "another seed": other_seed}.items():
        distance = abs(fmean(found[-LAST:]) / fmean(fixed[1][-LAST:]) - 1)
        figures[name] = {
            "last_losses_mean": fmean(found[-LAST:]),
            "furthest_by_50_steps": [furthest(found[i : i + 50], fixed[1][i : i + 50]) for i in range(0, steps, 50)],
        }
        if name in curves:
            claims.append(claim(f"{name}: furthest loss from that of 1 pipeline", furthest(found, fixed[1]), TOLERANCE))
            claims.append(claim(f"{name}: mean of the last {LAST}", distance, MEAN_TOLERANCE))
    return finish("loss_curves", claims, steps=steps, figures=figures)


if __name__ == "__main__":
    sys.exit(main())
