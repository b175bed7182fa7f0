"""What an arrangement costs: time by mode, memory by formula, losses."""

from dataclasses import replace

import pytest
from bamboo_trainer.arrangement import uniform
from bamboo_trainer.memory import WorkerMemory, memory_of
from bamboo_trainer.outlook import HELP, loss_s, outlook, simulate
from bamboo_trainer.paper import homes_of
from bamboo_trainer.plan import Mode, RedundancyMemory
from bamboo_trainer.planner import choose
from bamboo_trainer.wanted import Weather

from tests.trainer.test_planner import FAST_LINK, layer, want


def test_what_a_worker_keeps_by_mode() -> None:
    layers = tuple(layer(i, parameter_bytes=100, kept_bytes=7) for i in range(2))
    cuts = ((range(1), range(1, 2)),)

    def usual(mode: Mode, stage: int = 0) -> int:
        return memory_of(uniform(cuts, 4, mode, 1), layers, 0, stage).usual

    # parameters and two moments, two gradient buffers, two microbatches in flight, 4 times output and its gradient
    alone = 300 + 200 + 2 * 7 + 4 * (10 + 10)
    assert usual(Mode.OFF) == usual(Mode.REROUTE) == alone
    assert usual(Mode.MIRROR) == usual(Mode.LAZY) == alone + 300 + 100, "the shadow's state, and a reduced gradient"
    assert usual(Mode.EAGER) == alone + 400 + 4 * 7, "and what each FRC keeps"
    assert usual(Mode.FULL) == alone + 300 + 200 + 7 + 4 * (10 + 10)
    assert usual(Mode.OFF, stage=1) == alone - 7, "one microbatch in flight"


def test_a_shadow_needs_room_to_take_over() -> None:
    layers = tuple(layer(i, parameter_bytes=100, kept_bytes=7) for i in range(2))
    found = memory_of(uniform(((range(1), range(1, 2)),), 4, Mode.LAZY, 1), layers, 0, 0)
    assert found.peak == found.usual + found.takeover == found.usual + (300 + 200 + 7 + 4 * 20) - 400


def test_eager_costs_time_in_every_step_and_bubble_none() -> None:
    costs = tuple(layer(i) for i in range(4))
    cut = tuple(range(i, i + 1) for i in range(4))

    def made_s(mode: Mode) -> float:
        return simulate(cut, 16, (mode,) * 4, 1, costs)[0]

    assert made_s(Mode.OFF) == made_s(Mode.LAZY) == made_s(Mode.BUBBLE) < made_s(Mode.EAGER) < made_s(Mode.FULL)


def test_bubbles_hold_a_share_of_the_frc_that_falls_with_the_microbatches() -> None:
    costs = tuple(layer(i) for i in range(4))
    cut = tuple(range(i, i + 1) for i in range(4))
    few, many = (simulate(cut, m, (Mode.BUBBLE,) * 4, 1, costs)[1] for m in (4, 32))
    assert 0 < sum(many) < sum(few) <= 4


def test_the_formula_for_large_steps_is_near_the_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = tuple(layer(i, 0.1 + 0.01 * i) for i in range(6))
    cut = (range(2), range(2, 4), range(4, 6))
    for mode in (Mode.OFF, Mode.BUBBLE, Mode.EAGER, Mode.FULL):
        simulate.cache_clear()
        exact, shares = simulate(cut, 12, (mode,) * 3, 1, costs)
        with monkeypatch.context() as patched:
            patched.setattr("bamboo_trainer.outlook.MAX_DRY_ACTIONS", 0)
            simulate.cache_clear()
            rough, rough_shares = simulate(cut, 12, (mode,) * 3, 1, costs)
        assert rough == pytest.approx(exact, rel=0.2)
        assert rough_shares == pytest.approx(shares, abs=0.35)
    simulate.cache_clear()


def test_more_loss_makes_the_score_smaller_and_a_shadow_the_fatal_losses_rarer() -> None:
    cuts = ((range(2), range(2, 4), range(4, 8)),)
    calm, rough = (want(weather=Weather(hazard=h, link_bytes_per_s=FAST_LINK)) for h in (0.1, 5.0))
    bubble, off = (uniform(cuts, 8, mode, 1) for mode in (Mode.BUBBLE, Mode.OFF))
    assert outlook(bubble, rough, 0).microbatches_per_hour < outlook(bubble, calm, 0).microbatches_per_hour
    assert outlook(off, rough, 0).fatal_per_hour == pytest.approx(3 * 5.0)
    assert outlook(bubble, rough, 0).fatal_per_hour < 0.5


FOUR = ((range(2), range(2, 4), range(4, 6), range(6, 8)),)


def pairs(**changes: float) -> Weather:
    """Nodes with two workers."""
    return Weather(num_accelerators=2, link_bytes_per_s=FAST_LINK, **changes)  # type: ignore[arg-type]


