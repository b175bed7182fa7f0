"""Losses out of a story: which events belong to one, when it is over, what the commits around it say."""

import pytest

from bamboo_cli import incidents
from bamboo_cli.coordinator.status import StoryEvent


def story(*lines: tuple[float, str, str | None, str]) -> list[StoryEvent]:
    return [
        StoryEvent(event_id=i, at=at, kind=kind, node_id=node, run_id="r", step=None, text=text, numbers={})  # type: ignore[arg-type]
        for i, (at, kind, node, text) in enumerate(lines, start=1)
    ]


SUDDEN = story(
    (1.0, "node", "n3", "n3 joined from a"),
    (90.0, "checkpoint", None, "the checkpoint of step 8 is complete"),
    (100.0, "node", "n2", "the link to the agent of n2 ended"),
    (100.1, "preemption", "n2", "n2 is gone: preempted"),
    (100.1, "failover", None, "lost n2/1: n1/1 hosts stage 1 of pipeline 0"),
    (100.3, "failover", "n1", "n1/1 hosts stage 1 of pipeline 0 too, in step 10; 3 forwards were at hand"),
    (101.0, "handover", None, "a stage lacks a shadow: 4 layers would take 0.1 s to hand over"),
    (104.0, "node", "n4", "n4 joined from a"),
    (106.0, "reconfiguration", None, "plan 3 from step 13: a stage lacks a shadow"),
    (200.0, "checkpoint", None, "the checkpoint of step 50 is complete"),
)
NOTICED = story(
    (100.0, "notice", "n2", "n2 is noticed (terminate): 30 s left"),
    (100.0, "handover", None, "n2 is leaving: 4 layers would take 0.1 s to hand over"),
    (103.0, "reconfiguration", None, "plan 3 from step 13: n2 is leaving"),
    (130.0, "preemption", "n2", "n2 is gone: preempted"),
    (150.0, "checkpoint", None, "the checkpoint of step 50 is complete"),
)
COMMITS = [incidents.Commit(step=step, at=90.0 + step) for step in range(10)]
COMMITS += [incidents.Commit(step=10, at=101.5), *(incidents.Commit(step=11 + i, at=102.5 + i) for i in range(10))]


def test_a_loss_begins_with_its_first_sign_and_ends_with_the_plan_that_makes_all_whole() -> None:
    (loss,) = incidents.losses(SUDDEN)

    assert (loss.node_id, loss.noticed, loss.taken) == ("n2", False, True)
    assert (loss.begins_at, loss.healed_at, loss.ends_at) == (100.0, 106.0, 106.0)
    assert [event.at for event in loss.events] == [100.0, 100.1, 100.1, 100.3, 101.0, 104.0, 106.0]


def test_the_cloud_s_belated_word_belongs_to_the_notice() -> None:
    (loss,) = incidents.losses(NOTICED)

    assert loss.noticed and loss.taken
    assert (loss.begins_at, loss.healed_at, loss.ends_at) == (100.0, 103.0, 130.0)


def test_the_end_of_the_victim_belongs_to_its_loss_but_not_what_a_node_that_came_back_does_later() -> None:
    lines = (
        (100.0, "notice", "n2", "n2 is noticed (terminate): 30 s left"),
        (103.0, "reconfiguration", None, "plan 3 from step 13: n2 is leaving"),
        (103.5, "node", "n4", "n4 joined from a"),
        (104.0, "node", "n2", "n2 is given back: noticed"),
        (130.0, "node", "n2", "n2 is gone: preempted"),
        (150.0, "checkpoint", None, "the checkpoint of step 50 is complete"),
        (900.0, "node", "n2", "n2 came back"),
    )

    (loss,) = incidents.losses(story(*lines))

    assert loss.ends_at == 130.0 and len(loss.events) == 5


def test_a_node_that_is_lost_again_after_all_was_whole_has_two_losses() -> None:
    again = story(
        (1.0, "loss", "n2", "worker n2/1 is lost: exit code 1"),
        (2.0, "reconfiguration", None, "plan 2"),
        (9.0, "loss", "n2", "worker n2/2 is lost: exit code 1"),
        (9.5, "loss", "n2", "worker n2/3 is lost: exit code 1"),
    )

    first, second = incidents.losses(again)

    assert (first.begins_at, first.healed_at) == (1.0, 2.0)
    assert (second.begins_at, second.healed_at, len(second.events)) == (9.0, None, 2)


def test_commits_tell_the_step_the_usual_time_and_how_late_they_came() -> None:
    told = incidents.told(incidents.losses(SUDDEN)[0], COMMITS)

    assert told.step == 10
    assert told.usual_step_s == pytest.approx(1.0)
    assert told.late_s == pytest.approx(1.5), "step 10 took 2.5 s; the one after the plan was in time"
    commits = [moment for moment in told.moments if moment.is_commit]
    assert [(moment.after_s, moment.text.split(",")[0]) for moment in commits] == [
        (-1.0, "step 9 is committed"),
        (1.5, "step 10 is committed"),
        (6.5, "step 15 is committed"),
    ]
    assert commits[1].text.endswith("2.50 s after the one before (usually 1.00 s)")


def test_without_commits_a_loss_is_told_all_the_same() -> None:
    told = incidents.told(incidents.losses(NOTICED)[0], [])

    assert (told.step, told.usual_step_s, told.late_s) == (None, None, None)
    assert len(told.moments) == 4


def test_the_story_of_a_node_has_what_its_loss_led_to() -> None:
    assert incidents.of_node(SUDDEN, "n2") == {5, 6, 7, 9}
    assert incidents.of_node(SUDDEN, "n4") == frozenset()


def test_losses_are_chosen_by_node_or_the_latest_or_all() -> None:
    both = incidents.losses([*SUDDEN[:9], *story((300.0, "loss", "n9", "node n9 is lost"))])

    assert [loss.node_id for loss in incidents.chosen(both, "all")] == ["n2", "n9"]
    assert [loss.node_id for loss in incidents.chosen(both, "latest")] == ["n9"]
    assert [loss.node_id for loss in incidents.chosen(both, "n2")] == ["n2"]
