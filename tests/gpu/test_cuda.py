"""On a real GPU: owner and shadow compute equal bits there; streams, events and page-locked memory do what
docs/device.md says. Left out where torch finds none."""

from collections.abc import Iterator
from dataclasses import replace
from queue import SimpleQueue

import pytest
import torch
from bamboo_trainer.control import DeviceWish
from bamboo_trainer.cuda import CudaDevice
from bamboo_trainer.device import find_device
from bamboo_trainer.frames import Datum, Frame
from bamboo_trainer.models import mlp
from bamboo_trainer.outbox import Outbox
from bamboo_trainer.plan import WorkerId
from bamboo_trainer.recipe import LayerFactory, RecipeError
from bamboo_trainer.schedule import Key
from bamboo_trainer.torch_compute import TorchCompute
from torch import Tensor, nn

from tests.cluster import Bamboo
from tests.device import cases
from tests.trainer.torch_world import make_spec, make_stage

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    pytest.mark.timeout(300),
]
MANY = 1 << 26
"""Elements whose kernels and copies take long enough for a race to show."""


@pytest.fixture(scope="module")
def undisturbed() -> str:
    return cases.trained(CudaDevice, "undisturbed")


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    yield CudaDevice()
    torch.cuda.empty_cache()


def test_auto_finds_it() -> None:
    assert find_device(DeviceWish.AUTO).name == torch.cuda.get_device_name(0)


@pytest.mark.parametrize("aside", [False, True], ids=["device", "host"])
@pytest.mark.parametrize("name", cases.TRAININGS)
def test_no_loss_changes_a_bit(name: str, aside: bool, undisturbed: str) -> None:
    assert cases.trained(CudaDevice, name, aside=aside) == undisturbed


def test_a_layer_changes_hands_by_checkpoint_by_fetch_and_by_lesson() -> None:
    saved, restored, source, learned, fetched = cases.changed_hands(CudaDevice)
    assert (restored, learned, fetched) == (saved, source, source)


def test_layers_are_measured_with_the_bytes_that_they_keep() -> None:
    def without_kept(costs: list[list[int]]) -> list[list[int]]:  # other kernels save other tensors
        return [[parameters, activation, optimizer] for parameters, activation, _, optimizer in costs]

    found = cases.measured(CudaDevice)
    assert without_kept(found) == without_kept(cases.measured(cases.on_cpu))
    assert all(kept > 0 for _, _, kept, _ in found)


def test_what_was_sent_stays_as_it_was_however_late_its_bytes_are_taken(device: CudaDevice) -> None:
    sent, received = cases.late_bytes(device)
    assert torch.equal(sent, received) and received.is_pinned()


def test_a_copy_waits_for_what_makes_its_value_and_what_follows_waits_for_the_copy(device: CudaDevice) -> None:
    flat = torch.zeros(MANY, device=device.torch_device)
    for value in range(1, 5):
        flat.fill_(float(value))
        copy = device.start_to_host(flat)
        device.wait_for_copies()
        flat.fill_(-1.0)
        copy.wait()
        assert bool((copy.value == value).all())


def test_memory_of_a_value_that_is_dropped_is_not_given_to_others_before_it_is_copied(device: CudaDevice) -> None:
    for value in range(1, 9):
        copy = device.start_to_host(torch.full((MANY,), float(value), device=device.torch_device))
        torch.full((MANY,), -1.0, device=device.torch_device)
        copy.wait()
        assert bool((copy.value == value).all())


def test_the_outbox_hands_on_bytes_that_are_there(device: CudaDevice) -> None:
    sent: SimpleQueue[Frame] = SimpleQueue()
    outbox = Outbox(device, lambda peer, frame: sent.put(frame), print)
    for step in range(8):
        value = torch.full((MANY // 8,), float(step), device=device.torch_device)
        outbox.send(WorkerId("n1/1"), Datum(generation=1, step=step, key=Key("F", 0, 1, 0), value=value))
    outbox.close()
    for step in range(8):
        frame = sent.get_nowait()
        assert isinstance(frame, Datum) and not frame.value.is_cuda and bool((frame.value == step).all())


def test_an_action_is_over_when_the_device_has_done_it(device: CudaDevice) -> None:
    layers = (*mlp.recipe().layers[:1], LayerFactory("long", Long), *mlp.recipe().layers[-1:])
    recipe = replace(mlp.recipe(), layers=layers)
    compute = TorchCompute(make_spec(), recipe, print, device=device)
    cases.hold_all(compute, recipe)
    whole = make_stage(0, 0, 3)
    for act in (lambda: compute.forward(whole, 0, None), lambda: compute.backward(whole, 0, None)):
        act()
        assert torch.cuda.current_stream().query(), "nothing is left to do"


class Long(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        big = torch.ones(4096, 4096, device=x.device)
        for _ in range(8):
            big = big @ big * 1e-4
        return x + 0.0 * big[0, 0]


class Undetermined(nn.Module):
    """Its backward adds in whatever order threads come."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.interpolate(x[None, None], scale_factor=2, mode="bicubic")[0, 0, ::2, ::2]


def test_an_operation_without_a_deterministic_algorithm_is_refused_with_the_layer(device: CudaDevice) -> None:
    layers = (*mlp.recipe().layers[:1], LayerFactory("loose", Undetermined), *mlp.recipe().layers[-1:])
    recipe = replace(mlp.recipe(), layers=layers)
    compute = TorchCompute(make_spec(), recipe, print, device=device)
    cases.hold_all(compute, recipe)
    whole = make_stage(0, 0, 3)
    with pytest.raises(RecipeError, match=r"layer loose.*deterministic"):
        compute.forward(whole, 0, None)
        compute.backward(whole, 0, None)


def test_full_memory_is_explained_in_figures(device: CudaDevice) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device=device.torch_device)
    assert "GB are free" in device.explain_full()


@pytest.mark.parametrize("memory", ["device", "host"])
def test_a_run_with_a_kill_has_the_bits_of_an_undisturbed_one(bamboo: Bamboo, memory: str) -> None:
    job = {
        "recipe": "gpt2",
        "recipe_options": {"size": "tiny", "context": 32},
        "steps": 10,
        "stages": 2,
        "pipelines": 2,
        "checkpoint": {"every": 3},
        "digest_every": 2,
        "device": "cuda",
        "redundancy_memory": memory,
    }
    plain = bamboo.run(**job)
    found = bamboo.run(drill=[{"step": 4, "pipeline": 1, "stage": 1, "action": "1B2"}], **job)
    assert (plain["failovers"], found["failovers"]) == (0, 1), bamboo.story()
    assert found["weights_sha256"] == plain["weights_sha256"]
    logs = [log.read_text() for log in (bamboo.home / "local-cloud" / "instances").glob("*/worker.log")]
    assert sum(f"on {torch.cuda.get_device_name(0)}" in log for log in logs) >= 4
