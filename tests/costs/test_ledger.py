"""The bill adds up, whatever happened."""

import itertools
from collections import defaultdict
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_cli.costs.ledger import Charge, Price, Rental, RunInterval, charges, microusd, paid_now, within
from bamboo_cli.costs.periods import midnights
from bamboo_cli.costs.report import Placing, RunFacts, amount, bill
from bamboo_cli.views.bill import total_line

START = 1_790_000_000.0
"""Any instant: the bill knows no clock."""


def rental(node: str = "n1", zone: str = "a", launched: float = 0.0, ended: float | None = 3600.0) -> Rental:
    return Rental(
        instance_id=f"i-{node}",
        node_id=node,
        zone=zone,
        instance_type="t",
        launched_at=START + launched,
        ended_at=None if ended is None else START + ended,
    )


def price(spot: float, *, at: float = 0.0, zone: str = "a", on_demand: float = 1.0) -> Price:
    return Price(
        zone=zone,
        instance_type="t",
        from_at=START + at,
        spot_microusd_per_hour=microusd(spot),
        on_demand_microusd_per_hour=microusd(on_demand),
        price_source="job file",
    )


def run(run_id: str, started: float, ended: float | None) -> RunInterval:
    return RunInterval(run_id=run_id, started_at=START + started, ended_at=None if ended is None else START + ended)


def test_an_hour_costs_the_hourly_price() -> None:
    (charge,) = charges([rental()], [price(0.30)], [], START + 9999)

    assert (charge.spot_microusd, charge.on_demand_microusd, charge.run_id) == (300_000, 1_000_000, None)


def test_an_instance_on_demand_pays_that_price() -> None:
    (charge,) = charges([rental()._replace(is_spot=False)], [price(0.30)], [], START + 9999)

    assert charge.spot_microusd == charge.on_demand_microusd == 1_000_000


def test_a_price_that_changes_in_mid_hour_counts_from_then_on() -> None:
    prices = [price(0.30), price(0.60, at=1800)]

    (whole,) = charges([rental()], prices, [], START + 9999)
    halves = charges([rental()], prices, [], START + 9999, cuts=[START + 1800])

    assert whole.spot_microusd == 450_000
    assert [(charge.seconds, charge.spot_microusd) for charge in halves] == [(1800.0, 150_000), (1800.0, 300_000)]


def test_a_charge_names_all_that_told_its_price_and_nobody_else() -> None:
    prices = [price(0.3), price(0.4, at=1800)._replace(price_source="live"), price(0.5, at=9)._replace(zone="b")]

    first, second = charges([rental()], prices, [], START + 9999, cuts=[START + 1800])
    (whole,) = charges([rental()], prices, [], START + 9999)

    assert (first.price_source, second.price_source, whole.price_source) == ("job file", "live", "job file; live")


def test_what_is_paid_now_is_the_newest_price_of_all_that_run() -> None:
    rented = [rental("n1", ended=None), rental("n2"), rental("n3", ended=None)._replace(is_spot=False)]

    assert paid_now(rented, [price(0.3), price(0.4, at=60)], START + 100) == 400_000 + 1_000_000


def test_the_price_of_another_zone_does_not_matter() -> None:
    ledger = charges([rental()], [price(0.30), price(9.0, at=600, zone="b")], [], START + 9999)

    assert amount(ledger).spot_microusd == 300_000


def test_seconds_belong_to_the_run_that_was_on_and_the_rest_is_idle() -> None:
    ledger = charges([rental()], [price(0.36)], [run("r1", 600, 1600), run("r2", 3000, None)], START + 9999)

    assert [(charge.run_id, charge.seconds) for charge in ledger] == [
        (None, 600.0),
        ("r1", 1000.0),
        (None, 1400.0),
        ("r2", 600.0),
    ]


def test_an_instance_that_still_runs_is_billed_until_now() -> None:
    assert amount(charges([rental(ended=None)], [price(0.36)], [], START + 10)).spot_microusd == 1000


