"""Redundancy in host memory: what leaves the device, what stays, and that no bit changes on the way.

There is one memory here; ``copies=True`` makes every copy as if the device had another.
"""

import gc
from dataclasses import replace
from functools import partial

import pytest
import torch
from bamboo_trainer.control import TrainingSpec
from bamboo_trainer.host_memory import HostMemory, TensorAside
from bamboo_trainer.models import mlp
from bamboo_trainer.plan import RedundancyMemory
from bamboo_trainer.recipe import LayerFactory, Recipe
from bamboo_trainer.torch_compute import TorchCompute
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.test_torch_compute import Sum, Twice, small_gpt2
from tests.trainer.torch_world import make_spec, make_stage

CPU = torch.device("cpu")


class MarkedHost(HostMemory):
    """Knows which storages are in host memory."""

    def __init__(self) -> None:
        super().__init__(CPU, copies=True)
        self.copied: dict[int, StorageWeakRef] = {}

    def empty_like(self, tensor: Tensor) -> Tensor:
        made = super().empty_like(tensor)
        note(self.copied, made)
        return made

    def has(self, tensors: dict[str, Tensor]) -> dict[str, bool]:
        addresses = alive(self.copied)
        return {name: tensor.untyped_storage()._cdata in addresses for name, tensor in tensors.items()}


