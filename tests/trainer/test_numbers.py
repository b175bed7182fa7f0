"""Which numbers are the same: executors over torch in one process, whatever the cut, the pipelines, the losses."""

import tempfile
from collections.abc import Callable, Iterator

import pytest
import torch
from bamboo_trainer import control
from bamboo_trainer.executor import Executor
from bamboo_trainer.frames import Frame
from bamboo_trainer.helping import with_help
from bamboo_trainer.host_memory import HostMemory
from bamboo_trainer.plan import Mode, RedundancyMemory, WorkerId
from bamboo_trainer.recipe import Recipe, load_recipe
from bamboo_trainer.redundancy import fail_over
from bamboo_trainer.schedule import Action
from bamboo_trainer.torch_compute import TorchCompute

from tests.trainer.world import World, grid_plan

TOLERANCE = 1e-4
"""docs/step.md states it: of parameters after 8 steps of fp32, with another number of pipelines."""
NUM_STEPS = 8
GPT2 = ("gpt2", {"size": "tiny", "context": 16})
MLP = ("mlp", {"depth": 12})


class TorchWorld(World):
    """The in-memory world, with the arithmetic of torch in place of integers. ``aside``: what is kept for the loss of
    others is copied to host memory, as if the device had another."""

    def __init__(
        self, recipe: tuple[str, dict[str, object]], num_microbatches: int, folder: str, *, aside: bool = False
    ) -> None:
        loaded: Recipe = load_recipe(*recipe)
        super().__init__(len(loaded.layers), num_microbatches, NUM_STEPS, tied=False, checkpoint_every=10**9)
        self.recipe = loaded
        self.spec = control.TrainingSpec(
            run_id="r1",
            recipe=recipe[0],
            recipe_options=recipe[1],
            num_steps=NUM_STEPS,
            num_microbatches=num_microbatches,
            microbatch_size=2,
            seed=0,
            checkpoint_url=f"file://{folder}",
            checkpoint_every=10**9,
            digest_every=3,
            redundancy_memory=RedundancyMemory.HOST if aside else RedundancyMemory.DEVICE,
        )
        self.hosts: dict[WorkerId, HostMemory] = {}
        self.torch_computes: dict[WorkerId, TorchCompute] = {}

    def add_worker(self, worker_id: WorkerId) -> Executor:
        host = self.hosts[worker_id] = HostMemory(torch.device("cpu"), copies=True)
        compute = TorchCompute(self.spec, self.recipe, lambda message: None, host)

        def send(peer: WorkerId, frame: Frame) -> None:
            if peer in self.executors:
                self.links[worker_id, peer].append(frame)

        def report(message: control.FromWorker) -> None:
            self.reports.append((worker_id, message))

        self.torch_computes[worker_id] = compute
        self.executors[worker_id] = Executor(worker_id, self.spec, compute, send, report)
        return self.executors[worker_id]

    def parameters(self) -> dict[str, torch.Tensor]:
        """Of every layer; asserts that all live holders have the same bits."""
        found: dict[str, torch.Tensor] = {}
        for worker_id in self.executors:
            compute = self.torch_computes[worker_id]
            for layer in compute.held_layers():
                for name, value in compute.export_layer(layer).items():
                    if isinstance(value, torch.Tensor):
                        assert torch.equal(found.setdefault(f"{layer}.{name}", value), value)
        return found


_undisturbed: dict[str, dict[str, torch.Tensor]] = {}


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as name:
        yield name