def test_a_clock_that_jumped_back_bills_nothing_and_breaks_nothing() -> None:
    assert charges([rental(launched=100, ended=40)], [price(0.3)], [run("r1", 50, 20)], START) == ()
    assert charges([rental(launched=100, ended=None)], [price(0.3)], [], START + 50) == ()


def test_a_rental_without_a_price_is_on_the_bill_and_says_so() -> None:
    ledger = charges([rental("n1"), rental("n2", zone="b")], [price(0.36)], [], START)

    found = bill(ledger, [])

    assert found.price_sources == ("job file", "unknown, so counted as nothing")
    by_node = dict(found.by_node)
    assert by_node["n2"].seconds == by_node["n1"].seconds
    assert by_node["n2"].spot_microusd == 0 < by_node["n1"].spot_microusd


def test_a_sum_says_that_its_price_on_demand_is_an_estimate() -> None:
    called = "an estimate of 2026-11-30"
    guessed = price(0.36, zone="b")._replace(price_source=f"live, on demand: {called}")
    ledger = charges([rental("n1"), rental("n2", zone="b"), rental("n3", zone="b")], [price(0.36), guessed], [], START)

    by_node = dict(bill(ledger, []).by_node)

    assert amount(ledger).on_demand_note == by_node["n3"].on_demand_note == called
    assert by_node["n1"].on_demand_note == ""
    assert f"on demand $3.00 ({called}), 64% saved" in total_line(amount(ledger))


def test_the_report_says_what_a_step_a_million_samples_and_the_pauses_cost() -> None:
    ledger = charges([rental("n1"), rental("n2")], [price(0.30)], [run("r1", 0, 3600)], START)
    facts = RunFacts(
        run_id="r1", num_steps=100, num_samples=3_000_000, num_tokens=0, wall_s=3600, pause_s=360, steps_rerun=50
    )

    (of_run,) = bill(ledger, [facts]).runs

    assert of_run.microusd_per_step == 6000.0
    assert of_run.microusd_per_million_samples == 200_000.0
    assert of_run.microusd_per_million_tokens is None
    assert of_run.pause_microusd == 60_000.0
    assert of_run.rerun_microusd == pytest.approx(540_000.0 * 50 / 150)
    assert of_run.amount.saved_share == pytest.approx(0.7)


def test_a_cluster_that_never_rented_has_an_empty_bill() -> None:
    empty = bill((), [RunFacts(run_id="r1", num_steps=0, num_samples=0, num_tokens=0, wall_s=0, pause_s=0)])

    assert empty.total == empty.idle == amount(())
    assert empty.total.saved_share is None and empty.runs[0].microusd_per_step is None


# --- whatever happened ----------------------------------------------------------------------------------------------

instants = st.floats(0, 10_000, allow_nan=False)
ends = st.none() | instants
zones = st.sampled_from(["a", "b"])
rentals = st.lists(st.tuples(zones, instants, ends), max_size=6).map(
    lambda facts: [rental(f"n{i}", zone, launched, ended) for i, (zone, launched, ended) in enumerate(facts)]
)
market = st.lists(st.tuples(zones, instants, st.floats(0, 50)), max_size=6).map(
    lambda facts: [price(0.3), price(0.4, zone="b"), *(price(usd, at=at, zone=zone) for zone, at, usd in facts)]
)
run_intervals = st.lists(instants, max_size=8, unique=True).map(
    lambda edges: [
        run(f"r{i}", started, ended)
        for i, (started, ended) in enumerate(zip(sorted(edges)[0::2], sorted(edges)[1::2], strict=False))
    ]
)
now = st.floats(0, 20_000).map(lambda seconds: START + seconds)


