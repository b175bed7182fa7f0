"""The real thing: commands, coordinator, local cloud, agents, workers. Each test ends with nothing left running."""

import json
import signal
import sysconfig
import venv
from pathlib import Path

import psutil
import pytest
from bamboo_trainer.manifest import MANIFEST_FILE, step_folder

from bamboo_cli.coordinator.lock import owner
from tests.cluster import NAME, Bamboo

pytestmark = pytest.mark.timeout(300)

TWO_STAGES = {"stages": 2, "steps": 40, "lease_s": 5.0}

DIVERGING_RECIPE = """\
from dataclasses import replace

import torch
from bamboo_trainer.models import mlp


def recipe():
    ordinary = mlp.recipe()
    return replace(ordinary, learning_rate=lambda step: float("inf") if step == 5 else 1e-3)
"""


def kill_coordinator(cluster_dir: Path) -> None:
    pid = owner(cluster_dir)
    assert pid is not None
    coordinator = psutil.Process(pid)
    coordinator.kill()
    psutil.wait_procs([coordinator], timeout=10)


def test_run_ends_with_one_json_object_and_nothing_left(bamboo: Bamboo) -> None:
    """Given a job with a noticed preemption, when run, then the last line has all that a script wants to know."""
    bamboo.environment.clear()  # no nursery but the local cloud's own
    found = bamboo.run(**TWO_STAGES, nodes=3, drill=[{"step": 6, "stage": 1, "notice": True}])

    assert found["state"] == "done"
    assert (found["steps"], found["samples"], found["preemptions"], found["steps_rerun"]) == (40, 640, 1, 0)
    assert found["reconfigurations"] >= 1
    assert len(found["weights_sha256"]) == 64
    assert 0 < found["cost_usd"] < found["on_demand_usd"]
    assert Path(found["model_url"].removeprefix("file://")).stat().st_size > 0
    assert {"run_id", "final_loss", "first_loss", "failovers", "restores", "pause_s", "checkpoint_url"} <= set(found)

    bill = json.loads(bamboo.call("cost", "--json").stdout)
    assert sum(amount["spot_microusd"] for _, amount in bill["by_node"]) == bill["total"]["spot_microusd"]
    story = json.loads(bamboo.call("events", "--json", "--run", found["run_id"]).stdout)
    assert any("notice" in event["text"] for event in story)
    status = json.loads(bamboo.call("status", "--json").stdout)
    assert (status["state"], status["run"]["run_id"]) == ("closed", found["run_id"])


def test_a_run_that_fails_ends_with_1_its_reason_and_nothing_left(bamboo: Bamboo) -> None:
    (bamboo.folder / "diverging.py").write_text(DIVERGING_RECIPE)
    job = bamboo.job(**TWO_STAGES, recipe="diverging.py", recipe_options={})

    done = bamboo.call("run", job, "--yes", "--json")

    assert done.exit_code == 1, done.stdout + done.stderr
    assert done.summary["state"] == "failed"
    assert "failed" in done.stderr
    assert "bamboo events" in done.stderr
    assert "Traceback" not in done.stderr


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
    (bamboo.folder / "broken.py").write_text(recipe)

    done = bamboo.call("run", bamboo.job(recipe="broken.py", recipe_options={}), "--yes")

    assert done.exit_code == 2, done.stderr
    assert told in done.stderr
    assert "Nothing was rented." in done.stderr
    assert not bamboo.home.exists()


def test_more_stages_than_layers_are_refused_before_anything_is_rented(bamboo: Bamboo) -> None:
    done = bamboo.call("up", bamboo.job(), "--yes", "--set", "stages=20")

    assert done.exit_code == 2
    assert "cannot be cut into 20 stages" in done.stderr
    assert not bamboo.home.exists()


def test_without_the_extra_for_training_it_is_told_how_to_install_it(bamboo: Bamboo) -> None:
    """Given an environment that has everything but torch."""
    bamboo.python = environment_without("torch", bamboo.folder / "environment")

    done = bamboo.call("run", bamboo.job(), "--yes")

    assert done.exit_code == 1
    assert "needs torch, which is not installed; nothing was rented" in done.stderr
    assert "pip install 'bamboo-train[train]'" in done.stderr
    assert not bamboo.home.exists()


