"""``bamboo cost``: what it asks for and how it is put out."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli import ledger_file
from tests.cli.command import bamboo

BEGIN = 1_760_000_000.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name, nodes in (("first", 2), ("second", 3)):
        folder = tmp_path / "clusters" / name
        ledger_file.make(folder, begin=BEGIN, days=3, num_nodes=nodes, prices_a_day=4, num_steps=60, num_runs=2)
    return tmp_path


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


def test_the_report_is_a_web_page_too(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "cost.html"
    done = bamboo("cost", "--all", "--html", str(page), home=home)

    assert done.returncode == 0 and str(page) in done.stderr and done.stdout == ""
    assert "<html>" in page.read_text() and "g5.xlarge" not in page.read_text() and "total" in page.read_text()
    refused = bamboo("cost", "--all", "--html", str(tmp_path / "no" / "cost.html"), home=home)
    assert refused.returncode == 2 and "cannot be written" in refused.stderr


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


def test_a_machine_without_clusters_says_so(tmp_path: Path) -> None:
    done = bamboo("cost", "--all", home=tmp_path)

    assert done.returncode == 1 and "bamboo up" in done.stderr
