"""A job, and a coordinator's machine that trains it, without any process."""

from pathlib import Path

import pytest

from bamboo_cli import jobs
from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.settings import ClusterConfig
from bamboo_cli.job_file import load_job
from bamboo_cli.recipe_file import recipe_digest
from tests.coordinator.small_world import World

JOB = "name: tiny\nsteps: 10\nglobal_batch_size: 8\nmicrobatch_size: 2\nrecipe: mine.py\ndrill: [{step: 3, stage: 1}]\n"


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text("from bamboo_trainer.models.mlp import recipe\n")
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


@pytest.fixture
def world(job_file: Path) -> World:
    """A coordinator's machine that has the run of that job under way."""
    world = World(ClusterConfig(cluster_id="c", num_nodes=2, zones=("a",)))
    job = load_job(job_file, ())
    spec = jobs.run_spec(job, "tiny-1", "file:///checkpoints/tiny-1", recipe_digest(job.recipe))
    world.handle(ev.Started())
    world.handle(ev.RequestMade(request_id=1, request=ev.StartRun(spec=spec)))
    world.pump(training=False)
    assert world.step()
    return world