def environment_without(package: str, folder: Path) -> Path:
    """Its interpreter. All other packages are those of this environment."""
    venv.create(folder, symlinks=True, with_pip=False)
    (found,) = folder.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name != package:
            (found / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def test_a_cluster_lives_on_between_commands_and_through_the_death_of_its_coordinator(bamboo: Bamboo) -> None:
    """Given a run that was detached from, when the coordinator is killed and the state file is damaged, then `up`
    starts another one, training goes on, and `down` gives everything back even with the state file in ruins."""
    job = bamboo.job(**TWO_STAGES)
    assert bamboo.call("up", job, "--yes").exit_code == 0
    looking_on = bamboo.begin("train", job, "--set", "steps=100000")

    bamboo.until(lambda: bamboo.committed_steps() > 5, "some steps")
    refused = bamboo.call("run", job, "--yes")
    assert refused.exit_code == 1
    assert f"cluster {NAME} is up already" in refused.stderr

    looking_on.child.send_signal(signal.SIGINT)
    detached = looking_on.end()
    assert f"detached; run {NAME}-" in detached.stderr
    assert detached.exit_code == 130

    kill_coordinator(bamboo.cluster_dir)
    assert "no coordinator is running" in bamboo.call("status").stdout
    before = bamboo.committed_steps()
    assert bamboo.call("up", job, "--yes").exit_code == 0
    bamboo.until(lambda: bamboo.committed_steps() > before + 5, "training to go on")

    kill_coordinator(bamboo.cluster_dir)
    for file in bamboo.cluster_dir.glob("state.db*"):
        file.write_bytes(b"this is no database any more" * 1000)
    status = bamboo.call("status")
    assert status.exit_code == 1
    assert "state.db is damaged" in status.stderr
    down = bamboo.call("down", "--yes")
    assert down.exit_code == 0, down.stderr
    assert "nothing is left" in down.stdout


def test_down_lets_a_run_save_its_last_step_first(bamboo: Bamboo, tmp_path: Path) -> None:
    url = tmp_path / "saved"
    job = bamboo.job(**TWO_STAGES, checkpoint={"url": str(url), "every": 1_000_000})
    assert bamboo.call("up", job, "--yes").exit_code == 0
    bamboo.begin("train", job, "--set", "steps=100000")
    bamboo.until(lambda: bamboo.committed_steps() > 5, "some steps")

    down = bamboo.call("down", "--yes")

    assert down.exit_code == 0, down.stderr
    last = bamboo.status().run.committed_steps - 1
    assert f"the checkpoint of step {last} is complete" in bamboo.story()
    assert [marker.parent.name for marker in url.rglob(MANIFEST_FILE)] == [step_folder(last)]
    assert bamboo.left() == []


@pytest.mark.parametrize(
    ("url", "exit_code", "told"),
    [
        ("no-such-store://bucket/runs", 2, "no-such-store"),
        ("/etc/hostname/runs", 2, "Not a directory"),
        ("/proc/nope", 2, "/proc/nope"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_place_for_checkpoints_that_cannot_be_used_is_told_before_anything_is_rented(
    bamboo: Bamboo, verb: str, url: str, exit_code: int, told: str
) -> None:
    done = bamboo.call(verb, bamboo.job(checkpoint={"url": url}), *(["--yes"] if verb == "run" else []))

    assert done.exit_code == exit_code, done.stderr
    assert told in done.stderr
    assert "nothing was rented" in done.stderr
    assert not bamboo.home.exists()


def test_a_store_whose_package_is_missing_says_what_to_install(bamboo: Bamboo) -> None:
    bamboo.python = environment_without("s3fs", bamboo.folder / "environment")

    done = bamboo.call("run", bamboo.job(checkpoint={"url": "s3://bucket/runs"}), "--yes")

    assert done.exit_code == 1
    assert "needs s3fs, which is not installed; nothing was rented" in done.stderr
    assert "pip install s3fs" in done.stderr
    assert not bamboo.home.exists()
