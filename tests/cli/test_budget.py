"""Limits of a job: refused before anything is rented, or an order to stop with an exit code of its own."""

import asyncio
import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from bamboo_cli.budget_check import check_budget
from bamboo_cli.coordinator import spending, store
from bamboo_cli.coordinator.events import SpentSoFar
from bamboo_cli.coordinator.known import entities
from bamboo_cli.coordinator.run_entities import Run
from bamboo_cli.coordinator.settings import Budget
from bamboo_cli.errors import UsageError
from bamboo_cli.job_file import load_job
from tests.cli import ledger_file
from tests.cluster import PLAIN, Bamboo
from tests.waiting import until

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


def test_a_run_whose_time_is_up_is_saved_and_can_be_gone_on_with(bamboo: Bamboo) -> None:
    ended = bamboo.call(
        "run", bamboo.job(**{**PLAIN, "steps": 100_000, "stages": 2, "max_hours": 0.003}), "--yes", "--json"
    )

    assert ended.exit_code == 4, ended.stderr
    summary = json.loads(ended.stdout.splitlines()[-1])
    assert summary["state"] == "stopped"
    assert re.match(r"budget: 1\d\d% of `max_hours` 0.003 is over", summary["reason"]), summary["reason"]
    assert summary["checkpoint_step"] == summary["steps"] - 1 >= 0
    assert "of `max_hours` 0.003 is over: run" in bamboo.story()
    assert "--resume" in ended.stderr


def test_the_ledger_is_looked_at_while_a_run_with_a_limit_of_money_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not for a run without one, nor for none."""
    monkeypatch.setattr(spending, "LOOK_S", 0.001)
    path = ledger_file.make(tmp_path / "c", begin=NOW, days=1, num_nodes=2, prices_a_day=1, num_steps=10)
    readers, heard, looks = store.open_for_reading(path), [], []

    async def story(limit: int | None) -> None:
        stored = _run(path)
        run = replace(stored, spec=replace(stored.spec, budget=Budget(max_microusd=limit)))

        def active() -> Run:
            looks.append(run)
            return run

        watch = asyncio.create_task(spending.watch(active, readers, lambda: NOW + 86_400.0, heard.append))
        begun = len(looks)
        await until(lambda: len(looks) > begun + 2, "some looks")
        watch.cancel()

    asyncio.run(story(None))
    assert heard == []
    asyncio.run(story(10**9))
    readers.dispose()
    assert heard[0] == SpentSoFar(run_id="r0", microusd=2 * 23 * 300_000), "two nodes, 23 hours each"


def _run(path: Path) -> Run:
    engine = store.open_for_reading(path)
    with store.reading(engine) as connection:
        (run,) = entities(connection).runs
    engine.dispose()
    return run
