"""``bamboo cost``: what it asks for and how it is put out."""

import csv
import json
import random
import re
import shutil
import sqlite3
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from bamboo_trainer.arrangement import build_pipelines
from bamboo_trainer.control import LayerCost
from bamboo_trainer.partition import cut
from bamboo_trainer.plan import Member, Mode, Plan, PlanKind, WorkerId, node_id_of
from typer.testing import CliRunner

from bamboo_cli.commands.cost import Grouping
from bamboo_cli.errors import StateError
from bamboo_cli.main import app
from bamboo_cli.views.bill import run_bill_lines
from tests.cli import ledger_file
from tests.cli.command import bamboo
from tests.costs import test_ledger

BEGIN = 1_760_000_000.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name, nodes in (("first", 2), ("second", 3)):
        folder = tmp_path / "clusters" / name
        ledger_file.make(folder, begin=BEGIN, days=3, num_nodes=nodes, prices_a_day=4, num_steps=60, num_runs=2)
    return tmp_path


def plan_of(nodes: list[str], generation: int) -> Plan:
    """Of one pipeline and three layers, 4 microbatches."""
    workers = [WorkerId(f"{node}/1") for node in nodes]
    members = [Member(worker_id=w, node_id=node_id_of(w), address="", port=0) for w in workers]
    pipelines = build_pipelines([workers], [cut([1.0] * 3, len(nodes))], 4, Mode.OFF, 1)
    return Plan(
        generation=generation, kind=PlanKind.BOUNDARY, first_step=0, pipelines=pipelines, members=tuple(members)
    )


def cost(home: Path, *arguments: str) -> dict[str, Any]:
    done = bamboo("cost", *arguments, "--json", home=home, environment={"TZ": "Europe/Berlin"})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_all_clusters_are_the_sum_of_each_to_the_last_micro_dollar(home: Path) -> None:
    everything = cost(home, "--all")
    each = [cost(home, "--cluster", name) for name in ("first", "second")]

    assert everything["total"]["spot_microusd"] == sum(one["total"]["spot_microusd"] for one in each) > 0
    for grouping in ("by_day", "by_zone", "by_type", "by_node", "by_cluster"):
        assert sum(row[1]["spot_microusd"] for row in everything[grouping]) == everything["total"]["spot_microusd"]
    by_run = sum(run["amount"]["spot_microusd"] for run in everything["runs"]) + everything["idle"]["spot_microusd"]
    assert by_run == everything["total"]["spot_microusd"]
    assert len(everything["by_cluster"]) == 2 and len(everything["runs"]) == 4


def test_days_of_a_period_are_what_those_days_cost_before(home: Path) -> None:
    whole = cost(home, "--cluster", "first")
    (first, second, *_), run = whole["by_day"], whole["runs"][0]

    day = cost(home, "--cluster", "first", "--since", second[0], "--until", whole["by_day"][2][0])

    assert day["by_day"] == [second] and day["total"] == second[1]
    assert first[1] != second[1]
    part = next(one for one in day["runs"] if one["run_id"] == run["run_id"])
    assert part["amount"]["spot_microusd"] < run["amount"]["spot_microusd"]
    assert part["microusd_per_step"] == pytest.approx(run["microusd_per_step"], rel=0.1)


def test_a_copy_of_a_state_file_costs_nothing(home: Path) -> None:
    before = cost(home, "--all")
    folder = home / "clusters" / "first"
    shutil.copy(folder / "state.db", folder / "backup.db")
    shutil.copytree(folder, home / "clusters" / "first-old")

    done = bamboo("cost", "--all", "--csv", home=home)

    assert cost(home, "--all")["total"] == before["total"]
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert sum(int(row["spot_microusd"]) for row in rows) == before["total"]["spot_microusd"]
    assert done.stderr.count("is a copy of") == 3


