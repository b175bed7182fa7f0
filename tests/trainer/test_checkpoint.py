import errno
import os
import subprocess
import threading
from dataclasses import replace
from functools import partial

import pytest
import safetensors.torch
import torch
from bamboo_trainer import storage
from bamboo_trainer.control import CheckpointFailed, LayerSaved
from bamboo_trainer.manifest import (
    CheckpointError,
    complete_steps,
    layer_url,
    make_manifest,
    read_manifest,
    weights_digest,
    write_manifest,
)
from bamboo_trainer.model_file import write_model
from bamboo_trainer.models import gpt2, mlp
from bamboo_trainer.torch_compute import TorchCompute

from tests.trainer.torch_world import HandRunWorld, make_spec


def make_recipe():
    return gpt2.recipe(context=16)


def save(world, step):
    """Returns what the workers reported, after all of it was written."""
    for stage, compute in zip(world.stages[0], world.computes[0], strict=True):
        compute.save(step, stage.layers)
        compute.close()


def complete(spec, step, saved):
    manifest = make_manifest(
        run_id=spec.run_id, step=step, seed=spec.seed, layers=saved, created_at="2026-01-01T00:00:00Z"
    )
    write_manifest(spec.checkpoint_url, manifest)
    return manifest


def trained_and_saved(url, cut, num_steps=2):
    spec, said = make_spec(checkpoint_url=url), []
    world = HandRunWorld(spec, make_recipe(), cut, report=said.append)
    world.run(0, num_steps)
    save(world, num_steps - 1)
    return world, complete(spec, num_steps - 1, said)


@pytest.fixture
def url(tmp_path):
    return (tmp_path / "checkpoints").as_uri()


def restored(spec, recipe, cut, step):
    world = HandRunWorld(spec, recipe, cut)
    for stage, compute in zip(world.stages[0], world.computes[0], strict=True):
        for layer in stage.layers:
            compute.restore(layer, step)
    return world


def test_a_checkpoint_is_loaded_bit_for_bit_under_another_cut_and_training_goes_on_alike(url):
    world, _ = trained_and_saved(url, [0, 4])
    other = restored(world.spec, make_recipe(), [0, 1, 6], 1)
    assert other.digests() == world.digests()
    assert other.run(2, 4) == world.run(2, 4)
    assert other.digests() == world.digests()


def test_files_and_digests_do_not_depend_on_the_cut(tmp_path):
    _, one = trained_and_saved(str(tmp_path / "one"), [0])
    _, three = trained_and_saved(str(tmp_path / "three"), [0, 2, 5])
    assert one == three


def test_an_export_of_the_saved_state_is_what_the_file_holds(url):
    world, manifest = trained_and_saved(url, [0])
    with open(layer_url(url, 1, 1).removeprefix("file://"), "rb") as file:
        tensors = safetensors.torch.load(file.read())
    state = world.computes[0][0].export_layer(1)
    assert {name for name, value in state.items() if isinstance(value, torch.Tensor)} == set(tensors)
    assert all(torch.equal(tensors[name], state[name]) for name in tensors)
    assert manifest.weights_sha256 == weights_digest(saved.parameters_sha256 for saved in manifest.layers)


def test_saving_copies_at_once(url):
    """The writer is held up until training has gone on; the file still has the state of its step."""
    spec, said, gate = make_spec(checkpoint_url=url), [], threading.Event()

    def report(message):
        gate.wait(10)
        said.append(message)

    world = HandRunWorld(spec, make_recipe(), [0], report=report)
    world.run(0, 1)
    digests, compute = world.digests(), world.computes[0][0]
    compute.save(0, range(8))
    world.run(1, 2)
    gate.set()
    compute.close()
    complete(spec, 0, said)

    assert restored(spec, make_recipe(), [0], 0).digests() == digests


def test_a_truncated_layer_file_is_refused(url):
    world, _ = trained_and_saved(url, [0])
    place = layer_url(url, 1, 3)
    compute = restored(world.spec, make_recipe(), [0], 1).computes[0][0]
    storage.write_durably(place, [storage.read(place)[:-1]])
    with pytest.raises(CheckpointError, match=r"layer-0003\.safetensors is truncated"):
        compute.restore(3, 1)


