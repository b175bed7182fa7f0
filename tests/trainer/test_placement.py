"""Who runs which stage, where nodes have several workers."""

import time

from bamboo_trainer.placement import Candidate
from bamboo_trainer.plan import Mode, check_plan
from bamboo_trainer.wanted import Wanted
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.test_reconfigure import plan_of, want, wanteds, worker


@st.composite
def crowded(draw: st.DrawFn) -> tuple[list[Candidate], Wanted]:
    """Nodes with up to four workers, which hold anything."""
    wanted = draw(wanteds)
    held = st.sets(st.integers(0, wanted.num_layers - 1))
    candidates = []
    for node in range(draw(st.integers(1, 5))):
        zone = draw(st.sampled_from("ab"))
        for _ in range(draw(st.integers(1, 4))):
            candidates.append(worker(len(candidates) + 1, tuple(draw(held)), zone, node=f"m{node}"))
    return candidates, wanted


@given(crowded())
def test_a_stage_and_its_shadow_are_never_on_one_node(cluster: tuple[list[Candidate], Wanted]) -> None:
    candidates, wanted = cluster
    plan = plan_of(candidates, wanted)
    check_plan(plan)
    node = {c.worker_id: c.node_id for c in candidates}
    for stage in plan.stages():
        assert all(node[shadow] != node[stage.host] for shadow in stage.shadows)


@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 3))
def test_no_shadow_has_to_be_left_out_where_nodes_can_be_alternated(
    num_nodes: int, per_node: int, num_pipelines: int
) -> None:
    # given nodes with as many workers each, all of them used, and pipelines that begin and end on different nodes
    num_stages = num_nodes * per_node // num_pipelines
    if num_stages < 2 or num_stages % num_nodes == 1:
        return
    candidates = [worker(i, node=f"m{i % num_nodes}") for i in range(num_nodes * per_node)]
    plan = plan_of(candidates, want(num_pipelines, num_stages, num_layers=24, microbatches=6))
    # then every stage has its shadow, and no node's loss takes two neighbours
    node = {c.worker_id: c.node_id for c in candidates}
    for pipeline in plan.pipelines:
        hosts = [node[stage.host] for stage in pipeline.stages]
        assert all(stage.shadows for stage in pipeline.stages)
        assert all(hosts[s] != hosts[s - 1] for s in range(len(hosts)))


def test_without_shadows_neighbours_are_put_on_different_nodes_as_well() -> None:
    candidates = [worker(i, node=f"m{i // 2}") for i in range(4)]
    plan = plan_of(candidates, want(num_stages=4, mode=Mode.OFF))
    node = {c.worker_id: c.node_id for c in candidates}
    hosts = [node[stage.host] for stage in plan.stages()]
    assert all(hosts[s] != hosts[s - 1] for s in range(4))


def test_shadows_apart_come_before_the_bytes_that_are_at_hand() -> None:
    # given two nodes with two workers each, of which neighbours in the pipeline hold their layers already
    candidates = [
        worker(1, (0, 1, 2, 3), node="m1"),
        worker(2, (2, 3, 4, 5), node="m1"),
        worker(3, (4, 5, 6, 7), node="m2"),
        worker(4, (6, 7, 0, 1), node="m2"),
    ]
    plan = plan_of(candidates, want(num_stages=4, num_layers=8))
    node = {c.worker_id: c.node_id for c in candidates}
    assert all(stage.shadows for stage in plan.stages())
    assert all(node[stage.shadows[0]] != node[stage.host] for stage in plan.stages())


def test_64_workers_are_placed_in_a_second() -> None:
    candidates = [worker(i, tuple(range(i % 48)), zone="abc"[i % 3]) for i in range(1, 65)]
    begun = time.process_time()
    plan_of(candidates, want(4, 16, num_layers=48, microbatches=64))
    assert time.process_time() - begun < 3.0
