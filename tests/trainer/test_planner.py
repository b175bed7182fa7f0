"""The planner: what it chooses, what it says, and properties over many fleets and models."""

import time
from dataclasses import replace

import pytest
from bamboo_trainer.arrangement import Arrangement, uniform
from bamboo_trainer.control import LayerCost
from bamboo_trainer.memory import memory_of
from bamboo_trainer.outlook import outlook, simulate
from bamboo_trainer.paper import homes_of, on_paper
from bamboo_trainer.plan import Mode
from bamboo_trainer.planner import arrange, choose, is_worth_it
from bamboo_trainer.redundancy import fail_over
from bamboo_trainer.wanted import Wanted, Weather
from hypothesis import given, settings
from hypothesis import strategies as st

FAST_LINK = 10e9


def layer(index: int, forward_s: float = 0.1, parameter_bytes: int = 1_000_000, kept_bytes: int = 100) -> LayerCost:
    return LayerCost(
        name=f"l{index}",
        forward_s=forward_s,
        backward_s=2 * forward_s,
        parameter_bytes=parameter_bytes,
        activation_bytes=10,
        kept_bytes=kept_bytes,
        optimizer_bytes=2 * parameter_bytes,
    )


def want(
    *,
    pipelines: int | None = None,
    stages: int | None = None,
    mode: Mode | None = None,
    level: int | None = None,
    microbatches: int = 8,
    layers: tuple[LayerCost, ...] = tuple(layer(i) for i in range(8)),
    weather: Weather = Weather(link_bytes_per_s=FAST_LINK),
) -> Wanted:
    return Wanted(
        num_pipelines=pipelines,
        num_stages=stages,
        mode=mode,
        level=level,
        num_microbatches=microbatches,
        costs=layers,
        weather=weather,
    )


maybe = st.none() | st.integers(1, 4)
wanteds = st.builds(
    want,
    pipelines=st.none() | st.integers(1, 3),
    stages=maybe,
    mode=st.none() | st.sampled_from(Mode),
    level=st.none() | st.integers(1, 2),
    microbatches=st.integers(1, 6),
    layers=st.lists(
        st.builds(layer, st.just(0), st.floats(0.001, 0.5), st.integers(1, 10**8), st.integers(1, 10**8)),
        min_size=1,
        max_size=7,
    ).map(tuple),
    weather=st.builds(
        Weather,
        hazard=st.sampled_from((0.01, 0.5, 20.0)),
        link_bytes_per_s=st.sampled_from((1e7, 1e9)),
        memory_bytes=st.none() | st.integers(10**6, 10**9),
    ),
)


# --- properties -------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(1, 7), wanteds)
def test_every_layer_is_in_each_pipeline_once_and_every_microbatch_in_one(num_workers: int, wanted: Wanted) -> None:
    found = arrange(num_workers, wanted)
    assert 1 <= found.num_hosts <= num_workers
    for cut in found.cuts:
        assert [x for layers in cut for x in layers] == list(range(wanted.num_layers))
        assert all(cut)
    assert [m for numbers in found.microbatches for m in numbers] == list(range(wanted.num_microbatches))
    assert all(found.microbatches)


@settings(max_examples=60)
@given(st.integers(1, 7), wanteds)
def test_what_the_job_fixes_is_kept_while_the_workers_suffice(num_workers: int, wanted: Wanted) -> None:
    found = arrange(num_workers, wanted)
    if wanted.mode is not None:
        assert {mode for row in found.modes for mode in row} == {wanted.mode}
    if wanted.level is not None:
        assert found.level == wanted.level
    if wanted.num_stages is not None:
        assert set(found.num_stages) <= set(range(1, wanted.num_stages + 1))
    each = 2 if wanted.is_redundant else 1
    if wanted.num_pipelines is not None:
        assert found.num_pipelines <= wanted.num_pipelines
        if num_workers >= each * wanted.num_pipelines and wanted.num_microbatches >= wanted.num_pipelines:
            assert found.num_pipelines == wanted.num_pipelines


@settings(max_examples=40)
@given(st.integers(1, 6), wanteds.filter(lambda w: w.is_auto and w.num_pipelines is None and w.num_stages is None))
def test_one_more_worker_never_makes_it_worse(num_workers: int, wanted: Wanted) -> None:
    wanted = replace(wanted, weather=replace(wanted.weather, memory_bytes=None))
    fewer, more = choose(num_workers, wanted).outlook, choose(num_workers + 1, wanted).outlook
    if not wanted.is_redundant or num_workers >= 2:  # redundancy, where it is asked for, needs a second
        is_safer = more.fatal_per_hour < fewer.fatal_per_hour  # a second holder of a layer comes before a hop's time
        assert is_safer or more.microbatches_per_hour >= fewer.microbatches_per_hour * (1 - 1e-5)


