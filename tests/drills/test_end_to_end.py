"""`bamboo drill` for real: a cluster of its own, both runs, the verdict; the fixture sees that nothing is left."""

import signal

import pytest

from bamboo_cli.coordinator.store import ClusterState
from tests.cluster import NAME, Bamboo

pytestmark = pytest.mark.timeout(400)

LEASE_S = 4.0

NOISY = """
import os
from dataclasses import replace
from functools import partial
import torch
from bamboo_trainer.models import mlp

class Noisy(torch.nn.Module):
    def __init__(self, build):
        super().__init__()
        self.inner = build()
    def forward(self, x):
        return self.inner(x) * (1 + os.urandom(1)[0] / 1000)

def recipe():
    plain = mlp.recipe()
    first, *others = plain.layers
    return replace(plain, layers=[first._replace(build=partial(Noisy, first.build)), *others])
"""


@pytest.fixture(autouse=True)
def drill_cluster(bamboo: Bamboo) -> None:
    bamboo.cluster = f"{NAME}-drill"


def test_a_protected_job_is_as_promised(bamboo: Bamboo) -> None:
    """Given shadows, then a notice is handed over, a kill and a hang are failed over, and the weights are the same."""
    job = bamboo.job(lease_s=LEASE_S, drill=[{"step": 5, "node": "n1"}], checkpoint={"url": str(bamboo.folder / "own")})

    done = bamboo.call(
        "drill", job, "--losses", "notice,kill-in-step,freeze", "--steps", "60", "--seed", "3", "--yes", "--json"
    )

    assert done.exit_code == 0, f"{done.stdout}\n{done.stderr}\n{bamboo.story()}"
    verdict, facts = done.summary["verdict"], done.summary["facts"]
    assert verdict["as_promised"] and verdict["broken"] == []
    rungs = [(loss["found"], loss["rung"], loss["steps_rerun"]) for loss in facts["losses"]]
    assert rungs == [
        ("notice", "handed over at a step boundary", 0),
        ("link broken", "failover by its shadow", 0),
        ("lease ran out", "failover by its shadow", 0),
    ]
    killed, frozen = facts["losses"][1:]
    assert killed["pause_s"] < LEASE_S < frozen["pause_s"]
    assert killed["pause_steps"] == pytest.approx(killed["pause_s"] / facts["usual_step_s"])
    assert facts["undisturbed"]["weights_sha256"] == facts["disturbed"]["weights_sha256"] is not None
    assert bamboo.status().state is ClusterState.CLOSED
    assert not (bamboo.folder / "own").exists(), "the job's own checkpoints are left alone"
    assert not (bamboo.cluster_dir / "checkpoints").exists()


@pytest.mark.soak
def test_without_protection_the_steps_run_again_are_told_and_are_no_broken_promise(bamboo: Bamboo) -> None:
    job = bamboo.job(redundancy="off", pipelines=1, stages=2, checkpoint={"every": 10})

    done = bamboo.call("drill", job, "--losses", "kill-in-step", "--steps", "60", "--yes")

    assert done.exit_code == 0, f"{done.stdout}\n{done.stderr}\n{bamboo.story()}"
    rerun = bamboo.status().run.steps_rerun  # type: ignore[union-attr]
    assert rerun > 0
    row = next(line for line in done.stdout.splitlines() if "kill-in-step at" in line)
    assert "restore from a checkpoint" in row and row.endswith(f" {rerun}")
    told = f"{rerun} step{'s' * (rerun > 1)} run again since the newest checkpoint, as this protection has it"
    assert told in done.stdout.splitlines()[-1]
    assert "goes back to the newest complete checkpoint" in done.stdout, "what is promised is said beforehand"


@pytest.mark.soak
def test_a_loss_that_never_shows_and_a_recipe_that_is_no_function_of_its_seed_are_told(bamboo: Bamboo) -> None:
    """Given links to cut where there are none, and a layer with noise of its own."""
    (bamboo.folder / "noisy.py").write_text(NOISY, encoding="utf-8")
    job = bamboo.job(recipe="noisy.py", recipe_options={}, stages=1, redundancy="off")

    done = bamboo.call("drill", job, "--losses", "cut", "--steps", "10", "--yes", "--json")

    assert done.exit_code == 1, done.stdout
    not_shown, weights = done.summary["verdict"]["broken"]
    assert "was not shown" in not_shown
    assert "the weights are not those of the undisturbed run" in weights
    assert f"error: Not as promised: {not_shown}" in done.stderr
    assert f"bamboo events --cluster {NAME}-drill" in done.stderr


def test_ctrl_c_gives_everything_back_even_when_it_is_pressed_twice(bamboo: Bamboo) -> None:
    drill = bamboo.begin("drill", bamboo.paced(stages=2), "--losses", "kill", "--steps", "100000", "--yes")
    bamboo.until(lambda: bamboo.committed_steps() > 2, "some steps")

    drill.child.send_signal(signal.SIGINT)
    bamboo.until(lambda: bamboo.status().state is not ClusterState.UP, "the cluster to be given back")
    drill.child.send_signal(signal.SIGINT)
    done = drill.end()

    assert done.exit_code == 130
    assert "Everything was given back." in done.stderr
    assert bamboo.status().state is ClusterState.CLOSED


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--steps", "7", "--yes"), "7 steps are too few for 4 losses"),
        (("--losses", "kil", "--yes"), "there is no kil"),
        ((), "Nobody can answer"),
    ],
)
def test_what_cannot_be_drilled_is_told_before_anything_is_started(
    bamboo: Bamboo, arguments: tuple[str, ...], told: str
) -> None:
    done = bamboo.call("drill", bamboo.job(), *arguments)

    assert done.exit_code == 2
    assert told in done.stderr
    assert not bamboo.home.exists()
