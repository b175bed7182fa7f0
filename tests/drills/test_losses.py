"""Which losses a drill meets: of every kind asked for, apart from each other, the same for the same seed."""

from itertools import pairwise

import pytest
from bamboo_trainer.plan import Mode

from bamboo_cli.config import JobConfig
from bamboo_cli.cross_checks import cross_checks
from bamboo_cli.drills.losses import DEFAULT, GAP_S, How, Loss, choose_losses, gap_of, parse_hows, steps_for
from bamboo_cli.drills.rehearsal import rehearsal_of
from bamboo_cli.errors import UsageError


def job(**changes: object) -> JobConfig:
    keys = {"name": "j", "steps": 5000, "global_batch_size": 32, "microbatch_size": 4, "pipelines": 2, "stages": 3}
    return JobConfig.model_validate(keys | changes)


def chosen(seed: int, num_steps: int = 30) -> tuple[Loss, ...]:
    return choose_losses(DEFAULT, num_steps=num_steps, num_pipelines=2, num_stages=3, num_microbatches=8, seed=seed)


def test_the_same_seed_gives_the_same_losses_and_others_differ() -> None:
    assert chosen(7) == chosen(7)
    assert len({chosen(seed) for seed in range(20)}) > 10


@pytest.mark.parametrize("num_steps", [20, 30, 31, 800])
@pytest.mark.parametrize("seed", range(10))
def test_losses_are_apart_from_each_other_and_from_both_ends(seed: int, num_steps: int) -> None:
    steps = [0, *(loss.step for loss in chosen(seed, num_steps)), num_steps]

    gap = gap_of(num_steps, len(DEFAULT))
    assert all(later - earlier >= gap * 3 // 4 for earlier, later in pairwise(steps))


@pytest.mark.parametrize("seed", range(10))
def test_each_strikes_another_stage_at_an_action_that_its_host_performs(seed: int) -> None:
    losses = chosen(seed)

    assert [loss.how for loss in losses] == list(DEFAULT)
    assert len({(loss.pipeline_index, loss.stage_index) for loss in losses}) == len(losses)
    for loss in losses:
        assert (loss.action is None) == (loss.how in (How.NOTICE, How.KILL))
        if loss.action is not None:
            assert loss.action[0] == str(loss.stage_index)
            assert int(loss.action[2:]) in range(4 * loss.pipeline_index, 4 * loss.pipeline_index + 4)


def test_short_steps_need_more_of_them() -> None:
    assert steps_for(4) == steps_for(4, usual_step_s=10.0) == 30
    assert gap_of(steps_for(4, usual_step_s=0.01), 4) == GAP_S / 0.01


def test_too_few_steps_are_refused_with_how_many_it_takes() -> None:
    with pytest.raises(UsageError, match="19 steps are too few for 4 losses") as caught:
        chosen(0, num_steps=19)

    assert "Take 20 or more" in caught.value.next_step


@pytest.mark.parametrize(("text", "told"), [("notice,kil", "there is no kil"), (" , ", "names none")])
def test_unknown_kinds_are_refused_with_those_that_there_are(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        parse_hows(text)

    assert "kill-in-step" in caught.value.next_step
    assert parse_hows("kill, notice") == (How.KILL, How.NOTICE)


def test_a_rehearsal_is_a_sound_job_of_the_same_shape_that_touches_nothing_of_the_user() -> None:
    """Given a job with its own checkpoints, losses and tight zones, then none of these are in its rehearsal."""
    zone = {"name": "z", "capacity": 6}
    original = job(
        name="a" * 40,
        checkpoint={"url": "s3://mine", "every": 500, "keep": 3},
        local={"zones": [zone], "preemptions_per_hour": 60, "notice_s": 0},
        drill=[{"step": 4000, "node": "n1"}],
        min_nodes=6,
        redundancy="lazy",
    )

    rehearsed = rehearsal_of(original, num_steps=30, num_losses=4, losses=chosen(0))

    assert cross_checks(rehearsed) == []
    assert JobConfig.model_validate(rehearsed.model_dump(mode="json", exclude_unset=True)) == rehearsed
    assert (rehearsed.pipelines, rehearsed.stages, rehearsed.redundancy) == (2, 3, Mode.LAZY)
    assert (rehearsed.steps, rehearsed.num_nodes) == (30, 10), "a node stands by for each loss"
    assert (rehearsed.checkpoint.url, rehearsed.checkpoint.every) == (None, 3)
    assert (rehearsed.local.preemptions_per_hour, rehearsed.local.notice_s) == (0, 10)
    assert rehearsed.name.endswith("-drill") and len(rehearsed.name) == 40
    assert [entry.step for entry in rehearsed.drill] == [loss.step for loss in chosen(0)]