def train(
    folder: str,
    recipe: tuple[str, dict[str, object]],
    num_pipelines: int,
    num_stages: int,
    mode: Mode = Mode.BUBBLE,
    lose_at: int | None = None,
    level: int = 1,
    *,
    aside: bool = False,
    helped: bool = False,
    helper_too: int | None = None,
    make_world: Callable[..., TorchWorld] = TorchWorld,
) -> dict[str, torch.Tensor]:
    """``helper_too``: so many actions after that loss, the one that helps is lost as well."""
    num_layers = len(load_recipe(*recipe).layers)
    plan = grid_plan(num_pipelines, num_stages, 6, num_layers // num_stages, mode, level)
    assert plan.num_layers == num_layers
    world = make_world(recipe, 6, folder, aside=aside)
    for worker_id in plan.worker_ids():
        world.add_worker(worker_id)
    world.adopt(plan)
    if lose_at is not None:
        most_aside = 0

        def strike(worker_id: WorkerId, action: Action) -> bool:
            nonlocal most_aside
            most_aside = max(most_aside, *(host.saved_bytes for host in world.hosts.values()))
            return world.num_actions == lose_at

        victim = world.run(strike)
        assert victim is not None
        assert (most_aside > 0) == (aside and mode.computes_ahead)
        # at level 2 its nearest shadow goes with it
        lost = [w for w in plan.hosted_by(victim)[0].holders[:level] if w in world.executors]
        for worker_id in lost:
            world.lose(worker_id)
        after = fail_over(plan, lost, 2)
        assert after is not None
        if helped:
            after = with_help(after, plan)
            parts = next(stage.parts for stage in after.stages() if stage.parts)
        world.adopt(after)
        if helper_too is not None:
            world.run(lambda worker_id, action: world.num_actions == lose_at + helper_too)
            world.lose(parts[1].host)
            both = fail_over(after, [parts[1].host], 3)
            assert both is not None
            world.adopt(with_help(both, after))
    world.run()
    assert world.finished()
    assert not [m for _, m in world.reports if isinstance(m, control.DigestMismatch)]
    parameters = world.parameters()
    for compute in world.torch_computes.values():
        compute.close()
    return parameters


def assert_same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different


@pytest.mark.parametrize("recipe", [GPT2, MLP], ids=["gpt2", "mlp"])
def test_the_cut_and_the_mode_do_not_change_a_bit(folder: str, recipe: tuple[str, dict[str, object]]) -> None:
    # given a model with dropout, clipping, and (GPT-2) tied layers
    whole = train(folder, recipe, 1, 1, Mode.OFF)
    assert_same_bits(train(folder, recipe, 1, 2, Mode.EAGER), whole)
    assert_same_bits(train(folder, recipe, 1, 4, Mode.LAZY), whole)
    assert_same_bits(train(folder, recipe, 1, 4, Mode.BUBBLE), whole)


@pytest.mark.parametrize("lose_at", [90, 131])
@pytest.mark.parametrize("mode", [mode for mode in Mode if mode.survives_within_step])
def test_a_failover_does_not_change_a_bit(folder: str, mode: Mode, lose_at: int) -> None:
    if "2x2" not in _undisturbed:
        _undisturbed["2x2"] = train(folder, GPT2, 2, 2, Mode.OFF)
    assert_same_bits(train(folder, GPT2, 2, 2, mode, lose_at), _undisturbed["2x2"])


@pytest.mark.parametrize(("num_pipelines", "num_stages"), [(2, 2), (1, 4)])
@pytest.mark.parametrize("lose_at", [95, 131])
@pytest.mark.parametrize("mode", [mode for mode in Mode if mode.survives_within_step])
def test_redundancy_in_host_memory_does_not_change_a_bit_of_a_failover(
    folder: str, mode: Mode, lose_at: int, num_pipelines: int, num_stages: int
) -> None:
    if num_pipelines == 1 and mode is Mode.REROUTE:
        pytest.skip("there is no other pipeline")
    shape = f"{num_pipelines}x{num_stages}"
    if shape not in _undisturbed:
        _undisturbed[shape] = train(folder, GPT2, num_pipelines, num_stages, Mode.OFF)
    found = train(folder, GPT2, num_pipelines, num_stages, mode, lose_at, aside=True)
    assert_same_bits(found, _undisturbed[shape])


@pytest.mark.parametrize("helper_too", [None, 9], ids=["", "the helper is lost too"])
@pytest.mark.parametrize(("mode", "lose_at", "aside"), [(Mode.LAZY, 90, False), (Mode.BUBBLE, 131, True)])
def test_help_of_another_pipeline_does_not_change_a_bit(
    folder: str, mode: Mode, lose_at: int, aside: bool, helper_too: int | None
) -> None:
    if "2x2" not in _undisturbed:
        _undisturbed["2x2"] = train(folder, GPT2, 2, 2, Mode.OFF)
    found = train(folder, GPT2, 2, 2, mode, lose_at, aside=aside, helped=True, helper_too=helper_too)
    assert_same_bits(found, _undisturbed["2x2"])


@pytest.mark.parametrize("lose_at", [110, 161])
@pytest.mark.parametrize("mode", [Mode.LAZY, Mode.BUBBLE, Mode.EAGER, Mode.FULL])
def test_two_neighbours_lost_at_level_2_do_not_change_a_bit(folder: str, mode: Mode, lose_at: int) -> None:
    if "1x4" not in _undisturbed:
        _undisturbed["1x4"] = train(folder, GPT2, 1, 4, Mode.OFF)
    assert_same_bits(train(folder, GPT2, 1, 4, mode, lose_at, level=2), _undisturbed["1x4"])


def test_more_pipelines_change_sums_within_the_documented_tolerance(folder: str) -> None:
    # given sums over microbatches that are added in another order
    one, two, three = (train(folder, MLP, d, 2) for d in (1, 2, 3))
    for other in (two, three):
        names = [name for name in one if not torch.equal(one[name], other[name])]
        assert names, "some bits do differ, or this test shows nothing"
        worst = max((one[name] - other[name]).abs().max().item() for name in names)
        assert worst < TOLERANCE, worst