@given(rentals, market, run_intervals, now)
def test_sums_by_any_grouping_agree_exactly(
    rented: list[Rental], prices: list[Price], runs: list[RunInterval], until: float
) -> None:
    ledger = charges(rented, prices, runs, until)
    facts = [RunFacts(run_id=r.run_id, num_steps=1, num_samples=1, num_tokens=1, wall_s=1, pause_s=0) for r in runs]
    summed = bill(ledger, facts)

    for group in (summed.by_zone, summed.by_type, summed.by_node, summed.by_day, summed.by_cluster):
        assert sum(part.spot_microusd for _, part in group) == summed.total.spot_microusd
        assert sum(part.on_demand_microusd for _, part in group) == summed.total.on_demand_microusd
    by_run = sum(part.amount.spot_microusd for part in summed.runs)
    assert by_run + summed.idle.spot_microusd == summed.total.spot_microusd


@given(rentals, market, run_intervals, now)
def test_charges_of_an_instance_neither_overlap_nor_leave_a_second_out(
    rented: list[Rental], prices: list[Price], runs: list[RunInterval], until: float
) -> None:
    by_instance: dict[str, list[Charge]] = defaultdict(list)
    for charge in charges(rented, prices, runs, until):
        by_instance[charge.instance_id].append(charge)

    for one in rented:
        parts, end = by_instance[one.instance_id], until if one.ended_at is None else one.ended_at
        if end <= one.launched_at:
            assert parts == []
        else:
            assert (parts[0].from_at, parts[-1].to_at) == (one.launched_at, end)
            assert all(before.to_at == after.from_at for before, after in itertools.pairwise(parts))
            assert all(part.to_at > part.from_at for part in parts)


@given(rentals, market, run_intervals, now)
def test_rounding_never_costs_more_than_half_a_micro_dollar_a_charge(
    rented: list[Rental], prices: list[Price], runs: list[RunInterval], until: float
) -> None:
    for charge in charges(rented, prices, runs, until):
        exact = paid_second_by_second(prices, charge)
        assert abs(charge.spot_microusd - exact) <= Fraction(1, 2)


def paid_second_by_second(prices: list[Price], charge: Charge) -> Fraction:
    """Micro-dollars; times in whole microseconds, as charges have them."""
    of_market = sorted((p for p in prices if p.zone == charge.zone), key=lambda p: p.from_at)
    starts = [round(p.from_at * 1e6) for p in of_market]
    begin, end = round(charge.from_at * 1e6), round(charge.to_at * 1e6)
    total = Fraction(0)
    for a, b in itertools.pairwise(sorted({begin, end, *(s for s in starts if begin < s < end)})):
        in_force = [p for p, s in zip(of_market, starts, strict=True) if s <= a] or of_market[:1]
        total += Fraction((b - a) * in_force[-1].spot_microusd_per_hour, 3600 * 10**6)
    return total


# --- by day, and what a run's money was for ------------------------------------------------------------------------


def test_days_add_up_to_the_total_and_a_run_across_midnight_is_on_both() -> None:
    zone = ZoneInfo("Europe/Berlin")
    begin = datetime(2026, 10, 24, 22, tzinfo=zone).timestamp()  # the night in which an hour comes twice
    one = Rental(
        instance_id="i", node_id="n1", zone="a", instance_type="t", launched_at=begin, ended_at=begin + 30 * 3600
    )
    across = RunInterval(run_id="r1", started_at=begin, ended_at=None)
    prices = [price(0.36)._replace(from_at=begin), price(0.72)._replace(from_at=begin + 1800)]
    ledger = charges([one], prices, [across], begin + 1e6, cuts=midnights(begin, begin + 1e6, zone))

    found = bill(ledger, [facts("r1", 10)], zone=zone)

    assert [(day, amount.seconds / 3600) for day, amount in found.by_day] == [
        ("2026-10-24", 2.0),
        ("2026-10-25", 25.0),
        ("2026-10-26", 3.0),
    ]
    assert [amount.spot_microusd for _, amount in found.by_day] == [180_000 + 1_080_000, 25 * 720_000, 3 * 720_000]
    assert sum(amount.spot_microusd for _, amount in found.by_day) == found.total.spot_microusd
    assert found.runs[0].amount == found.total