def test_one_wrong_bit_is_refused(url):
    world, _ = trained_and_saved(url, [0])
    place = layer_url(url, 1, 3)
    data = storage.read(place)
    data[-1] ^= 1
    storage.write_durably(place, [data])
    with pytest.raises(CheckpointError, match=r"layer-0003\.safetensors is corrupt"):
        restored(world.spec, make_recipe(), [0], 1)


def test_a_checkpoint_of_another_model_is_refused(url):
    world, _ = trained_and_saved(url, [0])
    compute = TorchCompute(world.spec, mlp.recipe(depth=8), print)
    with pytest.raises(CheckpointError, match=r"is of another model: layer block\.0 has other tensors"):
        compute.restore(1, 1)


def test_a_checkpoint_that_is_not_there_is_refused(url):
    compute = TorchCompute(make_spec(checkpoint_url=url), make_recipe(), print)
    with pytest.raises(CheckpointError, match=r"checkpoint of step 5 .* is missing or incomplete"):
        compute.restore(0, 5)


def test_a_full_disk_is_reported_and_neither_training_nor_the_older_checkpoint_suffers(url, monkeypatch):
    world, older = trained_and_saved(url, [0])
    said = []
    full = HandRunWorld(world.spec, make_recipe(), [0], report=said.append)
    full.run(0, 3)

    def no_space(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", no_space)
    save(full, 2)
    monkeypatch.undo()

    assert [type(message) for message in said] == [CheckpointFailed]
    assert said[0].checkpoint_step == 2
    assert said[0].detail.endswith("No space left on device")
    assert complete_steps(url) == (1,)
    assert read_manifest(url, 1) == older
    full.run(3, 4)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounts a small tmpfs, which needs root")
def test_a_disk_that_is_really_full_keeps_the_older_checkpoint(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        world, older = trained_and_saved(str(place), [0])  # 14 MB
        said = []
        second = HandRunWorld(world.spec, make_recipe(), [0], report=said.append)
        second.run(0, 3)
        save(second, 2)
        assert isinstance(said[-1], CheckpointFailed)
        assert all(isinstance(message, LayerSaved) for message in said[:-1])
        assert len(said) < 8
        assert not [p for p in place.rglob("*") if p.name.endswith(".tmp")]
        assert restored(world.spec, make_recipe(), [0], 1).digests() == world.digests()
        assert complete_steps(str(place)) == (older.step,)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_an_error_of_an_object_store_is_reported_too(monkeypatch):
    class StoreError(Exception):
        pass

    def refuse(url, pieces):
        raise StoreError("access denied")

    monkeypatch.setattr(storage, "write_durably", refuse)
    said = []
    world = HandRunWorld(make_spec(), mlp.recipe(), [0], report=said.append)
    save(world, 0)
    assert "access denied" in said[0].detail


def test_the_model_file_has_every_parameter_once_under_its_layers_name(url, tmp_path):
    world, manifest = trained_and_saved(url, [0, 4])
    target = tmp_path / "model.safetensors"

    num_parameters, digest = write_model(url, 1, str(target), make_recipe())

    tensors = safetensors.torch.load_file(target)
    assert digest == manifest.weights_sha256
    assert num_parameters == sum(tensor.numel() for tensor in tensors.values())
    assert "embedding.tokens.weight" in tensors
    assert "head.tokens.weight" not in tensors, "tied to the embedding"
    held = world.compute_of(0, 3).export_layer(3)
    assert torch.equal(tensors["block.2.qkv.weight"], held["parameter/qkv.weight"])


def test_the_model_of_another_recipe_is_refused_and_no_file_appears(url, tmp_path):
    trained_and_saved(url, [0])
    target = tmp_path / "model.safetensors"
    with pytest.raises(CheckpointError, match="has other layers than the recipe"):
        write_model(url, 1, str(target), mlp.recipe())
    with pytest.raises(CheckpointError, match=r"block\.0 has no .* of shape"):
        write_model(url, 1, str(target), _narrower())
    assert not target.exists()


def _narrower():
    recipe = make_recipe()
    layers = list(recipe.layers)
    layers[1] = layers[1]._replace(build=partial(gpt2.Block, 64, 4, 0.1, 6))
    return replace(recipe, layers=tuple(layers))