@settings(max_examples=30)
@given(st.integers(1, 7), wanteds.filter(lambda w: w.is_auto))
def test_the_choice_is_the_same_each_time(num_workers: int, wanted: Wanted) -> None:
    first = choose(num_workers, wanted)
    for cached in (choose, arrange, simulate, outlook):
        cached.cache_clear()
    assert choose(num_workers, wanted) == first


@settings(max_examples=60)
@given(st.integers(2, 7), wanteds.filter(lambda w: w.mode is None))
def test_what_is_chosen_fits_into_memory_if_anything_does(num_workers: int, wanted: Wanted) -> None:
    found = choose(num_workers, wanted)
    bare = choose(num_workers, replace(wanted, mode=Mode.OFF))
    if bare.outlook.fits:
        assert found.outlook.fits
    assert ("does not fit" in found.reason) == (not found.outlook.fits)


@pytest.mark.parametrize("microbatches", [64, 256])
@pytest.mark.parametrize("num_accelerators", [1, 8])
def test_64_workers_and_48_layers_are_planned_in_a_second(num_accelerators: int, microbatches: int) -> None:
    weather = Weather(link_bytes_per_s=FAST_LINK, num_accelerators=num_accelerators)
    layers = tuple(layer(i, 0.01 * (1 + i % 3)) for i in range(48))
    took_s: list[float] = []
    while not took_s or (took_s[-1] >= 1.0 and len(took_s) < 5):  # the best of five: others may be using the machine
        for cached in (choose, simulate, outlook, homes_of, on_paper):
            cached.cache_clear()
        begun = time.process_time()
        found = choose(64, want(microbatches=microbatches, layers=layers, weather=weather))
        took_s.append(time.process_time() - begun)
    assert min(took_s) < 1.0
    assert found.arrangement.num_hosts >= 48


# --- choices ----------------------------------------------------------------------------------------------------


def test_pipelines_of_unequal_depth_use_a_worker_more() -> None:
    layers = tuple(layer(i) for i in range(12))
    calm = Weather(link_bytes_per_s=FAST_LINK, hazard=0.01)
    found = choose(7, want(pipelines=2, mode=Mode.BUBBLE, level=1, microbatches=32, layers=layers, weather=calm))
    # an even split holds the shorter pipeline back: with the number of pipelines fixed, other shares are other bits
    assert found.arrangement.shape in ("2 x 3", "4 + 3")
    assert len(set(map(len, found.arrangement.microbatches))) == 1
    free = choose(7, want(microbatches=32, layers=layers, weather=calm)).outlook
    assert free.microbatches_per_hour >= found.outlook.microbatches_per_hour


def test_with_auto_pipelines_the_deeper_one_gets_more_microbatches() -> None:
    layers = tuple(layer(i) for i in range(12))
    uneven = Arrangement(
        cuts=((range(3), range(3, 6), range(6, 9), range(9, 12)), (range(4), range(4, 8), range(8, 12))),
        microbatches=(range(16), range(16, 28)),
        modes=((Mode.LAZY,) * 4, (Mode.LAZY,) * 3),
        level=1,
    )
    even = replace(uneven, microbatches=(range(14), range(14, 28)))
    wanted = want(layers=layers, microbatches=28)
    assert outlook(uneven, wanted, 0).step_s < outlook(even, wanted, 0).step_s * 0.95


@settings(max_examples=60)
@given(st.integers(2, 7), wanteds.filter(lambda w: w.mode is None))
def test_nobody_is_counted_on_to_take_over_a_stage_whose_layers_it_lacks(num_workers: int, wanted: Wanted) -> None:
    found = choose(num_workers, wanted).arrangement
    plan = on_paper(found)
    for stage in plan.stages():
        if stage.mode is Mode.REROUTE:
            assert fail_over(plan, {stage.host}, 1) is not None


@pytest.mark.parametrize("pipelines", [1, 2, None])
@pytest.mark.parametrize("num_workers", [2, 3, 4, 7])
def test_no_single_loss_goes_back_to_a_checkpoint_however_rare_losses_and_slow_links_are(
    num_workers: int, pipelines: int | None
) -> None:
    found = choose(num_workers, want(pipelines=pipelines, weather=Weather(hazard=1e-6, link_bytes_per_s=1e6)))
    assert found.outlook.losses_survived > 0
    plan = on_paper(found.arrangement)
    assert all(len(plan.holders_of(layer)) >= 2 for layer in range(plan.num_layers))


