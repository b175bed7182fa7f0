"""``python -m bamboo_trainer.replay``: steps of a run computed again, undisturbed, all layers in this one process.

Reads a ``ReplayOrder`` as JSON from standard input and prints one line of JSON for each ``Answer``. Exit codes: 0 done;
1 it cannot be done (standard error says why, in words for people); 3 the replay itself broke. Writes no file.

The bits are those of the run, since nothing that it computes depends on how layers are spread over workers but the
number of pipelines, and that is the plan's (docs/step.md). So one worker hosts each pipeline as a single stage.
"""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic import TypeAdapter

from bamboo_trainer import control
from bamboo_trainer.data import find_repeat
from bamboo_trainer.executor import Executor
from bamboo_trainer.frames import Frame
from bamboo_trainer.manifest import CheckpointError
from bamboo_trainer.plan import Fetch, Member, Mode, NodeId, Pipeline, Plan, PlanKind, StagePlan, WorkerId
from bamboo_trainer.recipe import Recipe, RecipeError, load_recipe
from bamboo_trainer.replay_order import Answer, LayersReplayed, ReplayBegun, ReplayOrder, Segment, StepReplayed

ALONE = WorkerId("replay/1")

Say = Callable[[Answer], None]


class ReplayError(Exception):
    """The steps cannot be computed again. Says why."""


def main() -> int:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a recipe prints must not get among the answers

    def say(answer: Answer) -> None:
        answers.write(control.encode(answer) + b"\n")
        answers.flush()

    try:
        order = TypeAdapter(ReplayOrder).validate_json(sys.stdin.buffer.read())
        replay(order, load_recipe(order.spec.recipe, order.spec.recipe_options), say)
    except (ReplayError, RecipeError, CheckpointError) as error:
        print(error, file=sys.stderr)
        return 1
    except Exception:  # noqa: BLE001 - whatever it is, it is a bug, and has to be told apart
        traceback.print_exc()
        return 3
    return 0


def replay(order: ReplayOrder, recipe: Recipe, say: Say) -> None:
    """Raises ReplayError, RecipeError, CheckpointError."""
    from bamboo_trainer.checkpoint import Snapshot, describe_layer
    from bamboo_trainer.torch_compute import TorchCompute

    class WithoutFiles(TorchCompute):
        def save(self, step: int, layers: Sequence[int]) -> None:
            """The run's own checkpoints stay as they are."""

    spec = replace(order.spec, kills=(), digest_every=0)
    compute = WithoutFiles(spec, recipe, lambda _: None)
    names = [layer.name for layer in recipe.layers]
    say(_begun(order, recipe, [" and ".join(names[layer] for layer in unit.layers) for unit in compute.units]))
    said: list[control.FromWorker] = []
    executor = Executor(ALONE, spec, compute, _send_to_nobody, said.append)
    for index, segment in enumerate(order.segments):
        executor.adopt(lone_plan(segment, len(names), generation=index + 1, begins=index == 0))
        for step in range(segment.first_step, segment.end_step):
            said.clear()
            _run_step(executor, step, said)
            say(StepReplayed(summary=_told(said).summary))
            if step in order.layers_after:
                snapshots = (Snapshot(layer=i, name=n, state=compute.export_layer(i)) for i, n in enumerate(names))
                say(LayersReplayed(step=step, layers=tuple(describe_layer(spec, step, s) for s in snapshots)))


def _begun(order: ReplayOrder, recipe: Recipe, unit_names: Sequence[str]) -> ReplayBegun:
    spec, num_samples = order.spec, len(recipe.dataset)
    repeated = find_repeat(
        seed=spec.seed,
        num_steps=order.num_committed,
        samples_per_step=spec.num_microbatches * spec.microbatch_size,
        num_samples=num_samples,
    )
    return ReplayBegun(unit_names=tuple(unit_names), num_samples=num_samples, repeated=repeated)


def _run_step(executor: Executor, step: int, said: Sequence[control.FromWorker]) -> None:
    while executor.committed_step < step:
        action = executor.next()
        if action is None:
            failed = next((m for m in said if isinstance(m, control.WorkerFailed)), None)
            raise ReplayError(
                f"the replay stops in step {step}: {failed.detail if failed else 'nothing is left to do'}"
            )
        executor.perform(action)


def _told(said: Sequence[control.FromWorker]) -> control.StepCommitted:
    return next(message for message in said if isinstance(message, control.StepCommitted))


def lone_plan(segment: Segment, num_layers: int, *, generation: int, begins: bool) -> Plan:
    """One worker that hosts everything. ``begins``: it has no layers yet."""
    pipelines = tuple(
        Pipeline(
            first_microbatch=first,
            end_microbatch=end,
            stages=(
                StagePlan(
                    pipeline_index=d, stage_index=0, first_layer=0, end_layer=num_layers, host=ALONE, mode=Mode.OFF
                ),
            ),
        )
        for d, (first, end) in enumerate(segment.microbatches)
    )
    return Plan(
        generation=generation,
        kind=PlanKind.BOUNDARY,
        first_step=segment.first_step,
        pipelines=pipelines,
        members=(Member(worker_id=ALONE, node_id=NodeId("replay"), address="", port=0),),
        fetches=tuple(Fetch(worker_id=ALONE, layer=layer, source=None) for layer in range(num_layers) if begins),
        checkpoint_step=segment.first_step - 1 if segment.first_step else None,
    )


def _send_to_nobody(peer: WorkerId, frame: Frame) -> None:
    raise AssertionError(f"a replay has no peers, yet {frame} was for {peer}")


if __name__ == "__main__":
    sys.exit(main())
