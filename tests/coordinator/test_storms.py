"""Anything may happen at any time, in any order: the machine never raises, its invariants hold, the run gets done."""

from collections.abc import Callable
from typing import Any

import pytest
from bamboo_trainer.control import DigestMismatch, TrainingSpec
from bamboo_trainer.plan import Mode
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.settings import ClusterConfig, RunSpec
from bamboo_cli.coordinator.states import RunState
from bamboo_cli.providers.base import EndReason
from tests.coordinator.small_world import FakeNode, FakeWorker, World

NUM_STEPS = 30


def run_spec(
    num_pipelines: int | None, num_stages: int | None, mode: Mode | None, every: int = 4, level: int | None = 1
) -> RunSpec:
    return RunSpec(
        training=TrainingSpec(
            run_id="r1",
            recipe="mlp",
            recipe_options={},
            num_steps=NUM_STEPS,
            num_microbatches=4,
            microbatch_size=2,
            seed=0,
            checkpoint_url="file:///checkpoints",
            checkpoint_every=every,
        ),
        num_pipelines=num_pipelines,
        num_stages=num_stages,
        mode=mode,
        level=level,
    )


def new_world(num_nodes: int, num_layers: int = 4, num_accelerators: int = 1) -> World:
    config = ClusterConfig(
        cluster_id="c",
        num_nodes=num_nodes,
        num_accelerators=num_accelerators,
        zones=("a", "b"),
        lease_s=4.0,
        patience_s=8.0,
        lost_patience_s=30.0,
    )
    return World(config, num_layers)


def nodes_up(world: World) -> list[FakeNode]:
    return [n for n in world.nodes.values() if not n.gone]


def workers_up(world: World) -> list[FakeWorker]:
    return [w for n in nodes_up(world) for w in n.workers.values()]


def on_node(act: Callable[[World, FakeNode], Any]) -> Callable[[World, int], None]:
    def op(world: World, k: int) -> None:
        nodes = nodes_up(world)
        if nodes:
            act(world, nodes[k % len(nodes)])

    return op


def on_worker(act: Callable[[World, FakeWorker], Any]) -> Callable[[World, int], None]:
    def op(world: World, k: int) -> None:
        workers = workers_up(world)
        if workers:
            act(world, workers[k % len(workers)])

    return op


def pump_some(world: World, k: int) -> None:
    for _ in range(k):
        world.pump_once(training=True)


def mismatch(world: World, worker: FakeWorker) -> None:
    shadowed = worker.plan.shadowed_by(worker.worker_id) if worker.plan else ()
    if shadowed and worker.plan and not worker.frozen and worker.generation == worker.plan.generation:
        layer = shadowed[0].first_layer
        message = DigestMismatch(generation=worker.generation, step=worker.committed_step, layer=layer)
        world.report(worker, message)


def toggle_duplicates(world: World, _k: int) -> None:
    world.duplicate = not world.duplicate


OPS: dict[str, Callable[[World, int], object]] = {
    "pump": pump_some,
    "step": lambda w, k: w.step(),
    "step that only some apply": lambda w, k: w.step(appliers=1 + k % 3),
    "time": lambda w, k: w.pass_time(0.25 * (1 + k)),
    "send": on_node(World.send_one),
    "receive": on_node(World.receive_one),
    "kill node": on_node(lambda w, n: w.kill_node(n.node_id)),
    "preempt node": on_node(lambda w, n: w.kill_node(n.node_id, EndReason.PREEMPTED)),
    "kill worker": on_worker(lambda w, x: w.end_worker(w.nodes[x.node_id], x.worker_id, -9)),
    "freeze worker": on_worker(World.freeze_worker),
    "hang worker": on_worker(World.hang_worker),
    "freeze node": on_node(lambda w, n: setattr(n, "frozen", True)),
    "thaw": lambda w, k: w.thaw(),
    "drop link": on_node(World.drop_link),
    "cut worker": on_worker(World.cut_worker),
    "notice": on_node(lambda w, n: w.notice(n.node_id, 5.0)),
    "digest mismatch": on_worker(mismatch),
    "no capacity": lambda w, k: w.short_zones.add("ab"[k % 2]),
    "capacity": lambda w, k: w.short_zones.clear(),
    "restart": lambda w, k: w.restart(),
    "reload": lambda w, k: w.restart(announced=False),
    "duplicates": toggle_duplicates,
}