@pytest.mark.parametrize("pipelines", [1, 2, None])
@pytest.mark.parametrize("num_workers", [4, 6, 8])
def test_no_loss_of_a_node_with_two_workers_goes_back_to_a_checkpoint(num_workers: int, pipelines: int | None) -> None:
    weather = Weather(hazard=1e-6, link_bytes_per_s=1e6, num_accelerators=2)
    assert choose(num_workers, want(pipelines=pipelines, weather=weather)).outlook.losses_survived > 0


def test_a_second_pipeline_is_protection_enough_where_nothing_is_ever_lost_and_links_are_slow() -> None:
    found = choose(4, want(pipelines=2, weather=Weather(hazard=1e-6, link_bytes_per_s=1e6)))
    assert not any(mode.has_shadows for row in found.arrangement.modes for mode in row)


def test_without_memory_for_shadows_a_lone_pipeline_is_bare() -> None:
    layers = tuple(layer(i, parameter_bytes=50_000_000) for i in range(4))
    bare = memory_of(
        arrange(4, replace(want(layers=layers, pipelines=1, stages=4, level=1), mode=Mode.OFF)), layers, 0, 0
    ).peak
    found = choose(
        4, want(layers=layers, pipelines=1, stages=4, weather=Weather(hazard=10.0, memory_bytes=int(1.05 * bare)))
    )
    assert found.outlook.fits and found.outlook.losses_survived == 0


def test_where_much_is_lost_every_stage_is_shadowed() -> None:
    found = choose(4, want(pipelines=1, weather=Weather(hazard=10.0, link_bytes_per_s=FAST_LINK)))
    assert all(mode.has_shadows for row in found.arrangement.modes for mode in row)
    assert found.outlook.fatal_per_hour < 10.0


def test_frc_is_left_out_where_its_activations_do_not_fit() -> None:
    layers = tuple(layer(i, parameter_bytes=50_000_000, kept_bytes=50_000_000) for i in range(4))
    rough = Weather(hazard=10.0, link_bytes_per_s=1e8)
    roomy = choose(4, want(pipelines=1, stages=4, level=1, layers=layers, weather=rough))
    assert Mode.BUBBLE in roomy.arrangement.modes[0]
    lazy = uniform(roomy.arrangement.cuts, 8, Mode.LAZY, 1)
    limit = max(memory_of(lazy, layers, 0, s).peak for s in range(4))
    assert roomy.outlook.peak_bytes > limit
    tight = choose(4, want(pipelines=1, stages=4, level=1, layers=layers, weather=replace(rough, memory_bytes=limit)))
    assert tight.outlook.fits
    assert all(mode.has_shadows for mode in tight.arrangement.modes[0])
    assert len(set(tight.arrangement.modes[0])) > 1, "only the worker that is too full does without"


def test_a_model_too_large_for_few_stages_gets_more() -> None:
    layers = tuple(layer(i, parameter_bytes=1_000_000) for i in range(8))
    slow = Weather(memory_bytes=15_000_000, link_bytes_per_s=FAST_LINK)
    found = choose(8, want(layers=layers, weather=slow))
    assert found.outlook.fits
    assert max(len(layers) for cut in found.arrangement.cuts for layers in cut) <= 2


def test_a_standby_is_kept_where_losses_cost_more_than_a_stage_more_gains() -> None:
    layers = tuple(layer(i) for i in range(6))
    calm = want(pipelines=1, mode=Mode.LAZY, level=1, layers=layers, weather=Weather(hazard=0.01, boot_s=600.0))
    rough = replace(calm, weather=Weather(hazard=6.0, boot_s=600.0))
    assert choose(6, calm).num_standbys == 0
    assert choose(6, rough).num_standbys > 0


# --- words and hysteresis ---------------------------------------------------------------------------------------


def test_it_says_in_one_sentence_what_is_better_than_what_by_how_much() -> None:
    reason = choose(4, want(pipelines=1)).reason
    assert "should commit" in reason and "% more than" in reason
    assert "all holders of a layer go together about once in" in reason
    assert "\n" not in reason and ". " not in reason


def test_a_change_has_to_pay_its_price_there_and_back_within_the_horizon() -> None:
    assert is_worth_it(120.0, 100.0, switch_s=1.0, horizon_s=3600.0)
    assert not is_worth_it(104.0, 100.0, switch_s=0.0, horizon_s=3600.0), "less than what estimates err by"
    assert not is_worth_it(133.0, 100.0, switch_s=1.0, horizon_s=5.0)
    assert not is_worth_it(1e9, 1.0, switch_s=1.0, horizon_s=2.0)
