"""A replay gives the bits of the run, whatever the run was like: pipelines, cut, checkpoint or seed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bamboo_trainer import control
from bamboo_trainer.data import find_repeat
from bamboo_trainer.manifest import CheckpointError, layer_url, make_manifest, write_manifest
from bamboo_trainer.models import gpt2, mlp
from bamboo_trainer.plan import split_microbatches
from bamboo_trainer.replay import ReplayError, replay
from bamboo_trainer.replay_order import (
    LayersReplayed,
    ReplayBegun,
    ReplayOrder,
    Segment,
    StepReplayed,
    decode_answer,
)

from tests.trainer.torch_world import HandRunWorld, make_spec

NUM_STEPS = 5


def segment(first_step, end_step, num_pipelines):
    microbatches = tuple((r.start, r.stop) for r in split_microbatches(4, num_pipelines))
    return Segment(first_step=first_step, end_step=end_step, microbatches=microbatches)


def replayed(spec, recipe, *segments, layers_after=(), num_committed=NUM_STEPS):
    said = []
    order = ReplayOrder(spec=spec, segments=segments, layers_after=layers_after, num_committed=num_committed)
    replay(order, recipe, said.append)
    begun, *answers = said
    assert isinstance(begun, ReplayBegun)
    summaries = [answer.summary for answer in answers if isinstance(answer, StepReplayed)]
    layers = {answer.step: answer.layers for answer in answers if isinstance(answer, LayersReplayed)}
    return begun, summaries, layers


class Recorded(HandRunWorld):
    """Keeps each step's reduced square norms and losses."""

    def run_and_record(self, first_step, end_step):
        self.recorded = []
        for step in range(first_step, end_step):
            self.losses = []
            self.run_step(step)
            self.recorded.append((step, tuple(self.losses), tuple(self.norms)))
        return self.recorded

    def forward_and_backward(self, d, microbatch):
        self.losses.append(super().forward_and_backward(d, microbatch))
        return self.losses[-1]

    def reduce(self):
        reduced, self.norms = super().reduce()
        return reduced, self.norms


def as_recorded(summaries):
    return [(s.step, s.losses, s.square_norms) for s in summaries]


def saved_checkpoint(world, spec, step, said):
    for stage, compute in zip(world.stages[0], world.computes[0], strict=True):
        compute.save(step, stage.layers)
        compute.close()
    manifest = make_manifest(run_id=spec.run_id, step=step, seed=spec.seed, layers=said, created_at="now")
    write_manifest(spec.checkpoint_url, manifest)
    return manifest


@pytest.mark.parametrize("num_pipelines", [1, 2, 3])
@pytest.mark.parametrize("recipe", [mlp.recipe(), gpt2.recipe(context=16)], ids=["mlp", "gpt2"])
def test_a_replay_from_the_seed_has_the_bits_of_the_run(recipe, num_pipelines):
    spec = make_spec()
    run = Recorded(spec, recipe, [0, 2, 4], num_pipelines).run_and_record(0, NUM_STEPS)

    _, summaries, _ = replayed(spec, recipe, segment(0, NUM_STEPS, num_pipelines))

    assert as_recorded(summaries) == run


def test_a_replay_goes_through_a_change_of_the_number_of_pipelines():
    spec, recipe = make_spec(), mlp.recipe()
    two = Recorded(spec, recipe, [0, 3], 2)
    before = two.run_and_record(0, 3)
    one = Recorded(spec, recipe, [0, 3], 1)
    for new, old in zip(one.computes[0], two.computes[0], strict=True):
        for layer in old.held_layers():
            new.import_layer(layer, old.export_layer(layer))
    after = one.run_and_record(3, NUM_STEPS)

    _, summaries, _ = replayed(spec, recipe, segment(0, 3, 2), segment(3, NUM_STEPS, 1))

    assert as_recorded(summaries) == before + after


def test_a_replay_from_a_checkpoint_goes_on_with_its_bits_and_describes_layers_as_the_writer_did(tmp_path):
    said = []
    spec, recipe = make_spec(checkpoint_url=tmp_path.as_uri()), gpt2.recipe(context=16)
    world = Recorded(spec, recipe, [0, 4], report=said.append)
    world.run_and_record(0, 2)
    manifest = saved_checkpoint(world, spec, 1, said)
    run = world.run_and_record(2, NUM_STEPS)

    begun, summaries, _ = replayed(spec, recipe, segment(2, NUM_STEPS, 1))
    _, _, layers = replayed(spec, recipe, segment(0, 2, 1), layers_after=(1,))

    assert as_recorded(summaries) == run
    assert layers == {1: manifest.layers}
    assert "embedding and head" in begun.unit_names


def test_a_replay_leaves_the_checkpoints_as_they_are(tmp_path):
    spec = make_spec(checkpoint_url=tmp_path.as_uri(), num_steps=NUM_STEPS, checkpoint_every=1)

    replayed(spec, mlp.recipe(), segment(0, NUM_STEPS, 1))

    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_with_one_wrong_bit_is_refused_by_name(tmp_path):
    said = []
    spec, recipe = make_spec(checkpoint_url=tmp_path.as_uri()), mlp.recipe()
    world = Recorded(spec, recipe, [0], report=said.append)
    world.run_and_record(0, 2)
    saved_checkpoint(world, spec, 1, said)
    file = Path(layer_url(spec.checkpoint_url, 1, 3).removeprefix("file://"))
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")

    with pytest.raises(CheckpointError, match=r"layer-0003\.safetensors is corrupt"):
        replayed(spec, recipe, segment(2, 3, 1))


def test_a_loss_that_is_no_number_ends_the_replay_with_its_step():
    recipe = mlp.recipe(learning_rate=float("inf"))

    with pytest.raises(ReplayError, match="the replay stops in step 1: step 1: loss nan"):
        replayed(make_spec(), recipe, segment(0, NUM_STEPS, 1))


def test_a_sample_that_is_drawn_twice_in_an_epoch_is_found(monkeypatch):
    drawing = {"seed": 3, "num_steps": 50, "samples_per_step": 4, "num_samples": 60}
    assert find_repeat(**drawing) is None

    monkeypatch.setattr("bamboo_trainer.data.permuted", lambda positions, n, key: positions // 2)

    assert find_repeat(**drawing) == (0, 0)


def test_the_process_answers_line_by_line_and_a_recipe_may_print(tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "from bamboo_trainer.models import mlp\n\ndef recipe():\n    print('hello')\n    return mlp.recipe()\n"
    )
    order = ReplayOrder(spec=make_spec(recipe=str(recipe)), segments=(segment(0, 2, 2),), layers_after=(1,))

    done = run_replay(control.encode(order))

    kinds = [decode_answer(line).kind for line in done.stdout.splitlines()]
    assert (done.returncode, kinds) == (0, ["begun", "step", "step", "layers"])
    assert b"hello" in done.stderr


def test_the_process_says_what_is_wrong_with_a_recipe():
    order = ReplayOrder(spec=make_spec(recipe="nowhere.py"), segments=(segment(0, 2, 2),))

    done = run_replay(control.encode(order))

    assert (done.returncode, done.stdout) == (1, b"")
    assert b"no recipe file nowhere.py" in done.stderr
    assert run_replay(json.dumps({}).encode()).returncode == 3


def run_replay(order):
    return subprocess.run([sys.executable, "-m", "bamboo_trainer.replay"], input=order, capture_output=True, timeout=60)