operations = st.lists(st.tuples(st.sampled_from(["pump", "time", *OPS]), st.integers(0, 12)), max_size=40)


def storm(world: World, spec: RunSpec, ops: list[tuple[str, int]], *, begun: bool) -> None:
    """The operations, then calm weather: the run has to end well."""
    world.handle(ev.Started())
    world.handle(ev.RequestMade(request_id=1, request=ev.StartRun(spec=spec)))
    if begun:
        world.pump(training=False)
    for name, k in ops:
        OPS[name](world, k)
    calm(world)
    board = world.machine.board
    assert board.run is not None and board.progress is not None
    assert board.run.state is RunState.DONE, f"{board.run.state}: {board.run.detail}"
    progress = board.progress
    assert progress.committed_step == NUM_STEPS - 1
    assert progress.num_samples == NUM_STEPS * 8
    recorded_again = sum(world.steps.values()) - len(world.steps)
    assert recorded_again <= progress.steps_rerun, "a step is recorded again only when it was run again"
    assert board.run.weights_sha256 == f"weights after step {NUM_STEPS - 1}"


def calm(world: World) -> None:
    world.duplicate = False
    world.short_zones.clear()
    world.full_disk = False
    for _ in range(12):
        world.thaw()
        world.pump()
        if world.machine.board.active_run is None:
            return
        world.pass_time(15.0)


@settings(max_examples=150)
@given(operations, st.booleans(), st.sampled_from([(1, 2), (1, 3), (2, 2)]), st.sampled_from([Mode.BUBBLE, Mode.OFF]))
def test_whatever_happens_the_run_gets_done(
    ops: list[tuple[str, int]], begun: bool, shape: tuple[int, int], mode: Mode
) -> None:
    storm(new_world(shape[0] * shape[1]), run_spec(*shape, mode), ops, begun=begun)


@settings(max_examples=100)
@given(
    operations,
    st.booleans(),
    st.sampled_from([(1, 2), (1, 3), (1, 4), (2, 2), (None, None)]),
    st.sampled_from([Mode.BUBBLE, Mode.OFF, Mode.REROUTE]),
    st.integers(1, 3),
)
def test_whatever_happens_to_nodes_with_two_workers_the_run_gets_done(
    ops: list[tuple[str, int]], begun: bool, shape: tuple[int | None, int | None], mode: Mode, num_nodes: int
) -> None:
    storm(new_world(num_nodes, num_accelerators=2), run_spec(*shape, mode), ops, begun=begun)


AUTO = [(None, None, None, None), (2, None, None, 1), (1, None, Mode.BUBBLE, 1), (None, 2, Mode.LAZY, None)]


@settings(max_examples=100)
@given(operations, st.booleans(), st.sampled_from(AUTO), st.integers(2, 5))
@example(  # a step that nobody lives to tell of is no reason to record those behind it again
    ops=[
        ("pump", 4),
        ("step", 0),
        *[("pump", 0)] * 4,
        ("kill worker", 0),
        *[("pump", 0)] * 3,
        ("restart", 0),
        ("pump", 0),
    ],
    begun=True,
    asked=AUTO[0],
    num_nodes=2,
)
@example(  # who helped with a copy that differs from its owner's does not go on with that
    ops=[("pump", 12), ("kill node", 2), ("digest mismatch", 1), ("kill node", 0)],
    begun=False,
    asked=AUTO[1],
    num_nodes=4,
)
def test_whatever_happens_a_run_that_is_left_to_the_planner_gets_done(
    ops: list[tuple[str, int]],
    begun: bool,
    asked: tuple[int | None, int | None, Mode | None, int | None],
    num_nodes: int,
) -> None:
    num_pipelines, num_stages, mode, level = asked
    storm(new_world(num_nodes), run_spec(num_pipelines, num_stages, mode, level=level), ops, begun=begun)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=5000, derandomize=False)
@given(operations, st.booleans(), st.sampled_from([(1, 2), (1, 3), (2, 2), (2, 3)]), st.sampled_from(Mode))
def test_whatever_happens_the_run_gets_done_in_many_storms(
    ops: list[tuple[str, int]], begun: bool, shape: tuple[int, int], mode: Mode
) -> None:
    storm(new_world(shape[0] * shape[1] + 1), run_spec(*shape, mode), ops, begun=begun)
