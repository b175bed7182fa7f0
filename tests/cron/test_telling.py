"""What a night says: one line, and after a failure a mail of a screenful."""

import json

import pytest

from bamboo_cli.cron import telling
from bamboo_cli.cron.nights import Night, NightState

RUN = {
    "run_id": "tiny-abc123-2",
    "state": "done",
    "steps": 200,
    "final_loss": 2.34567,
    "preemptions": 3,
    "failovers": 1,
    "restores": 0,
    "cost_usd": 0.1234,
}


def test_a_night_that_went_well_is_one_line() -> None:
    what = telling.of_run(RUN, NightState.DONE, first_step=120, num_steps=200, took_s=723.0)

    assert telling.summary("tiny", what, NightState.DONE, 0) == (
        "tiny: done, all 200 steps, from step 120 on, loss 2.3457 at last, survived 3 preemptions and 1 failover; "
        "$0.1234; 12 min 03 s"
    )


def test_a_night_at_its_limit_tells_how_far_it_came() -> None:
    what = telling.of_run(RUN | {"steps": 150}, NightState.AT_LIMIT, first_step=0, num_steps=200, took_s=60.0)

    assert telling.summary("tiny", what, NightState.AT_LIMIT, 4).startswith(
        "tiny: at its limit, 150 of 200 steps, loss"
    )


@pytest.mark.parametrize(
    ("exit_code", "state"),
    [
        (0, NightState.DONE),
        (1, NightState.FAILED),
        (2, NightState.FAILED),
        (3, NightState.FAILED),
        (4, NightState.AT_LIMIT),
        (143, NightState.STOPPED),
        (137, NightState.FAILED),
    ],
)
def test_the_exit_code_says_what_became_of_the_night(exit_code: int, state: NightState) -> None:
    assert telling.state_of(exit_code) is state


def test_the_run_is_found_wherever_it_stands() -> None:
    lines = [
        "waiting for the nodes",
        json.dumps(RUN),
        "",
        "error: run tiny-abc123-2 failed after 3 steps: why",
        "Next.",
    ]

    assert telling.run_in(lines) == RUN
    assert telling.run_in(["{no json", '{"run_id" and no more']) is None
    assert telling.reason_in(lines) == ("run tiny-abc123-2 failed after 3 steps: why", "Next.")
    assert telling.reason_in(("stopped: by `bamboo down`", "Go on.")) == ("by `bamboo down`", "Go on.")


def test_a_mail_about_a_failure_is_plain_and_short_however_much_was_said() -> None:
    noisy = "\x1b[2K\r" + "x" * 10_000
    night = Night(
        started_at=0.0,
        state=NightState.FAILED,
        exit_code=1,
        summary=telling.summary("tiny", noisy, NightState.FAILED, 1),
    )

    lines = telling.mail(night, reason=[noisy] * 6, tail=[noisy] * 20, notes=["a note"], log="/log")

    assert lines[0].startswith("tiny: FAILED (exit code 1): ")
    assert "The end of /log:" in lines
    assert len("\n".join(lines)) < 6_000
    assert all(line.isprintable() for line in lines)


def test_a_night_that_went_well_has_no_end_of_a_log() -> None:
    night = Night(started_at=0.0, state=NightState.DONE, exit_code=0, summary="tiny: done")

    assert telling.mail(night, reason=[], tail=["said"], notes=[], log="/log") == ["tiny: done"]
