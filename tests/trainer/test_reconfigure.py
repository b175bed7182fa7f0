"""The planner for step boundaries: its rules as properties over many clusters, its choices as examples."""

from dataclasses import replace

import pytest
from bamboo_trainer.control import LayerCost
from bamboo_trainer.placement import Candidate
from bamboo_trainer.plan import Mode, NodeId, Plan, PlanKind, WorkerId
from bamboo_trainer.plan_rules import check_plan
from bamboo_trainer.planner import choose_shape
from bamboo_trainer.reconfigure import plan_boundary
from bamboo_trainer.redundancy import fail_over, missing_shadows
from bamboo_trainer.wanted import Wanted
from hypothesis import given
from hypothesis import strategies as st


def want(
    num_pipelines: int = 1,
    num_stages: int = 2,
    num_layers: int = 6,
    mode: Mode = Mode.BUBBLE,
    microbatches: int = 4,
    level: int = 1,
) -> Wanted:
    return Wanted(
        num_pipelines=num_pipelines,
        num_stages=num_stages,
        mode=mode,
        level=level,
        num_microbatches=microbatches,
        costs=tuple(
            LayerCost(name=f"l{i}", forward_s=1.0, backward_s=2.0, parameter_bytes=100, activation_bytes=10)
            for i in range(num_layers)
        ),
    )


def worker(
    number: int, layers: tuple[int, ...] = (), zone: str = "a", leaving: bool = False, node: str = ""
) -> Candidate:
    return Candidate(
        worker_id=WorkerId(f"n{number}/1"),
        node_id=NodeId(node or f"n{number}"),
        zone=zone,
        address=f"127.0.0.{number}",
        port=1000 + number,
        layers=frozenset(layers),
        leaving=leaving,
    )


def plan_of(candidates: list[Candidate], wanted: Wanted) -> Plan:
    return plan_boundary(generation=5, first_step=8, candidates=candidates, wanted=wanted, reason="because")


wanteds = st.builds(
    want,
    num_pipelines=st.integers(1, 3),
    num_stages=st.integers(1, 4),
    num_layers=st.integers(1, 9),
    mode=st.sampled_from(Mode),
    microbatches=st.integers(1, 6),
    level=st.integers(1, 2),
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Candidate], Wanted]:
    wanted = draw(wanteds)
    num_workers = draw(st.integers(1, 10))
    held = st.sets(st.integers(0, wanted.num_layers - 1))
    candidates = [
        worker(i, tuple(draw(held)), draw(st.sampled_from("abc")), leaving=i > 1 and draw(st.booleans()))
        for i in range(1, num_workers + 1)
    ]
    return candidates, wanted


@given(clusters())
def test_a_plan_obeys_the_rules_that_every_executor_relies_on(cluster: tuple[list[Candidate], Wanted]) -> None:
    candidates, wanted = cluster
    plan = plan_of(candidates, wanted)
    check_plan(plan)
    assert plan.kind is PlanKind.BOUNDARY
    assert plan.num_microbatches == wanted.num_microbatches
    assert plan.num_layers == wanted.num_layers
    hosts = [stage.host for stage in plan.stages()]
    assert len(set(hosts)) == len(hosts), "a worker hosts one stage"


@given(clusters())
def test_after_its_fetches_each_member_holds_exactly_what_it_needs(cluster: tuple[list[Candidate], Wanted]) -> None:
    candidates, wanted = cluster
    plan = plan_of(candidates, wanted)
    held = {c.worker_id: c.layers for c in candidates}
    fetched: dict[WorkerId, set[int]] = {c.worker_id: set() for c in candidates}
    for fetch in plan.fetches:
        assert fetch.layer not in held[fetch.worker_id], "nobody fetches what it holds"
        holders = [c.worker_id for c in candidates if fetch.layer in c.layers]
        assert (fetch.source in holders) if holders else (fetch.source is None)
        assert fetch.source is None or fetch.source in plan.worker_ids(), "a source can be reached"
        fetched[fetch.worker_id].add(fetch.layer)
    for worker_id in plan.worker_ids():
        assert set(plan.layers_of(worker_id)) <= held[worker_id] | fetched[worker_id]
    assert len(plan.fetches) == sum(map(len, fetched.values())), "no layer is fetched twice"


@given(clusters())
def test_who_is_leaving_gets_no_stage(cluster: tuple[list[Candidate], Wanted]) -> None:
    candidates, wanted = cluster
    plan = plan_of(candidates, wanted)
    for candidate in candidates:
        if candidate.leaving:
            assert not plan.layers_of(candidate.worker_id)


@given(clusters())
def test_with_redundancy_and_two_workers_any_one_loss_is_survived(cluster: tuple[list[Candidate], Wanted]) -> None:
    candidates, wanted = cluster
    plan = plan_of(candidates, wanted)
    if wanted.is_redundant and sum(not c.leaving for c in candidates) >= 2:
        assert missing_shadows(plan, wanted.level) == 0
        for worker_id in plan.worker_ids():
            if wanted.mode.survives_within_step:
                assert fail_over(plan, {worker_id}, 6) is not None
            others = [w for w in plan.worker_ids() if w != worker_id]
            assert set().union(*map(plan.layers_of, others)) == set(range(wanted.num_layers))
    elif not wanted.is_redundant:
        assert all(not stage.shadows for stage in plan.stages())


