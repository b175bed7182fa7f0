"""The bill adds up, whatever happened."""

import itertools
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_cli.costs.ledger import Charge, Price, Rental, RunInterval, charges, microusd
from bamboo_cli.costs.report import RunFacts, amount, bill
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
    (charge,) = charges([replace(rental(), is_spot=False)], [price(0.30)], [], START + 9999)

    assert charge.spot_microusd == charge.on_demand_microusd == 1_000_000


def test_a_price_that_changes_in_mid_hour_counts_from_then_on() -> None:
    ledger = charges([rental()], [price(0.30), price(0.60, at=1800)], [], START + 9999)

    assert [(charge.seconds, charge.spot_microusd) for charge in ledger] == [(1800.0, 150_000), (1800.0, 300_000)]


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
    guessed = replace(price(0.36, zone="b"), price_source=f"live, on demand: {called}")
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

    for group in (summed.by_zone, summed.by_type, summed.by_node):
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
        exact = charge.seconds * charge.spot_microusd_per_hour / 3600
        assert abs(charge.spot_microusd - exact) <= 0.5 + charge.spot_microusd_per_hour * 1e-6 / 3600 + 1e-6
