"""Who runs which stage, where nodes have several workers."""

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from bamboo_trainer.paper import on_paper
from bamboo_trainer.placement import Candidate, apart
from bamboo_trainer.plan import Mode, NodeId, Plan
from bamboo_trainer.plan_rules import check_plan
from bamboo_trainer.planner import arrange
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


@pytest.mark.parametrize("mode", [Mode.BUBBLE, Mode.REROUTE, Mode.OFF])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
@pytest.mark.parametrize("num_pipelines", [1, 2])
@pytest.mark.parametrize("per_node", [2, 3])
def test_a_nodes_loss_takes_no_more_than_it_has_to(
    num_pipelines: int, num_stages: int, per_node: int, mode: Mode
) -> None:
    """Given as few nodes as have room, or one more, and workers that hold nothing or anything: no other placement would
    have fewer layers, then fewer shadows, that a single node takes with it."""
    wanted = want(num_pipelines, num_stages, num_layers=8, mode=mode)
    num_hosts, rng = num_pipelines * num_stages, random.Random(num_stages)
    for num_nodes in (-(-num_hosts // per_node), -(-num_hosts // per_node) + 1):
        best = min(at_risk(plan) for plan in all_placements(num_nodes, per_node, wanted))
        for _ in range(10):
            candidates = [
                worker(i, tuple(x for x in range(8) if rng.random() < 0.3), zone="ab"[i % 2], node=f"m{i % num_nodes}")
                for i in range(num_nodes * per_node)
            ]
            assert at_risk(plan_of(candidates, wanted)) == best
        num_standbys = num_nodes * per_node - num_hosts
        assert at_risk(on_paper(arrange(num_hosts, wanted), per_node, num_standbys)) == best, "and the score knows it"


def all_placements(num_nodes: int, per_node: int, wanted: Wanted) -> Iterator[Plan]:
    """Up to the names of the nodes."""
    num_hosts = arrange(num_nodes * per_node, wanted).num_hosts
    plan = plan_of([worker(i) for i in range(num_hosts)], wanted)
    hosts = [stage.host for stage in plan.stages()]
    for nodes in product(range(num_nodes), repeat=num_hosts):
        in_order = all(node <= max(nodes[:i], default=-1) + 1 for i, node in enumerate(nodes))
        if in_order and max(nodes.count(node) for node in nodes) <= per_node:
            home = {host: NodeId(f"m{node}") for host, node in zip(hosts, nodes, strict=True)}
            members = tuple(replace(m, node_id=home[m.worker_id]) for m in plan.members)
            yield replace(plan, members=members, pipelines=apart(plan.pipelines, home))


def at_risk(plan: Plan) -> tuple[int, int]:
    """Layers that one node holds alone, of those that others could hold too; shadows that are missing."""
    home = {m.worker_id: m.node_id for m in plan.members}
    lone = sum(len({home[w] for w in plan.holders_of(layer)}) == 1 for layer in range(plan.num_layers))
    several = [s for p in plan.pipelines for s in p.stages if len(p.stages) > 1 and s.mode.has_shadows]
    return lone, sum(not stage.shadows for stage in several)


def test_a_shadow_that_could_sit_nowhere_else_is_left_out_and_the_plan_says_so() -> None:
    one_node = [worker(i, node="m1") for i in range(3)]
    assert plan_of(one_node[:2], want(1, 2)).reason.endswith(
        "; stages 0.0, 0.1 lack shadows, which could only sit on the stage's own node"
    )
    # three stages in a ring over two nodes: two of them are neighbours on one node
    plan = plan_of([*one_node[:2], worker(3, node="m2"), worker(4, node="m2")], want(1, 3))
    assert sum(not stage.shadows for stage in plan.stages()) == 1
    assert plan.reason.endswith(" lacks a shadow, which could only sit on the stage's own node")


def test_64_workers_are_placed_in_a_second() -> None:
    candidates = [worker(i, tuple(range(i % 48)), zone="abc"[i % 3]) for i in range(1, 65)]
    begun = time.process_time()
    plan_of(candidates, want(4, 16, num_layers=48, microbatches=64))
    assert time.process_time() - begun < 3.0
