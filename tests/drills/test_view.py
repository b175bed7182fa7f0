"""What people see of a drill."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bamboo_cli import output
from bamboo_cli.config import JobConfig
from bamboo_cli.drills.losses import How
from bamboo_cli.drills.rehearsal import Drill, rehearsal_of
from bamboo_cli.drills.verdict import Facts, LossFacts, judge
from bamboo_cli.views import drill as view
from tests.drills.test_verdict import KILL, NOTICE, RUN, facts


def drawn(found: Facts, width: int = 140, num_pipelines: int = 1) -> str:
    drill = Drill(
        job="j",
        cluster="j-drill",
        cloud="local",
        seed=0,
        num_pipelines=num_pipelines,
        num_stages=3,
        num_steps=30,
        num_nodes=7,
        verdict=judge(found),
        facts=found,
    )
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False, emoji=False).print(view.drill(drill))
    return stream.getvalue()


@pytest.mark.parametrize(("num_pipelines", "place"), [(1, "0"), (2, "0/0")])
def test_a_line_tells_all_of_a_loss(num_pipelines: int, place: str) -> None:
    killed = replace(KILL, found_after_s=0.05, pause_s=0.06, pause_steps=0.6)

    text = drawn(facts(NOTICE, killed), num_pipelines=num_pipelines)

    row = next(line for line in text.splitlines() if "0B1" in line)
    told = f"12 kill-in-step at 0B1 n1, stage {place} link broken 50 ms failover by its shadow 60 ms 0.6 0"
    assert " ".join(row.split()) == told
    assert "the same weights, bit for bit (30 steps, 480 samples)" in text
    assert text.rstrip().endswith(judge(facts(NOTICE, killed)).sentence)


@pytest.mark.parametrize("width", [40, 80, 140])
def test_every_broken_promise_is_shown_at_any_width(width: int) -> None:
    found = facts(LossFacts(loss=KILL.loss), after=replace(RUN, weights_sha256="b" * 64))

    words = " ".join(drawn(found, width).split())

    assert "(not shown)" in drawn(found)
    assert all(f"broken {sentence}" in words for sentence in judge(found).broken)
    assert "other weights" in words


def test_the_intro_says_what_is_promised_and_what_it_says_nothing_about() -> None:
    job = JobConfig(name="j", steps=9, global_batch_size=8, microbatch_size=4, stages=3)

    text = view.intro(job, rehearsal_of(job, num_steps=None, num_losses=2), (How.NOTICE, How.KILL))

    assert "1 × 3 (pipelines × stages)" in text
    assert "says nothing about a real cloud" in " ".join(text.split())
    assert "5 nodes" in text
    assert "made good within the step" in text


def test_a_drill_is_json() -> None:
    found = facts()

    assert output.as_json(found)["losses"][1]["loss"]["how"] == "kill-in-step"
