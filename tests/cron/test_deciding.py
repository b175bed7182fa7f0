"""What a night does, from what it finds."""

import pytest

from bamboo_cli.cron.deciding import Begin, Left, Newest, NothingToDo, Seen, what_to_do, whose

NEWEST = Newest(run_id="tiny-abc123-1", step=49)


def seen(*, made_by: str | None = None, is_marked: bool = True, trains: bool = False, is_up: bool = True) -> Seen:
    return Seen(is_up=is_up, made_by=made_by, is_marked=is_marked, trains=trains)


@pytest.mark.parametrize("cut_off", [True, False])
def test_what_a_night_has_made_is_a_nights_to_end(cut_off: bool) -> None:
    assert whose(seen(made_by="other", trains=True), last_was_cut_off=cut_off) is Left.OURS


@pytest.mark.parametrize("cut_off", [True, False])
def test_what_somebody_has_made_is_left_alone(cut_off: bool) -> None:
    assert whose(seen(trains=True), last_was_cut_off=cut_off) is Left.IN_USE
    assert whose(seen(), last_was_cut_off=cut_off) is Left.IDLE


def test_a_cluster_without_a_mark_is_of_a_night_that_was_cut_off_while_it_made_it() -> None:
    assert whose(seen(is_marked=False), last_was_cut_off=True) is Left.OURS
    assert whose(seen(is_marked=False), last_was_cut_off=False) is Left.IDLE


def test_what_is_down_is_in_nobodys_way() -> None:
    assert whose(seen(is_up=False, made_by="tiny"), last_was_cut_off=True) is Left.NOTHING


def test_a_night_goes_on_from_the_newest_checkpoint() -> None:
    assert what_to_do(NEWEST, 200, anew=False) == Begin(resume=NEWEST.run_id, first_step=50)


def test_without_a_checkpoint_it_begins() -> None:
    assert what_to_do(None, 200, anew=False) == Begin(resume=None, first_step=0)


def test_a_job_whose_steps_are_done_is_not_done_again() -> None:
    assert what_to_do(NEWEST, 50, anew=False) == NothingToDo(num_steps=50)


def test_a_job_that_asks_for_more_steps_goes_on() -> None:
    assert what_to_do(NEWEST, 51, anew=False) == Begin(resume=NEWEST.run_id, first_step=50)


def test_anew_is_anew_whatever_is_there() -> None:
    assert what_to_do(NEWEST, 50, anew=True) == Begin(resume=None, first_step=0)
