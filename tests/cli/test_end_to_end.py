"""The real thing: commands, coordinator, local cloud, agents, workers. Each test ends with nothing left running."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.timeout(300)

JOB = """\
name: e2e
recipe: mlp
steps: 40
stages: 2
global_batch_size: 8
microbatch_size: 2
lease_s: 5
local: {boot_delay_s: 0, notice_s: 5}
"""

DIVERGING_RECIPE = """\
from dataclasses import replace

import torch
from bamboo_trainer.models import mlp


def recipe():
    ordinary = mlp.recipe()
    return replace(ordinary, learning_rate=lambda step: float("inf") if step == 5 else 1e-3)
"""


class Bamboo:
    """Commands in a home of their own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.job = folder / "job.yaml"
        self.environment: Mapping[str, str] = {**os.environ, "BAMBOO_HOME": str(self.home)}

    def __call__(self, *arguments: str, timeout_s: float = 100.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bamboo_cli.main", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            env=self.environment,
        )

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "bamboo_cli.main", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=self.environment,
        )

    def left(self) -> list[str]:
        """Command lines of everything that was started from this home, the local cloud's daemon aside."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("BAMBOO_HOME") == str(self.home):
                    found.append(" ".join(process.cmdline()))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return [line for line in found if line and "local_cloud" not in line]


@pytest.fixture
def bamboo(tmp_path: Path) -> Iterator[Bamboo]:
    made = Bamboo(tmp_path)
    made.job.write_text(JOB)
    yield made
    for process in psutil.process_iter():
        try:
            if process.environ().get("BAMBOO_HOME") == str(made.home):
                process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def wait_until(holds: Callable[[], bool], deadline_s: float = 60.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def kill_coordinator(cluster_dir: Path) -> None:
    coordinator = psutil.Process(int((cluster_dir / "coordinator.lock").read_text()))
    coordinator.kill()
    psutil.wait_procs([coordinator], timeout=10)


def test_run_ends_with_one_json_object_and_nothing_left(bamboo: Bamboo) -> None:
    """Given a job with a noticed preemption, when run, then the last line has all that a script wants to know."""
    bamboo.job.write_text(JOB + "drill:\n  - {step: 12, stage: 1, notice: true}\n")

    done = bamboo("run", str(bamboo.job), "--yes", "--json")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["state"] == "done"
    assert (found["steps"], found["samples"], found["preemptions"], found["steps_rerun"]) == (40, 320, 1, 0)
    assert found["reconfigurations"] >= 1
    assert len(found["weights_sha256"]) == 64
    assert 0 < found["cost_usd"] < found["on_demand_usd"]
    assert Path(found["model_url"].removeprefix("file://")).stat().st_size > 0
    assert {"run_id", "final_loss", "first_loss", "failovers", "restores", "pause_s", "checkpoint_url"} <= set(found)
    assert bamboo.left() == []

    bill = json.loads(bamboo("cost", "--json").stdout)
    assert sum(amount["spot_microusd"] for _, amount in bill["by_node"]) == bill["total"]["spot_microusd"]
    story = json.loads(bamboo("events", "--json", "--run", found["run_id"]).stdout)
    assert any("notice" in event["text"] for event in story)
    status = json.loads(bamboo("status", "--json").stdout)
    assert (status["state"], status["run"]["run_id"]) == ("closed", found["run_id"])


def test_a_run_that_fails_ends_with_1_its_reason_and_nothing_left(bamboo: Bamboo) -> None:
    (bamboo.job.parent / "diverging.py").write_text(DIVERGING_RECIPE)
    bamboo.job.write_text(JOB.replace("recipe: mlp", "recipe: diverging.py"))

    done = bamboo("run", str(bamboo.job), "--yes", "--json")

    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["state"] == "failed"
    assert "failed" in done.stderr
    assert "bamboo events" in done.stderr
    assert "Traceback" not in done.stderr
    assert bamboo.left() == []


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ("def recipe():\n    raise RuntimeError('out of ideas')\n", "out of ideas"),
        ("import no_such_module\n", "no_such_module"),
        ("def recipe(depth: int):\n    return depth\n", "depth"),
    ],
)
def test_a_recipe_that_cannot_be_trained_is_told_before_anything_is_rented(
    bamboo: Bamboo, recipe: str, told: str
) -> None:
    (bamboo.job.parent / "broken.py").write_text(recipe)
    bamboo.job.write_text(JOB.replace("recipe: mlp", "recipe: broken.py"))

    done = bamboo("run", str(bamboo.job), "--yes")

    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "Nothing was rented." in done.stderr
    assert not bamboo.home.exists()


def test_more_stages_than_layers_are_refused_before_anything_is_rented(bamboo: Bamboo) -> None:
    done = bamboo("up", str(bamboo.job), "--yes", "--set", "stages=20")

    assert done.returncode == 2
    assert "cannot be cut into 20 stages" in done.stderr
    assert not bamboo.home.exists()


def test_a_cluster_lives_on_between_commands_and_through_the_death_of_its_coordinator(bamboo: Bamboo) -> None:
    """Given a run that was detached from, when the coordinator is killed and the state file is damaged, then `up`
    starts another one, training goes on, and `down` gives everything back even with the state file in ruins."""
    assert bamboo("up", str(bamboo.job), "--yes").returncode == 0
    looking_on = bamboo.start("train", str(bamboo.job), "--set", "steps=100000")
    cluster_dir = bamboo.home / "clusters" / "e2e"

    def steps() -> int:
        run = json.loads(bamboo("status", "--json").stdout)["run"]
        return run["committed_steps"] if run else 0

    wait_until(lambda: steps() > 5)
    refused = bamboo("run", str(bamboo.job), "--yes")
    assert refused.returncode == 1
    assert "cluster e2e is up already" in refused.stderr

    looking_on.send_signal(signal.SIGINT)
    assert "detached; run e2e-" in looking_on.communicate(timeout=30)[1]
    assert looking_on.returncode == 130

    kill_coordinator(cluster_dir)
    assert "no coordinator is running" in bamboo("status").stdout
    before = steps()
    assert bamboo("up", str(bamboo.job), "--yes").returncode == 0
    wait_until(lambda: steps() > before + 5)

    kill_coordinator(cluster_dir)
    for file in cluster_dir.glob("state.db*"):
        file.write_bytes(b"this is no database any more" * 1000)
    status = bamboo("status")
    assert status.returncode == 1
    assert "state.db is damaged" in status.stderr
    down = bamboo("down", "--yes")
    assert down.returncode == 0, down.stderr
    assert "nothing is left" in down.stdout
    assert bamboo.left() == []
