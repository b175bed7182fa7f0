"""At the end of a run, the losses on purpose that never came about are told."""

from dataclasses import replace
from pathlib import Path

import pytest
from bamboo_trainer.drill import Claims
from bamboo_trainer.plan import NodeId

from bamboo_cli import jobs
from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.settings import ClusterConfig, RunSpec
from bamboo_cli.job_file import load_job
from bamboo_cli.missed_drills import missed
from tests.coordinator.small_world import World

JOB = """\
name: tiny
steps: 10
global_batch_size: 8
microbatch_size: 2
drill:
  - {step: 4, stage: 0, action: 1F0}
  - {step: 2, node: n7, notice: false}
  - {step: 1, node: n2, action: REDUCE}
  - {step: 3, stage: 1, notice: false}
"""


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    (tmp_path / "job.yaml").write_text(JOB)
    return jobs.run_spec(load_job(tmp_path / "job.yaml"), "tiny-1", (tmp_path / "checkpoints").as_uri())


def test_kills_that_were_claimed_have_struck(spec: RunSpec) -> None:
    claims = Claims(spec.training.checkpoint_url)
    assert claims.taken() == frozenset()
    claims.take(1)

    assert missed(spec, (0, 1), claims.taken()) == ("step 4, 1F0 on the host of stage 0 of pipeline 0",)


def test_a_preemption_of_a_node_that_never_was_has_not_struck(spec: RunSpec) -> None:
    """Given n7, which never was, and the host of stage 1, which the cloud takes."""
    spec = replace(spec, training=replace(spec.training, kills=(), checkpoint_every=5))
    world = World(ClusterConfig(cluster_id="c", num_nodes=2, zones=("a",)))
    world.handle(ev.Started())
    world.handle(ev.RequestMade(request_id=1, request=ev.StartRun(spec=spec)))
    world.pump()

    run = world.machine.board.run
    assert run is not None
    assert missed(spec, run.drills_struck, ()) == ("step 2 on n7",)
    assert NodeId("n3") in world.nodes, "the other one struck"