class Watch(TorchDispatchMode):
    """Every storage with bytes that torch makes in it."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(part, Tensor) and part.device == CPU and part.untyped_storage().nbytes() > 0:
                note(self.made, part)
        return out


def note(seen: dict[int, StorageWeakRef], tensor: Tensor) -> None:
    storage = tensor.untyped_storage()
    seen[storage._cdata] = StorageWeakRef(storage)


def alive(seen: dict[int, StorageWeakRef]) -> set[int]:
    """Addresses of storages: none is given out twice while a weak reference to it lives."""
    gc.collect()
    return {address for address, reference in seen.items() if not reference.expired()}


@pytest.fixture(scope="module", autouse=True)
def little_to_look_through() -> None:
    """Garbage is looked for again and again here: not in all that other tests have left."""
    gc.collect()
    gc.freeze()


def host_spec() -> TrainingSpec:
    return make_spec(redundancy_memory=RedundancyMemory.HOST)


def shadow(recipe: Recipe, host: HostMemory | None = None) -> TorchCompute:
    """Holds all layers."""
    compute = TorchCompute(host_spec() if host else make_spec(), recipe, print, host)
    for layer in range(len(recipe.layers)):
        compute.initialise(layer)
    compute.begin_step(0)
    return compute


def run_ahead(compute: TorchCompute, stage, microbatch: int, inputs: Tensor | None) -> None:
    while not compute.redundant_forward(stage, microbatch, inputs):
        pass


# --- what leaves the device, and what stays ---------------------------------------------------------------------


def on_device_after_frc(host: MarkedHost | None) -> int:
    """Storages that the FRC of two microbatches of a middle stage leaves there, parameters and its input aside."""
    compute = shadow(small_gpt2(), host)
    first, middle = make_stage(0, 0, 2), make_stage(1, 2, 5)
    inputs = [compute.forward(first, microbatch, None) for microbatch in range(2)]
    with Watch() as watch:
        for microbatch in range(2):
            run_ahead(compute, middle, microbatch, inputs[microbatch])
    assert compute.redundant_forwards_done(middle) == 2
    kept = [t for held in compute._layers.values() for t in (*held.module.parameters(), *held.module.buffers())]
    stay = {tensor.untyped_storage()._cdata for tensor in (*kept, *inputs)}
    return len(alive(watch.made) - stay - (alive(host.copied) if host else set()))


def test_what_frc_makes_is_gone_from_the_device() -> None:
    assert on_device_after_frc(None) > 2 * 3 * 5, "several of each layer"
    assert on_device_after_frc(MarkedHost()) == 0


def test_host_memory_holds_each_storage_that_autograd_saves_once_and_no_parameter() -> None:
    # given what autograd saves, layer by layer, in an ordinary forward
    recipe = small_gpt2()
    plain = shadow(recipe)
    stage = make_stage(1, 2, 5)
    inputs = plain.forward(make_stage(0, 0, 2), 0, None)
    expected, value = 0, inputs
    for layer in stage.layers:
        module = plain._layers[layer].module
        alone = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers(), inputs)}
        seen: dict[int, torch.UntypedStorage] = {}

        def note(tensor: Tensor, seen=seen) -> Tensor:
            seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            output = module(value.detach().requires_grad_())
        assert alone & set(seen), "its own parameters are saved too"
        expected += sum(storage.nbytes() for address, storage in seen.items() if address not in alone)
        value = output.detach()

    # when the same is done ahead
    host = HostMemory(CPU, copies=True)
    compute = shadow(recipe, host)
    run_ahead(compute, stage, 0, inputs)
    # then
    assert host.saved_bytes == expected > 0
    run_ahead(compute, stage, 1, inputs)
    assert host.saved_bytes == 2 * expected
    compute.begin_step(1)
    gc.collect()
    assert host.saved_bytes == 0, "a committed step leaves nothing"


def test_what_is_left_alone_is_saved_as_it_is() -> None:
    host = HostMemory(CPU, copies=True)
    linear, x = nn.Linear(3, 3), torch.ones(2, 3)
    output, _ = host.forward(linear, x, needs_input_gradient=False, left_alone=[*linear.parameters(), x])
    assert host.saved_bytes == 0 and output.grad_fn is not None
    output, _ = host.forward(linear, x, needs_input_gradient=False, left_alone=linear.parameters())
    assert host.saved_bytes == x.nbytes


def test_without_another_memory_nothing_is_copied() -> None:
    host = HostMemory(CPU)
    compute = shadow(small_gpt2(), host)
    inputs = compute.forward(make_stage(0, 0, 2), 0, None)
    run_ahead(compute, make_stage(1, 2, 5), 0, inputs)
    before = compute._layers[3].state()
    compute.keep_near(hosted=[], read=[])
    assert host.saved_bytes == 0
    after = compute._layers[3].state()
    assert all(after[name].data_ptr() == value.data_ptr() for name, value in before.items())


def test_views_of_one_storage_share_a_copy_and_come_back_with_their_strides() -> None:
    host = HostMemory(CPU, copies=True)
    kept: list[TensorAside] = []

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            wide = x * 2
            ctx.save_for_backward(wide[:, ::2], wide.t())
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            kept.extend(ctx.saved_tensors)
            return gradient

    x = torch.arange(12.0).reshape(3, 4)
    output, aside = host.forward(Keep.apply, x, needs_input_gradient=True, left_alone=[])
    assert host.saved_bytes == x.nbytes
    aside.backward(torch.ones_like(output))

    even, turned = kept
    assert torch.equal(even, 2 * x[:, ::2]) and even.stride() == (4, 2)
    assert torch.equal(turned, 2 * x.t()) and turned.stride() == (1, 4)
    assert even.untyped_storage().data_ptr() == turned.untyped_storage().data_ptr()


def test_what_is_changed_after_it_was_saved_is_kept_as_it_was() -> None:
    host = HostMemory(CPU, copies=True)

    def layer(x: Tensor) -> Tensor:
        scratch = torch.full_like(x, 2.0)
        first = x * scratch
        scratch += 1.0  # the same storage, another version
        return first * scratch

    x = torch.ones(3)
    output, aside = host.forward(layer, x, needs_input_gradient=True, left_alone=[])
    assert torch.equal(aside.backward(torch.ones_like(output)), torch.full((3,), 6.0))


# --- bits -------------------------------------------------------------------------------------------------------


def gradients_of(recipe: Recipe, host: HostMemory | None, num_ahead: int) -> list[Tensor]:
    """Of three microbatches through the last layers; ``num_ahead``: layers of each that were done ahead."""
    compute = shadow(recipe, host)
    num_layers = len(recipe.layers)
    first, last = make_stage(0, 0, 1), make_stage(1, 1, num_layers)
    found = []
    inputs = [compute.forward(first, microbatch, None) for microbatch in range(3)]
    for microbatch in range(3):
        for _ in range(num_ahead):
            compute.redundant_forward(last, microbatch, inputs[microbatch])
    for microbatch in range(3):
        compute.forward(last, microbatch, inputs[microbatch])
        gradient = compute.backward(last, microbatch, None)
        found += [*gradient] if isinstance(gradient, tuple) else [gradient]
    found += [compute.contribution(u, x, 0, 0, 1).clone() for u in compute.units for x in u.layers if x > 0]
    return found


def tuples() -> Recipe:
    """Layers that hand two tensors on, and one without parameters."""
    layers = (
        LayerFactory("a", partial(nn.Linear, 16, 8)),
        LayerFactory("twice", Twice),
        LayerFactory("sum", Sum),
        LayerFactory("b", partial(nn.Linear, 8, 8)),
    )
    return replace(mlp.recipe(), layers=layers)


@pytest.mark.parametrize("recipe", [small_gpt2(), mlp.recipe(), tuples()], ids=["gpt2", "mlp", "tuples"])
@pytest.mark.parametrize("num_ahead", [1, 2, 3])
def test_a_takeover_from_host_memory_has_the_same_bits(recipe: Recipe, num_ahead: int) -> None:
    """Of the last stage, whose layers were done ahead in part (GPT-2, the MLP) or whole (all three of the tuples)."""
    host = MarkedHost()
    near = gradients_of(recipe, None, num_ahead)
    aside = gradients_of(recipe, host, num_ahead)
    assert host.copied and len(near) == len(aside)
    for one, other in zip(near, aside, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


def test_a_shadow_whose_state_is_aside_is_updated_bit_for_bit_and_comes_back_whole() -> None:
    recipe = small_gpt2()
    near, aside = shadow(recipe), shadow(recipe, HostMemory(CPU, copies=True))
    gradients = {
        u.index: [torch.randn(near.contribution(u, u.layers[0], 0, 0, 1).shape, generator=torch.manual_seed(u.index))]
        for u in near.units
    }
    aside.keep_near(hosted=[0, 1], read=[2, 3])
    for step in range(3):
        near.apply(step, gradients, [1.0])
        aside.apply(step, gradients, [1.0])
        assert [near.digest(x) for x in near.held_layers()] == [aside.digest(x) for x in aside.held_layers()]
    aside.keep_near(hosted=near.held_layers(), read=[])
    near.apply(3, gradients, [1.0])
    aside.apply(3, gradients, [1.0])
    assert [near.digest(x) for x in near.held_layers()] == [aside.digest(x) for x in aside.held_layers()]


@pytest.mark.timeout(400)
def test_only_what_nothing_is_computed_with_is_aside() -> None:
    host = MarkedHost()
    compute = shadow(mlp.recipe(depth=4), host)
    gradients = {u.index: [torch.ones_like(compute.contribution(u, u.layers[0], 0, 0, 1))] for u in compute.units}
    compute.keep_near(hosted=[0], read=[1])
    compute.apply(0, gradients, [1.0])
    found = {}
    for layer in range(3):
        tensors = {n: v for n, v in compute._layers[layer].state().items() if isinstance(v, Tensor) and v.dim() > 0}
        is_aside = host.has(tensors)
        where = {n.split("/")[0]: aside for n, aside in is_aside.items()}
        assert all(where[n.split("/")[0]] == aside for n, aside in is_aside.items())
        found[layer] = where
    assert found == {
        0: {"parameter": False, "optimizer": False},
        1: {"parameter": False, "optimizer": True},
        2: {"parameter": True, "optimizer": True},
    }
