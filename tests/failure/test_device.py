"""Real workers on a device with memory of its own end with the weights of those on the CPU, a loss in between."""

import sys
from pathlib import Path

from tests.cluster import Bamboo

JOB = {
    "recipe": "gpt2",
    "recipe_options": {"size": "tiny", "context": 16},
    "steps": 8,
    "stages": 2,
    "pipelines": 2,
    "checkpoint": {"every": 3},
    "digest_every": 2,
}
WORKER = Path(__file__).parents[1] / "device" / "worker.py"


def test_a_run_with_a_kill_has_the_bits_of_the_cpu(bamboo: Bamboo) -> None:
    plain = bamboo.run(**JOB)
    bamboo.environment["BAMBOO_WORKER_COMMAND"] = f"{sys.executable} {WORKER}"

    found = bamboo.run(drill=[{"step": 4, "pipeline": 1, "stage": 1, "action": "1B2"}], **JOB)

    logs = [log.read_text() for log in (bamboo.home / "local-cloud" / "instances").glob("*/worker.log")]
    assert sum("on a device in Python" in log for log in logs) >= 4, "the workers of the second run"
    assert (plain["failovers"], found["failovers"]) == (0, 1), bamboo.story()
    assert found["weights_sha256"] == plain["weights_sha256"]


def test_a_device_that_fails_is_a_loss_and_the_run_goes_on(bamboo: Bamboo, tmp_path: Path) -> None:
    flag = tmp_path / "has failed"
    recipe = Path(__file__).parent / "failing_recipe.py"

    found = bamboo.run(recipe=str(recipe), recipe_options={"flag": str(flag), "calls": 20}, steps=16, stages=2)

    assert flag.exists()
    assert found["failovers"] == 1, bamboo.story()
    assert "exit code 4" in bamboo.story()