def test_what_lies_in_a_period_and_what_does_not_is_all_there_is() -> None:
    since, until = START + 1000, START + 2500
    ledger = charges([rental()], [price(0.36)], [run("r1", 600, 3000)], START + 9999, cuts=[since, until])

    inside = within(ledger, since, until)

    assert [(charge.from_at, charge.to_at) for charge in inside] == [(since, until)]
    outside = [*within(ledger, 0, since), *within(ledger, until, START + 9999)]
    assert amount(inside).spot_microusd + amount(outside).spot_microusd == amount(ledger).spot_microusd


def test_nodes_without_a_stage_are_told_from_the_first_plan_on() -> None:
    placings = (
        Placing(at=START + 100, node_ids=frozenset({"n1"})),
        Placing(at=START + 700, node_ids=frozenset({"n1", "n2"})),
    )
    cuts = [placing.at for placing in placings]
    ledger = charges([rental("n1"), rental("n2")], [price(0.36)], [run("r1", 0, 3600)], START + 9999, cuts=cuts)

    (of_run,) = bill(ledger, [replace(facts("r1", 10), placings=placings)]).runs

    assert of_run.stageless_microusd == 600 * 100


def test_the_same_work_on_demand_is_undisturbed_steps_on_all_nodes_that_had_a_stage() -> None:
    placings = (Placing(at=START, node_ids=frozenset({"n1", "n2"})),)
    ledger = charges([rental(f"n{i}") for i in (1, 2, 3)], [price(0.36)], [run("r1", 0, 3600)], START + 9999)
    known = replace(facts("r1", 100), placings=placings, usual_step_s=18.0)

    (of_run,) = bill(ledger, [known]).runs

    assert of_run.same_work_microusd == pytest.approx(100 * 18.0 * 2 / 3600 * 1e6)  # half an hour of two at $1
    assert bill(ledger, [replace(known, usual_step_s=0.0)]).runs[0].same_work_microusd is None


def test_a_run_that_goes_on_is_projected_at_its_pace_and_the_price_of_now() -> None:
    ledger = charges([rental(ended=None)], [price(0.36)], [run("r1", 0, None)], START + 3600)
    going = replace(facts("r1", 100), wall_s=3600.0, steps_left=50)

    found = bill(ledger, [going], microusd_per_hour=360_000)

    projected = found.runs[0].projection
    assert projected is not None
    assert (projected.hours_left, projected.total_microusd) == (0.5, 360_000 + 180_000)
    assert bill(ledger, [facts("r1", 100)]).runs[0].projection is None


def test_a_clock_that_was_put_back_to_before_the_run_projects_nothing() -> None:
    ledger = charges([rental(ended=None)], [price(0.36)], [run("r1", 0, None)], START - 3600)
    going = replace(facts("r1", 100), wall_s=-3600.0, steps_left=50)

    (of_run,) = bill(ledger, [going], microusd_per_hour=360_000).runs

    assert of_run.projection is None and of_run.amount == amount(())


def test_a_node_that_is_launched_again_at_another_price_pays_each_for_its_time() -> None:
    first, again = rental("n1", ended=1000.0), rental("n1", zone="b", launched=2000.0)._replace(instance_id="i-2")
    ledger = charges([first, again], [price(0.36), price(0.72, zone="b")], [], START + 9999)

    (by_node,) = bill(ledger, []).by_node

    assert by_node[1].spot_microusd == 1000 * 100 + 1600 * 200


def facts(run_id: str, num_steps: int) -> RunFacts:
    return RunFacts(run_id=run_id, num_steps=num_steps, num_samples=1, num_tokens=0, wall_s=1.0, pause_s=0.0)


def test_very_many_nodes_are_told_one_by_one_only_when_asked_for() -> None:
    ledger = charges([rental("n1", ended=1000.0), rental("n2", ended=2000.0)], [price(0.36)], [], START + 9999)

    assert [name for name, _ in bill(ledger, [], most_nodes=2).by_node] == ["n1", "n2"]
    assert bill(ledger, [], most_nodes=1) == replace(bill(ledger, []), by_node=())
