"""Trainings small enough to be done on any device, and what came out of them."""

import hashlib
import tempfile
from collections.abc import Callable

import torch
from bamboo_trainer.device import CPU, Device
from bamboo_trainer.manifest import make_manifest, write_manifest
from bamboo_trainer.models import mlp
from bamboo_trainer.plan import Mode
from bamboo_trainer.profile import measure_layers
from bamboo_trainer.recipe import Recipe
from bamboo_trainer.torch_compute import TorchCompute
from torch import Tensor

from tests.device.world import device_world
from tests.trainer.test_numbers import GPT2, TorchWorld, train
from tests.trainer.test_torch_compute import small_gpt2
from tests.trainer.torch_world import make_spec, make_stage

MakeDevice = Callable[[], Device]
TRAININGS = {
    "undisturbed": {"mode": Mode.OFF},
    "a failover after redundant forwards": {"mode": Mode.BUBBLE, "lose_at": 131},
    "help of the other pipeline": {"mode": Mode.LAZY, "lose_at": 90, "helped": True},
    "a shadow that runs everything": {"mode": Mode.FULL, "lose_at": 131},
}
"""Two pipelines of two stages, tied layers and dropout. All have the same weights in the end."""


def trained(make_device: MakeDevice, name: str, **more: bool) -> str:
    """Digest of the weights, of which all live holders have the same bits."""
    make_world = device_world(make_device) if make_device().apart else TorchWorld
    with tempfile.TemporaryDirectory() as folder:
        weights = train(folder, GPT2, 2, 2, make_world=make_world, **TRAININGS[name], **more)
    digest = hashlib.sha256()
    for key in sorted(weights):
        digest.update(key.encode() + weights[key].contiguous().numpy().tobytes())
    return digest.hexdigest()


def changed_hands(make_device: MakeDevice) -> list[str]:
    """Digests of layers that were saved and restored, fetched, and learned and followed; in this order."""
    recipe = small_gpt2()
    layer = 2
    with tempfile.TemporaryDirectory() as folder:
        spec = make_spec(checkpoint_url=f"file://{folder}")
        told: list = []
        device = make_device()
        source, target = (TorchCompute(spec, recipe, told.append, device=device) for _ in range(2))
        hold_all(source, recipe)
        learner = TorchCompute(spec, recipe, print, device=make_device())
        step_of(source, recipe, 0)
        source.save(0, source.held_layers())
        source.close()
        write_manifest(
            spec.checkpoint_url,
            make_manifest(run_id=spec.run_id, step=0, seed=spec.seed, layers=told, created_at="2026-01-01T00:00:00Z"),
        )
        target.restore(layer, 0)
        found = [source.digest(layer), target.digest(layer)]
        learner.learn(layer, source.export_layer(layer))
        reduced, norms = step_of(source, recipe, 1)
        learner.follow(layer, 1, {u: [device.to_device(chunk) for chunk in c] for u, c in reduced.items()}, norms)
        learner.hold_learned(layer)
        target.import_layer(layer, source.export_layer(layer))
        return [*found, source.digest(layer), learner.digest(layer), target.digest(layer)]


def late_bytes(device: Device) -> tuple[Tensor, Tensor]:
    """A gradient that was sent, and what of it came to the host when its bytes were taken two steps later."""
    recipe = mlp.recipe()
    compute = TorchCompute(make_spec(), recipe, print, device=device)
    hold_all(compute, recipe)
    reduced, _ = step_of(compute, recipe, 0)
    sent = reduced[0][0].cpu()
    copy = device.start_to_host(reduced[0][0])
    for step in (1, 2):
        step_of(compute, recipe, step)
    copy.wait()
    return sent, copy.value


def measured(make_device: MakeDevice) -> list[list[int]]:
    """Bytes of each layer as its profile has them."""
    costs = measure_layers(make_spec(), small_gpt2(), make_device())
    assert all(cost.forward_s > 0 and cost.backward_s > 0 and cost.update_s > 0 for cost in costs)
    return [[c.parameter_bytes, c.activation_bytes, c.kept_bytes or 0, c.optimizer_bytes or 0] for c in costs]


def hold_all(compute: TorchCompute, recipe: Recipe) -> None:
    for layer in range(len(recipe.layers)):
        compute.initialise(layer)


def step_of(compute: TorchCompute, recipe: Recipe, step: int) -> tuple[dict[int, list[Tensor]], list[float]]:
    """One whole step of a lone worker: reduced gradients and their square norms."""
    compute.begin_step(step)
    whole = make_stage(0, 0, len(recipe.layers))
    for microbatch in range(4):
        compute.forward(whole, microbatch, None)
        compute.backward(whole, microbatch, None)
    parts = {u.index: [compute.contribution(u, x, 0, 0, 1) for x in u.layers] for u in compute.units}
    reduced = {index: [compute.add(values)] for index, values in parts.items()}
    norms = [compute.square_norm(unit, reduced[unit.index]) for unit in compute.units]
    compute.apply(step, reduced, norms)
    return reduced, norms


def on_cpu() -> Device:
    torch.set_num_threads(1)
    return CPU
