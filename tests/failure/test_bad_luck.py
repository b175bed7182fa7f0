"""A disk that is full, a folder that is in use, a recipe that breaks: what to do is said, nothing is lost or left."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import Bamboo

BREAKS_LATE = """
from dataclasses import replace
from bamboo_trainer.models import mlp

class Broken:
    def __init__(self, samples):
        self.samples, self.num_batches = samples, 0
    def __len__(self):
        return len(self.samples)
    def batch(self, ids):
        self.num_batches += 1
        if self.num_batches > 40:
            raise OSError("the shard with sample 17 is gone")
        return self.samples.batch(ids)

def recipe():
    plain = mlp.recipe()
    return replace(plain, dataset=Broken(plain.dataset))
"""


def test_a_recipe_that_raises_in_mid_training_ends_the_run_with_its_words(bamboo: Bamboo) -> None:
    (bamboo.folder / "broken.py").write_text(BREAKS_LATE, encoding="utf-8")

    outcome = bamboo.call("run", bamboo.job(recipe="broken.py", recipe_options={}, stages=2), "--yes")

    assert outcome.exit_code == 1
    assert "the shard with sample 17 is gone" in outcome.stderr
    assert "The newest complete checkpoint is of step" in outcome.stderr


def test_a_folder_in_use_is_not_used_twice(bamboo: Bamboo) -> None:
    command = bamboo.begin("run", bamboo.paced(stages=2), "--yes", "--json")
    bamboo.until(lambda: bamboo.committed_steps() > 0, "the training to be on")

    second = bamboo.call("run", bamboo.folder / "job.yaml", "--yes")

    assert second.exit_code == 1
    assert "is up already" in second.stderr and "bamboo down" in second.stderr
    bamboo.open_gate()
    summary = bamboo.finish(command)
    assert (summary["steps"], summary["steps_rerun"]) == (200, 0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Room for one checkpoint of the job, not for the second beside it."""
    folder = tmp_path / "small-disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=384k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk takes the right to mount one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_keeps_the_older_checkpoint_and_is_told(
    bamboo: Bamboo, small_disk: Path, undisturbed: Callable[..., str]
) -> None:
    checkpoint = {"url": str(small_disk), "every": 8, "keep": 1}

    outcome = bamboo.call("run", bamboo.job(stages=2, checkpoint=checkpoint), "--yes", "--json")

    assert outcome.exit_code == 1
    assert "No space left" in outcome.stderr
    assert "The newest complete checkpoint is of step 7" in outcome.stderr
    assert outcome.summary["steps"] == 24, "training itself went on"
    assert list(small_disk.glob("*/*")), "the older checkpoint is still there"
