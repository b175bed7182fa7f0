"""The judge: what each protection promises, and every way in which a drill may break it."""

from dataclasses import replace

import pytest
from bamboo_trainer.plan import Mode

from bamboo_cli.drills.losses import How, Loss
from bamboo_cli.drills.promise import Rung, promise_of
from bamboo_cli.drills.verdict import Facts, Found, LossFacts, Outcome, Verdict, judge

RUN = Outcome(
    run_id="r",
    state="done",
    reason="",
    steps=30,
    samples=480,
    final_loss=1.5,
    weights_sha256="a" * 64,
    steps_rerun=0,
    pause_s=0.0,
    wall_s=9.0,
)
NOTICE = LossFacts(
    loss=Loss(how=How.NOTICE, step=6, pipeline_index=0, stage_index=1, action=None),
    node_id="n2",
    found=Found.NOTICE,
    notice_s=9.0,
    rung=Rung.HANDED_OVER,
)
KILL = LossFacts(
    loss=Loss(how=How.KILL_IN_STEP, step=12, pipeline_index=0, stage_index=0, action="0B1"),
    node_id="n1",
    found=Found.BROKEN_LINK,
    rung=Rung.SHADOW,
)
RESTORED = replace(KILL, rung=Rung.RESTORED, steps_rerun=3, restored_from=8, newest_checkpoint=8)


def facts(
    *losses: LossFacts,
    mode: Mode = Mode.BUBBLE,
    pipelines: int = 1,
    after: Outcome = RUN,
    loss_gap: float | None = None,
    bad_copies: int = 0,
) -> Facts:
    return Facts(
        promise=promise_of(mode, num_pipelines=pipelines, num_stages=3),
        usual_step_s=0.1,
        undisturbed=RUN,
        disturbed=after,
        losses=losses or (NOTICE, KILL),
        loss_gap=loss_gap,
        num_bad_copies=bad_copies,
    )


def rerun(count: int) -> Outcome:
    return replace(RUN, steps_rerun=count)


@pytest.mark.parametrize(
    ("mode", "pipelines", "stages", "worst"),
    [
        (Mode.BUBBLE, 1, 2, Rung.OTHER_PIPELINE),
        (Mode.LAZY, 2, 1, Rung.OTHER_PIPELINE),
        (Mode.REROUTE, 2, 2, Rung.OTHER_PIPELINE),
        (Mode.MIRROR, 1, 2, Rung.RUN_AGAIN),
        (Mode.MIRROR, 1, 1, Rung.RESTORED),
        (Mode.OFF, 2, 2, Rung.RUN_AGAIN),
        (Mode.OFF, 1, 4, Rung.RESTORED),
        (Mode.EAGER, 1, 1, Rung.RESTORED),
    ],
)
def test_what_a_protection_promises(mode: Mode, pipelines: int, stages: int, worst: Rung) -> None:
    assert promise_of(mode, num_pipelines=pipelines, num_stages=stages).worst is worst


def test_a_drill_that_lost_nothing_is_as_promised() -> None:
    verdict = judge(facts())

    assert verdict == Verdict(
        as_promised=True,
        sentence="All as promised: 2 losses, no committed step run again, the same weights, bit for bit.",
        broken=(),
    )


def test_without_protection_a_restore_is_as_promised_and_its_price_is_told() -> None:
    verdict = judge(facts(NOTICE, RESTORED, mode=Mode.OFF, after=rerun(3)))

    assert verdict.as_promised
    assert "3 steps run again since the newest checkpoint, as this protection has it" in verdict.sentence


def test_a_restore_that_costs_nothing_this_time_is_not_said_to_be_the_rule() -> None:
    verdict = judge(facts(replace(RESTORED, steps_rerun=0, restored_from=11), mode=Mode.OFF))

    assert verdict.as_promised
    assert "this time" in verdict.sentence