@pytest.mark.parametrize(
    ("seed", "zone", "period"),
    [
        (1, "Europe/Berlin", ()),
        (2, "Australia/Lord_Howe", ("--since", "2025-10-10T12:34:56.789")),
        (3, "Africa/Cairo", ("--until", "2025-10-11")),
    ],
)
def test_all_forms_and_groupings_have_the_same_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, zone: str, period: tuple[str, ...]
) -> None:
    """Of clusters whose nodes were launched and ended at odd times, before they were launched, or run now."""
    chance = random.Random(seed)
    for name in ("one", "two"):
        nodes, prices = chance.randint(1, 4), chance.randint(1, 40)
        path = ledger_file.make(
            tmp_path / "clusters" / name,
            begin=BEGIN + chance.random() * 1e5,
            days=3,
            num_nodes=nodes,
            prices_a_day=prices,
            num_steps=30,
            num_runs=3,
        )
        with sqlite3.connect(path) as file:
            file.create_function("chance", 0, chance.random)
            file.execute("UPDATE instances SET launched_at = launched_at + 20000 * chance()")
            file.execute(
                "UPDATE instances SET ended_at = iif(chance() < 0.5, NULL, launched_at - 1) WHERE chance() < 0.2"
            )
            file.execute(
                "UPDATE prices SET from_at = from_at + 9999 * chance(), "
                "spot_microusd_per_hour = CAST(1e6 * chance() AS INTEGER)"
            )
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    monkeypatch.setenv("TZ", zone)
    monkeypatch.setattr(time, "time", lambda: BEGIN + 5e5)
    time.tzset()
    try:
        groupings = [word for one in Grouping for word in ("--by", one.value)]
        page, whole, lines, tables = (
            CliRunner().invoke(app, ["cost", "--all", *period, *form], catch_exceptions=False).stdout
            for form in (["--html", str(tmp_path / "page.html")], ["--json"], ["--csv"], groupings)
        )
    finally:
        monkeypatch.undo()
        time.tzset()

    found = json.loads(whole)
    spot = found["total"]["spot_microusd"]
    rows = list(csv.DictReader(lines.splitlines()))
    assert spot > 0 and sum(int(row["spot_microusd"]) for row in rows) == spot
    assert sum(run["amount"]["spot_microusd"] for run in found["runs"]) + found["idle"]["spot_microusd"] == spot
    for grouping in ("by_day", "by_zone", "by_type", "by_node", "by_cluster"):
        assert sum(amount["spot_microusd"] for _, amount in found[grouping]) == spot
    amounts = re.findall(r"^(\S+).*?\$([\d.]+) +\$[\d.]+ ", tables, re.MULTILINE)
    totals = [round(1e6 * float(usd)) for name, usd in amounts if name == "total"]
    assert totals == [spot] * len(Grouping)
    assert sum(round(1e6 * float(usd)) for _, usd in amounts) == 2 * sum(totals)
    assert page == "" and f"{spot / 1e6:.6f}" in (tmp_path / "page.html").read_text()


def test_the_lines_of_csv_add_up_to_the_total(home: Path) -> None:
    done = bamboo("cost", "--all", "--csv", home=home)
    rows = list(csv.DictReader(done.stdout.splitlines()))

    assert sum(int(row["spot_microusd"]) for row in rows) == cost(home, "--all")["total"]["spot_microusd"]
    assert {row["run_id"] for row in rows} == {"r0", "r1"} and {row["zone"] for row in rows} == {"a", "b", "c"}


def test_tables_are_those_that_were_asked_for(home: Path) -> None:
    done = bamboo("cost", "--all", "--by", "day", "--by", "cluster", home=home, environment={"TZ": "UTC"})
    lines = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]

    assert [word for word in lines if word in ("run", "day", "cluster", "zone", "type", "node")] == ["day", "cluster"]
    assert "2025-10-09" in lines and "█" in done.stdout


def test_a_year_is_told_by_months_unless_days_are_asked_for(tmp_path: Path) -> None:
    ledger_file.make(tmp_path / "clusters" / "year", begin=BEGIN, days=90, num_nodes=1, prices_a_day=1, num_steps=9)
    here = {"TZ": "Europe/Berlin"}
    rows = [line.split() for line in bamboo("cost", home=tmp_path, environment=here).stdout.splitlines() if line]
    months = [row[0] for row in rows if row[0].startswith("20")]
    days = bamboo("cost", "--by", "day", home=tmp_path, environment=here).stdout

    assert months == ["2025-10", "2025-11", "2025-12", "2026-01"]
    assert days.count("\n2025-11-") == 30
    total, *parts = (
        cost(tmp_path, "--since", since, "--until", until)["total"]["spot_microusd"]
        for since, until in (("2025-10-01", "2026-02-01"), ("2025-11-01", "2025-12-01"))
    )
    november = next(row for row in rows if row[0] == "2025-11")
    assert f"${parts[0] / 1e6:.6f}" in november and total > parts[0]