def test_fatal_losses_are_counted_by_node() -> None:
    off, bubble = (uniform(FOUR, 8, mode, 1) for mode in (Mode.OFF, Mode.BUBBLE))
    single, double = want(weather=Weather(hazard=5.0)), want(weather=pairs(hazard=5.0))
    assert outlook(off, single, 0).fatal_per_hour == pytest.approx(4 * 5.0)
    assert outlook(off, double, 0).fatal_per_hour == pytest.approx(2 * 5.0), "two nodes, each with two stages"
    assert outlook(bubble, double, 0).losses_survived == 1, "stages and shadows alternate"
    assert outlook(bubble, double, 0).fatal_per_hour < 0.5


def test_all_on_one_node_no_shadow_helps() -> None:
    wanted = want(weather=Weather(hazard=5.0, num_accelerators=4))
    seen = outlook(uniform(FOUR, 8, Mode.BUBBLE, 1), wanted, 0)
    assert (seen.losses_survived, seen.fatal_per_hour) == (0, pytest.approx(5.0))


def test_the_loss_of_a_node_costs_what_its_stages_do_but_one_change_of_plan() -> None:
    bubble, wanted = uniform(FOUR, 8, Mode.LAZY, 1), want(weather=pairs(switch_s=3.0))
    homes, shares = homes_of(bubble, 2), [(0.0,) * 4]

    def price(*stages: int) -> float:
        return loss_s(bubble, homes, [(0, s) for s in stages], wanted, 1.0, shares, num_standbys=2) - 3.0

    assert homes[0, 0] == homes[0, 2]
    assert price(0, 2) == pytest.approx(price(0) + price(2))


@pytest.mark.parametrize(
    ("num_pipelines", "num_microbatches", "done_by_helpers"), [(2, 8, 1 / 2), (3, 9, 2 / 3), (2, 64, 1 / 8)]
)
def test_other_pipelines_help_is_in_the_price_of_a_loss(
    num_pipelines: int, num_microbatches: int, done_by_helpers: float
) -> None:
    """Even parts, of at most eight microbatches a helper."""
    wanted = want(weather=Weather(link_bytes_per_s=FAST_LINK, hazard=1.0, switch_s=0.0))

    def price(pipelines: int) -> float:
        lazy = uniform(((range(4), range(4, 8)),) * pipelines, pipelines * num_microbatches, Mode.LAZY, 1)
        return loss_s(lazy, homes_of(lazy, 1), [(0, 0)], wanted, 1.0, [(0.0, 0.0)] * pipelines, num_standbys=1)

    assert price(num_pipelines) == pytest.approx(price(1) * (1 - HELP * done_by_helpers))


def test_pipelines_make_the_loss_of_a_node_good_side_by_side() -> None:
    cuts = ((range(4), range(4, 8)),) * 2
    lazy, wanted = uniform(cuts, 8, Mode.LAZY, 1), want(weather=pairs())
    homes, shares = homes_of(lazy, 2), [(0.0, 0.0)] * 2
    first, *others = [place for place in homes if homes[place] == homes[0, 0]]
    assert [d for d, _ in others] == [1], "a stage of each pipeline"
    assert loss_s(lazy, homes, [first, *others], wanted, 1.0, shares, 2) == pytest.approx(
        loss_s(lazy, homes, [first], wanted, 1.0, shares, 2)
    )


def test_with_host_memory_only_what_frc_reads_stays_on_the_device() -> None:
    layers = tuple(layer(i, parameter_bytes=100, kept_bytes=7) for i in range(2))
    cuts = ((range(1), range(1, 2)),)

    def found(mode: Mode) -> WorkerMemory:
        return memory_of(uniform(cuts, 4, mode, 1), layers, 0, 0, (), RedundancyMemory.HOST)

    bare = found(Mode.OFF)
    passing = 300 + 100 + 7
    """One layer that is updated, or computed: state, reduced gradient, activations of a microbatch."""
    for mode in (Mode.MIRROR, Mode.LAZY):
        assert found(mode).usual == bare.usual + passing
        assert found(mode).host == 300 + 100
    assert found(Mode.EAGER).usual == bare.usual + 100 + passing
    assert found(Mode.EAGER).host == 200 + 100 + 4 * 7
    assert found(Mode.FULL) == memory_of(uniform(cuts, 4, Mode.FULL, 1), layers, 0, 0)
    # after a loss the stage is hosted like any other, with one microbatch in flight
    for mode in (Mode.LAZY, Mode.EAGER):
        assert found(mode).peak == bare.usual + 300 + 200 + 7 + 4 * 20


def test_host_memory_makes_room_for_frc_that_would_not_fit() -> None:
    layers = tuple(layer(i, parameter_bytes=50_000_000, kept_bytes=50_000_000) for i in range(4))
    wanted = want(pipelines=1, stages=4, mode=Mode.EAGER, level=1, layers=layers)
    near = choose(4, wanted).outlook
    aside = choose(4, replace(wanted, redundancy_memory=RedundancyMemory.HOST)).outlook
    assert near.host_bytes == 0 < aside.host_bytes
    between = (near.peak_bytes + aside.peak_bytes) // 2
    weather = Weather(link_bytes_per_s=FAST_LINK, memory_bytes=between)
    assert not choose(4, replace(wanted, weather=weather)).outlook.fits
    assert choose(4, replace(wanted, weather=weather, redundancy_memory=RedundancyMemory.HOST)).outlook.fits