def test_a_cheaper_rung_than_promised_is_as_promised() -> None:
    assert judge(facts(replace(KILL, rung=Rung.RUN_AGAIN), mode=Mode.OFF)).as_promised


BROKEN = {
    "the weights differ": (
        facts(after=replace(RUN, weights_sha256="b" * 64)),
        "the weights are not those of the undisturbed run",
    ),
    "no weights were written": (
        facts(after=replace(RUN, weights_sha256=None)),
        "the weights are not those of the undisturbed run",
    ),
    "a step more is run again than the losses explain": (
        facts(NOTICE, RESTORED, mode=Mode.OFF, after=rerun(4)),
        "4 steps were run again, of which the losses explain 3",
    ),
    "a step is run again without a restore": (
        facts(replace(KILL, steps_rerun=1), after=rerun(1)),
        "the kill-in-step at 0B1 of step 12 had 1 step run again, though there was no restore",
    ),
    "a shadow was there, yet it is restored": (
        facts(RESTORED, after=rerun(3)),
        "the kill-in-step at 0B1 of step 12 took a restore from a checkpoint, "
        "where no worse than a failover within the step is promised",
    ),
    "a mirror is restored": (
        facts(RESTORED, mode=Mode.MIRROR, after=rerun(3)),
        "no worse than 'step run again from live layers' is promised",
    ),
    "an older checkpoint is taken than the newest": (
        facts(replace(RESTORED, restored_from=5), mode=Mode.OFF, after=rerun(3)),
        "went back to the checkpoint of step 5, though the checkpoint of step 8 was complete",
    ),
    "a notice in time is not used": (
        facts(replace(NOTICE, rung=Rung.SHADOW)),
        "the notice after step 6 took a failover by its shadow",
    ),
    "a loss never showed": (
        facts(LossFacts(loss=KILL.loss)),
        "the kill-in-step at 0B1 of step 12 was not shown",
    ),
    "a loss was found and nothing followed": (
        facts(replace(KILL, rung=None)),
        "was found (link broken), but no recovery",
    ),
    "the run fails": (
        facts(after=replace(RUN, state="failed", reason="a bug", steps=12)),
        "the disturbed run failed after 12 steps (a bug)",
    ),
    "samples are lost": (facts(after=replace(RUN, samples=464)), "30 steps and 464 samples were counted, 30 and 480"),
    "a shadow's copy differs": (facts(bad_copies=2), "2 copies of layers differed"),
    "other pipelines, and the losses are apart": (
        facts(after=replace(RUN, weights_sha256="b" * 64), loss_gap=2e-3),
        "the losses differ by 2.0e-03, more than the documented 1e-04",
    ),
    "other pipelines, and a loss is no number": (facts(loss_gap=float("nan")), "the losses differ by nan"),
}


@pytest.mark.parametrize(("found", "told"), BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_named(found: Facts, told: str) -> None:
    verdict = judge(found)

    assert not verdict.as_promised
    assert len(verdict.broken) == 1
    assert told in verdict.broken[0]
    assert verdict.sentence == f"Not as promised: {verdict.broken[0]}."


def test_a_notice_shorter_than_the_steps_may_need_the_shadow() -> None:
    assert judge(facts(replace(NOTICE, rung=Rung.SHADOW, notice_s=0.2))).as_promised


def test_with_another_number_of_pipelines_the_losses_are_compared_and_not_the_bits() -> None:
    verdict = judge(facts(after=replace(RUN, weights_sha256="b" * 64), loss_gap=3e-6))

    assert verdict.as_promised
    assert "the losses agree to 3.0e-06" in verdict.sentence


def test_several_broken_promises_are_all_kept_and_counted() -> None:
    verdict = judge(facts(RESTORED, after=replace(RUN, weights_sha256="b" * 64, steps_rerun=3)))

    assert len(verdict.broken) == 2
    assert verdict.sentence.endswith("(and 1 more, see above).")
