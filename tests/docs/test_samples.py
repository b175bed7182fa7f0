"""What README.md and docs/ show can be typed as it stands there."""

import re
from pathlib import Path

import pytest
import yaml

from bamboo_cli.config import JobConfig
from bamboo_cli.job_file import load_job
from bamboo_cli.job_mistakes import leaf_keys
from tests.cluster import Bamboo, Command
from tests.docs import pages
from tests.docs.command_tree import group, parse
from tests.docs.pages import Block

RUNS = "runs"
"""In a comment right above a block of a page: its commands are run, those of one page after each other."""
TOUR = "runs on the local cloud"
ENDLESS = ("--watch", "--follow", "-f")
NO_KEYS = ("aws.py", "checkpoint.py", "local.py", "local.small")
"""Files, and the local cloud's type of instance."""
LEAST_JOB = {"name": "sample", "steps": 10, "global_batch_size": 16, "microbatch_size": 4}
RECIPES = [block for block in pages.blocks("python") if "\ndef recipe(" in block.text]
SHELL_BLOCKS = [block for block in pages.blocks(*pages.SHELL) if list(pages.commands(block.text))]


@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=str)
def test_commands_are_understood(block: Block) -> None:
    for arguments in pages.commands(block.text):
        parse(arguments)


def test_a_command_with_an_unknown_option_is_noticed() -> None:
    for arguments in pages.commands("AWS_PROFILE=me bamboo up job.yaml --yess && true  # as you like"):
        with pytest.raises(AssertionError, match=r"bamboo up job.yaml --yess: No such option"):
            parse(arguments)


@pytest.mark.parametrize("block", pages.blocks("yaml"), ids=str)
def test_job_files_are_valid(block: Block, tmp_path: Path) -> None:
    """A part of one together with what every job needs."""
    job = yaml.safe_load(block.text)
    path = tmp_path / "job.yaml"
    path.write_text(block.text if "name" in job else yaml.safe_dump(LEAST_JOB) + block.text)
    (tmp_path / "recipe.py").write_text("from bamboo_trainer.models.mlp import recipe\n")

    load_job(path, (), {})


@pytest.mark.parametrize("block", RECIPES, ids=str)
def test_recipes_can_be_trained(block: Block, tmp_path: Path) -> None:
    """As `bamboo plan` tries them: a microbatch is sent through all layers."""
    from bamboo_trainer.check import check_recipe
    from bamboo_trainer.control import TrainingSpec

    (tmp_path / "recipe.py").write_text(block.text)

    verdict = check_recipe(
        TrainingSpec(
            run_id="sample",
            recipe=str(tmp_path / "recipe.py"),
            recipe_options={},
            num_steps=1,
            num_microbatches=2,
            microbatch_size=4,
            seed=0,
            checkpoint_url="file:///nowhere",
            checkpoint_every=1,
        )
    )

    assert verdict.errors == ()


@pytest.mark.parametrize("block", pages.blocks("python"), ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


def test_keys_with_a_section_exist() -> None:
    """`aws.types`, `local.replace`, `checkpoint.url` … in the text."""
    known = {".".join(key[:depth]) for key in leaf_keys(JobConfig) for depth in range(1, len(key) + 1)}
    sections = "|".join({key.partition(".")[0] for key in known if "." in key})
    for page in pages.PAGES:
        for key in re.findall(rf"`(?:--set )?((?:{sections})\.[a-z_]+)", pages.read(page)):
            assert key in known or key in NO_KEYS, f"{page}: `{key}` is no key of a job"


@pytest.mark.parametrize("page", sorted({block.page for block in pages.blocks(*pages.SHELL, mark=RUNS)}))
def test_commands_that_are_marked_run(page: str, bamboo: Bamboo) -> None:
    """Without an account: nobody is asked for credentials, and a folder stands in for a bucket."""
    bucket = {"BAMBOO_CHECKPOINT__URL": (bamboo.folder / "bucket").as_uri()}
    bamboo.environment |= {"AWS_EC2_METADATA_DISABLED": "true"} | bucket
    for block in pages.blocks_of(page):
        if block.title:
            (bamboo.folder / block.title).write_text(block.text)
        if block.mark == RUNS:
            for arguments in pages.commands(block.text):
                done = bamboo.call(*arguments)
                assert done.exit_code == 0, f"{block}: bamboo {' '.join(arguments)}\n{done.stderr}"
                assert done.stdout, f"{block}: bamboo {' '.join(arguments)} says nothing"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("block", pages.blocks(*pages.SHELL, mark=TOUR), ids=str)
def test_the_tour_goes_as_it_is_told(block: Block, bamboo: Bamboo) -> None:
    """With real nodes. Nobody is there to answer or to press Ctrl-C; `train` is looked away from while others run."""
    bamboo.cluster = "my-job"
    assert bamboo.call("init", "my-job").exit_code == 0
    training: list[Command] = []
    for verb, *arguments in pages.commands(block.text):
        words = [verb, *(word for word in arguments if word not in ENDLESS), *(["--yes"] if asks(verb) else [])]
        if verb == "train":
            training.append(bamboo.begin(*words))
            bamboo.until(lambda: bamboo.committed_steps() >= 5, "the first steps")
            continue
        done = bamboo.call(*words)
        assert done.exit_code == 0, f"{block}: bamboo {' '.join(words)}\n{done.stderr}\n{bamboo.story()}"
        if verb == "preempt":
            bamboo.until(lambda: bamboo.events("failover"), "the failover")
        if verb == "down":
            bamboo.environment["BAMBOO_STEPS"] = str(bamboo.committed_steps() + 20)

    assert [command.end().exit_code for command in training] == [1]  # it was stopped, and says so
    assert "nothing is left running" in done.stdout.lower()


def asks(verb: str) -> bool:
    return any("--yes" in parameter.opts for parameter in group().commands[verb].params)