@pytest.mark.parametrize("num_pipelines", [1, 2])
def test_at_level_2_any_two_neighbours_may_go_together(num_pipelines: int) -> None:
    wanted = want(num_pipelines, 4, level=2)
    plan = plan_of([worker(i) for i in range(1, 4 * num_pipelines + 1)], wanted)
    for pipeline in plan.pipelines:
        for s, stage in enumerate(pipeline.stages):
            pair = {stage.host, pipeline.stages[(s + 1) % 4].host}
            after = fail_over(plan, pair, 6)
            assert after is not None
            assert all(not set(stage.holders) & pair for stage in after.stages())
            # and one more after that, where level 1 would have nobody left in the pipeline
            assert num_pipelines == 2 or fail_over(plan_at_level_1(plan), pair, 6) is None


def plan_at_level_1(plan: Plan) -> Plan:
    return replace(
        plan,
        pipelines=tuple(
            replace(p, stages=tuple(replace(s, shadows=s.shadows[:1]) for s in p.stages)) for p in plan.pipelines
        ),
    )


def test_without_a_shadow_the_least_busy_worker_of_another_pipeline_takes_over() -> None:
    plan = plan_of([worker(i) for i in range(1, 7)], want(3, 2, mode=Mode.REROUTE))
    victim, second = plan.stage(0, 1).host, plan.stage(1, 1).host

    after = fail_over(plan, {victim}, 6)
    assert after is not None
    both = fail_over(after, {second}, 7)
    assert both is not None

    assert after.stage(0, 1).host in (plan.stage(1, 1).host, plan.stage(2, 1).host)
    assert both.stage(0, 1).host == both.stage(1, 1).host == plan.stage(2, 1).host
    assert fail_over(both, {plan.stage(2, 1).host}, 8) is None


@given(st.integers(1, 12), wanteds)
def test_the_number_of_pipelines_is_kept_as_long_as_it_can_be(num_workers: int, wanted: Wanted) -> None:
    num_pipelines, num_stages = choose_shape(num_workers, wanted)
    assert 1 <= num_pipelines * num_stages <= num_workers
    each = 2 if wanted.is_redundant else 1
    if num_workers >= each * wanted.num_pipelines and wanted.num_microbatches >= wanted.num_pipelines:
        assert num_pipelines == wanted.num_pipelines


def test_shapes_that_the_number_of_workers_gives() -> None:
    two_by_two = want(2, 2)
    assert choose_shape(5, two_by_two) == (2, 2)
    assert choose_shape(4, two_by_two) == (2, 2)
    assert choose_shape(3, two_by_two) == (1, 2)
    assert choose_shape(1, two_by_two) == (1, 1)
    assert choose_shape(5, want(2, 3)) == (2, 2)
    assert choose_shape(3, want(2, 2, mode=Mode.OFF)) == (2, 1)
    assert choose_shape(2, want(2, 1)) == (2, 1)


def test_workers_stay_on_the_layers_that_they_hold() -> None:
    # given three stages, of which the second host is gone and its layers are shadowed by the first
    first, third = worker(1, (0, 1, 2, 3)), worker(3, (4, 5, 0, 1))
    # when a standby takes part
    plan = plan_of([worker(2), third, first], want(num_stages=3))
    # then nobody else moves
    assert [stage.host for stage in plan.stages()] == ["n1/1", "n2/1", "n3/1"]
    assert {(f.worker_id, f.layer, f.source) for f in plan.fetches} == {
        ("n2/1", 2, "n1/1"),
        ("n2/1", 3, "n1/1"),
        ("n2/1", 4, "n3/1"),
        ("n2/1", 5, "n3/1"),
    }


def test_neighbours_sit_in_different_zones_where_that_is_free() -> None:
    candidates = [worker(1, zone="a"), worker(2, zone="a"), worker(3, zone="b"), worker(4, zone="b")]
    plan = plan_of(candidates, want(num_stages=4))
    zone = {c.worker_id: c.zone for c in candidates}
    zones = [zone[stage.host] for stage in plan.stages()]
    assert all(zones[s] != zones[s - 1] for s in range(4))


def test_a_leaving_node_that_alone_holds_a_layer_stays_a_member_to_hand_it_over() -> None:
    plan = plan_of([worker(1), worker(2), worker(3, tuple(range(6)), leaving=True)], want())
    assert "n3/1" in plan.worker_ids()
    assert not plan.layers_of(WorkerId("n3/1"))
    assert {f.source for f in plan.fetches} == {"n3/1"}


def test_a_layer_is_asked_of_a_holder_in_the_same_zone_first() -> None:
    candidates = [worker(1, (0, 1, 2), "a"), worker(2, (0, 1, 2), "b"), worker(3, (), "b")]
    plan = plan_of(candidates, want(num_stages=3, num_layers=3))
    (target,) = {f.worker_id for f in plan.fetches}
    assert target == "n3/1"
    assert {f.source for f in plan.fetches} == {"n2/1"}


def test_the_plan_says_why_in_one_sentence() -> None:
    plan = plan_of([worker(1), worker(2), worker(3)], want())
    assert plan.reason == "because; 3 workers for 1 x 2 stages, 1 standby"
