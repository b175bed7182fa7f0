"""Limits of a job: refused before anything is rented, or an order to stop with an exit code of its own."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from bamboo_cli.budget_check import check_budget
from bamboo_cli.errors import UsageError
from bamboo_cli.job_file import load_job
from tests.cluster import Bamboo

NOW = 1_800_000_000.0


def test_a_limit_of_money_says_how_long_it_lasts_or_that_it_cannot_do(job_file: Path) -> None:
    assert check_budget(load_job(job_file, ()), 1.0, now=NOW) == ""
    job = load_job(job_file, ("max_cost_usd=1.5",))
    assert check_budget(job, 1.0, now=NOW) == "`max_cost_usd` 1.5 pays 2 nodes for about 1 h 30 min at that price"
    with pytest.raises(UsageError, match="for 54 s, and a minute is the least"):
        check_budget(job, 100.0, now=NOW)


def test_a_deadline_that_is_over_is_refused(job_file: Path) -> None:
    soon = datetime.fromtimestamp(NOW) + timedelta(minutes=1)
    job = load_job(job_file, (f"deadline={soon.isoformat()}",))
    assert check_budget(job, 1.0, now=NOW) == ""
    with pytest.raises(UsageError, match=r"`deadline` was 20\d\d-"):
        check_budget(job, 1.0, now=NOW + 61)


def test_a_run_that_has_spent_its_money_is_saved_and_can_be_gone_on_with(bamboo: Bamboo) -> None:
    """Two nodes at a dollar a second or so: the money lasts for seconds."""
    zones = [{"name": "a", "spot_usd_per_hour": 3600.0, "on_demand_usd_per_hour": 7200.0}]
    rich = {"steps": 100_000, "local": {"boot_delay_s": 0.0, "zones": zones}, "stages": 2, "max_cost_usd": 150.0}

    ended = bamboo.call("run", bamboo.job(**rich), "--yes", "--json")

    assert ended.exit_code == 4, ended.stderr
    summary = json.loads(ended.stdout.splitlines()[-1])
    assert summary["state"] == "stopped" and summary["reason"].startswith("budget: 1")
    assert "`max_cost_usd` 150 pays 2 nodes for about 1 min" in ended.stderr
    assert summary["checkpoint_step"] == summary["steps"] - 1 >= 0
    assert 150.0 <= summary["cost_usd"] < 300.0
    assert "will be stopped at all of it" in ended.stderr + bamboo.story()
