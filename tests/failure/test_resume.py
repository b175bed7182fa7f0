"""A run that `bamboo down` stopped is gone on with, and ends with the bits of one that nobody stopped."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import PLAIN, Bamboo

pytestmark = pytest.mark.timeout(600)

STAGES = {"stages": 2}


def stopped_run(bamboo: Bamboo, job: Path) -> str:
    """Some steps of the job, then `down`; the run's id."""
    looking_on = bamboo.begin("run", job, "--yes")
    bamboo.until(lambda: bamboo.committed_steps() > 3, "some steps")

    down = bamboo.call("down", "--yes")

    run = bamboo.active_run()
    assert run is not None and run.state == "stopped", bamboo.story()
    assert run.checkpoint_step is not None and run.checkpoint_step < 100
    assert f"--resume {run.run_id}" in down.stdout
    assert f"--resume {run.run_id}" in bamboo.call("status").stdout
    assert f"--resume {run.run_id}" in looking_on.end().stderr
    return run.run_id


@pytest.mark.timeout(600)
def test_a_stopped_run_goes_on_with_the_bits_of_an_undisturbed_one(
    bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    """Given a run that was stopped, gone on with, and stopped again, when it goes on, then its bits are verified."""
    job = bamboo.paced(**STAGES)
    first = stopped_run(bamboo, job)

    resumed = bamboo.begin("run", job, "--yes", "--json", "--resume", first)
    bamboo.until(lambda: (run := bamboo.active_run()) is not None and run.run_id != first, "the other run")
    bamboo.until(lambda: bamboo.committed_steps() > 3, "it to begin behind the checkpoint")
    bamboo.call("down", "--yes")
    stopped = resumed.end().summary
    assert stopped["samples"] < 16 * stopped["steps"], "the first steps were not done again"

    bamboo.open_gate()
    found = bamboo.finish(bamboo.begin("run", job, "--yes", "--json", "--resume", "latest"))

    assert found["steps"] == PLAIN["steps"]
    assert found["weights_sha256"] == undisturbed(**PLAIN, **STAGES)
    (bill,) = json.loads(bamboo.call("cost", "--json").stdout)["runs"]
    assert bill["microusd_per_step"] == pytest.approx(bill["amount"]["spot_microusd"] * 16 / found["samples"], abs=1)
    verified = bamboo.call("verify")
    assert verified.exit_code == 0, verified.stdout + verified.stderr
    nothing_left = bamboo.call("run", job, "--yes", "--resume", "latest")
    assert (nothing_left.exit_code, "has done 200 steps" in nothing_left.stderr) == (2, True)


def test_a_run_whose_cluster_is_forgotten_goes_on_from_its_checkpoints(
    bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    url = (bamboo.folder / "kept").as_uri()
    job = bamboo.paced(**STAGES, checkpoint={"every": 50, "url": url})
    run_id = stopped_run(bamboo, job)
    shutil.rmtree(bamboo.cluster_dir)

    assert bamboo.call("up", job, "--yes").exit_code == 0
    bamboo.open_gate()
    found = bamboo.finish(bamboo.begin("train", job, "--json", "--resume", run_id))
    assert bamboo.call("down", "--yes").exit_code == 0

    assert found["samples"] < 16 * found["steps"]
    assert found["weights_sha256"] == undisturbed(**PLAIN, **STAGES)
    assert found["checkpoint_url"] == f"{url}/{found['run_id']}"