def test_the_report_is_a_web_page_too(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "cost.html"
    done = bamboo("cost", "--all", "--html", str(page), home=home)

    assert done.returncode == 0 and str(page) in done.stderr and done.stdout == ""
    assert "<html>" in page.read_text() and "g5.xlarge" not in page.read_text() and "total" in page.read_text()
    refused = bamboo("cost", "--all", "--html", str(tmp_path / "no" / "cost.html"), home=home)
    assert refused.returncode == 2 and "cannot be written" in refused.stderr


def test_what_the_latest_steps_meet_does_not_change_what_the_same_work_would_cost(tmp_path: Path) -> None:
    path = ledger_file.make(
        tmp_path / "clusters" / "slow",
        begin=BEGIN,
        days=1,
        num_nodes=1,
        prices_a_day=1,
        num_steps=1000,
        plans=[plan_of(["n1"], 1)],
    )
    (before,) = cost(tmp_path)["runs"]
    with sqlite3.connect(path) as file:
        file.execute("UPDATE steps SET step_s = step_s * 10 WHERE step >= 700")

    (after,) = cost(tmp_path)["runs"]

    assert after["same_work_microusd"] == before["same_work_microusd"] > 0


def test_disks_and_traffic_between_zones_are_estimated_beside_the_bill(tmp_path: Path) -> None:
    """Given 30 steps under a plan of stages on n1 (zone a), n2 (b), n3 (c), then 30 under one of n1 alone."""
    costs = tuple(
        LayerCost(name="", forward_s=1.0, backward_s=2.0, parameter_bytes=3_000_000, activation_bytes=10_000_000)
        for _ in range(3)
    )
    wide, lone = (plan_of(nodes, generation) for generation, nodes in ((1, ["n1", "n2", "n3"]), (2, ["n1"])))
    ledger_file.make(
        tmp_path / "clusters" / "cloudy",
        begin=BEGIN,
        days=1,
        num_nodes=3,
        prices_a_day=1,
        num_steps=60,
        cloud="aws",
        job={"aws": {"volume_gb": 100}},
        costs=costs,
        plans=[wide, replace(lone, first_step=30)],
    )

    found = cost(tmp_path)

    # 4 microbatches over two cuts, there and back
    assert found["crossing_bytes"] == 30 * 2 * 2 * 4 * 10_000_000
    assert found["crossing_microusd"] == found["crossing_bytes"] / 1e9 * 20_000
    assert found["disk_microusd"] == pytest.approx(3 * 23 * 100 / 730 * 80_000)
    noon = datetime.fromtimestamp(BEGIN + 12 * 3600, ZoneInfo("Europe/Berlin")).replace(tzinfo=None)
    half = cost(tmp_path, "--until", noon.isoformat())
    assert half["crossing_bytes"] == pytest.approx(found["crossing_bytes"] / 2, rel=0.1)
    assert "for 4.80 GB between zones" in bamboo("cost", home=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--since", "soon"), "'soon' is no time"),
        (("--since", "2026-01-02", "--until", "2026-01-01"), "ends before it begins"),
        (("--all", "--cluster", "first"), "do not go together"),
        (("--by", "moon"), "moon"),
        (("--csv", "--json"), "Only one of"),
    ],
)
def test_what_makes_no_sense_is_told(home: Path, arguments: tuple[str, ...], says: str) -> None:
    done = bamboo("cost", *arguments, home=home)

    assert done.returncode == 2 and says in done.stderr


@pytest.mark.parametrize("form", ["--json", "--csv", "--html"])
def test_a_damaged_state_file_hides_none_of_the_others(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Given one that is found to be damaged only when its money is read."""
    monkeypatch.setenv("BAMBOO_HOME", str(home))
    monkeypatch.setattr(time, "time", lambda: BEGIN + 5e5)
    page = tmp_path / "cost.html"
    file = [str(page)] if form == "--html" else []

    def put_out(*which: str) -> tuple[str, BaseException | None]:
        done = CliRunner().invoke(app, ["cost", *which, form, *file])
        return page.read_text() if file else done.stdout, done.exception

    whole, _ = put_out("--cluster", "second")
    damaged = home / "clusters" / "first" / "state.db"
    with sqlite3.connect(damaged) as database:
        database.execute("DROP TABLE prices")

    found, error = put_out("--all")

    assert found == whole
    assert isinstance(error, StateError) and "1 of 2 state files could not be read" in error.message
    assert str(damaged) in error.next_step


def test_a_machine_without_clusters_says_so(tmp_path: Path) -> None:
    done = bamboo("cost", "--all", home=tmp_path)

    assert done.returncode == 1 and "bamboo up" in done.stderr


@pytest.mark.parametrize(
    ("same_work_microusd", "says"),
    [(2_000_000.0, "about $2.00, 50% saved"), (800_000.0, "about $0.8000, which this run has cost 25% more than")],
)
def test_a_run_that_cost_more_than_on_demand_is_not_said_to_have_saved(same_work_microusd: float, says: str) -> None:
    ledger = test_ledger.charges(
        [test_ledger.rental()], [test_ledger.price(1.0)], [test_ledger.run("r1", 0, 3600)], test_ledger.START + 3600
    )
    (of_run,) = test_ledger.bill(ledger, [test_ledger.facts("r1", 10)]).runs
    assert of_run.amount.spot_microusd == 1_000_000

    lines = run_bill_lines(replace(of_run, same_work_microusd=same_work_microusd))

    assert lines[-1].endswith(says)
