"""What people see: complete at any width, and plain where there is no terminal."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from bamboo_cli import coming_up, output
from bamboo_cli.coordinator.looking import Look
from bamboo_cli.coordinator.status import RunStatus, Series
from bamboo_cli.costs.report import Amount, Bill
from bamboo_cli.views import bill as bill_view
from bamboo_cli.views import cluster as cluster_view
from bamboo_cli.views import story as story_view
from bamboo_cli.views.screen import Screen
from tests.cli import status_example as example

NODES = (
    example.node(1, stage=0),
    example.node(2, stage=1, deadline=example.NOW + 7),
    example.node(3, state="ended"),
    example.node(4, state="standby"),
)


def drawn(picture: RenderableType, width: int = 100, *, terminal: bool = False) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=terminal, highlight=False, emoji=False).print(picture)
    return stream.getvalue()


def test_status_shows_nodes_stages_step_loss_preemptions_and_money() -> None:
    text = drawn(cluster_view.status(example.cluster(nodes=NODES, of=example.run()), example.NOW))

    assert "cluster demo (demo-3f2a1c, local): up · coordinator is process 4242" in text
    assert "41 of 120 steps · loss 2.3456 (first 5.6012) · 81.2 samples/s" in text
    assert "2 preemptions · 1 failover · 3 reconfigurations · 0 restores · 0 steps run again · paused 1.2 s" in text
    assert "cost $0.0123 for the cluster so far; on demand $0.0400, 69% saved" in text
    assert [line.split()[:4] for line in text.splitlines() if line.startswith("n")] == [
        ["node", "state", "zone", "worker"],
        ["n1", "active", "local-b", "prepared"],
        ["n2", "active", "local-c", "prepared"],
        ["n4", "standby", "local-b", "prepared"],
    ]
    assert "will be taken in 7 s" in text
    assert "and 1 that is gone" in text


def test_a_node_with_two_workers_is_one_line_with_the_stages_of_both() -> None:
    whole = replace(example.node(1), workers=(example.worker(1, 1, 0), example.worker(1, 2, 2, accelerator=1)))
    starting = replace(example.worker(2, 3, None, accelerator=1), state="starting")
    half = replace(example.node(2), workers=(example.worker(2, 1, 1), starting))

    text = drawn(cluster_view.status(example.cluster(nodes=(whole, half), of=example.run()), example.NOW), width=140)

    first, second = (" ".join(line.split()) for line in text.splitlines() if line.startswith(("n1", "n2")))
    assert first == "n1 active local-b 2 prepared 0, 2 1, 3"
    assert second == "n2 active local-c 1 prepared, 1 starting 1 2"


def test_status_with_the_coordinator_dead_says_what_to_do() -> None:
    training = drawn(cluster_view.status(example.cluster(alive=False, nodes=NODES, of=example.run()), example.NOW))
    idle = drawn(cluster_view.status(example.cluster(alive=False, nodes=NODES), example.NOW))
    empty = drawn(cluster_view.status(example.cluster(alive=False), example.NOW))

    assert all("no coordinator is running" in text for text in (training, idle, empty))
    assert "Training goes on without it until a node is lost. `bamboo up` starts it again." in training
    assert "The nodes stay rented without it, until `bamboo down`. `bamboo up` starts it again." in idle
    assert "Nothing was rented as far as is known; `bamboo down` makes sure. `bamboo up` starts it again." in empty
    assert "no node is there" in empty


def test_a_run_that_waits_says_for_how_many_nodes_and_what_is_done_about_it() -> None:
    asked = replace(example.node(2, state="intended"), reason="no capacity")
    nodes = (example.node(1, state="standby"), asked, example.node(3, state="ended"))

    waiting = cluster_view.waiting_lines(example.cluster(nodes=nodes, of=example.run(state="waiting")))

    assert waiting == ["waits for nodes: at least 2 of 4 needed, 1 there, 1 being asked for (no capacity)"]
    assert not cluster_view.waiting_lines(example.cluster(nodes=nodes, of=example.run()))


@pytest.mark.parametrize("of", [None, example.run(state="done", ended_at=example.NOW - 9)])
def test_where_nothing_runs_it_is_said_when_all_nodes_are_given_back(of: RunStatus | None) -> None:
    idle = replace(example.cluster(nodes=NODES, of=of), gives_back_at=example.NOW + 4980)
    training = replace(idle, run=example.run())
    screens = [Screen(Look(cluster=c, series=Series(), story=()), example.NOW) for c in (idle, training)]

    for said, unsaid in ((cluster_view.status(idle, example.NOW), cluster_view.status(training, example.NOW)), screens):
        assert "Nothing runs: all nodes are given back in 1 h 23 min" in drawn(said)
        assert "Nothing runs" not in drawn(unsaid)


def test_a_run_that_cannot_list_its_checkpoints_waits_for_them_and_not_for_nodes() -> None:
    run = replace(example.run(state="starting"), checkpoint_trouble="cannot list the checkpoints in s3://x: no bucket")

    waiting = cluster_view.waiting_lines(example.cluster(of=run))

    assert waiting == ["waits for its checkpoints: cannot list the checkpoints in s3://x: no bucket"]


def test_a_failed_run_names_its_newest_checkpoint_once_as_it_is_now() -> None:
    """Not as it was when the run failed: a marker may have been on its way."""
    failed = replace(example.run(state="failed", ended_at=example.NOW), reason="recipe: n3/1: no such thing")

    text = drawn(cluster_view.status(example.cluster(of=failed), example.NOW))

    assert "recipe: n3/1: no such thing\nthe newest complete checkpoint is of step 39\n" in text
    assert f"`bamboo run JOB --resume {failed.run_id}` goes on from it" in text
    assert text.count("newest") == 1


@pytest.mark.parametrize("width", [30, 60, 200])
@pytest.mark.parametrize("live", [False, True])
def test_status_fits_any_width_and_loses_no_node(width: int, live: bool) -> None:
    story = (example.event("the cloud took the node without notice, in the middle of a step", node_id="n3", step=17),)
    cluster = example.cluster(nodes=NODES, of=example.run())
    look = Look(cluster=cluster, series=Series(losses=(5.6, 2.3)), story=story)

    text = drawn(Screen(look, example.NOW) if live else cluster_view.status(cluster, example.NOW), width)

    assert all(len(line) <= width for line in text.splitlines())
    assert all(f"n{number}" in text for number in (1, 2, 4))


def test_a_narrow_table_loses_whole_columns_and_a_note_stands_below_its_row() -> None:
    long = replace(example.node(3), reason="it could not be made a node: no space left on device")
    cluster = example.cluster(nodes=(example.node(1, stage=0), long))

    def table(width: int) -> list[str]:
        return [line.plain for line in cluster_view.nodes_table(cluster, example.NOW, width, every=False)]

    assert table(200) == [
        "node  state   zone     worker    runs stage  shadows",
        "n1    active  local-b  prepared  0           1",
        "n3    active  local-a  prepared                       it could not be made a node: no space left on device",
    ]
    assert table(40) == [
        "node  state   runs stage  shadows",
        "n1    active  0           1",
        "n3    active",
        "    it could not be made a node: no",
        "    space left on device",
    ]
    assert table(12)[:2] == ["node  state", "n1    active"]


def test_of_very_many_nodes_only_those_that_need_a_word_are_shown_unless_all_are_wanted() -> None:
    nodes = (*(example.node(number) for number in range(1, 201)), example.node(201, deadline=example.NOW + 9))
    cluster = example.cluster(nodes=nodes, of=example.run())

    brief = drawn(cluster_view.status(cluster, example.NOW)).splitlines()
    whole = drawn(cluster_view.status(cluster, example.NOW, every_node=True)).splitlines()

    assert brief[-2].split() == ["n201", "active", "local-a", "prepared", "will", "be", "taken", "in", "9", "s"]
    assert brief[-1] == "and 200 nodes without a word: 200 active · --nodes shows each"
    assert len([line for line in whole if line.startswith("n") and " active " in line]) == 201


def test_without_a_terminal_there_are_no_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    output.result(cluster_view.status(example.cluster(nodes=NODES, of=example.run()), example.NOW))

    assert "\x1b" not in capsys.readouterr().out


def test_steps_line_up() -> None:
    from bamboo_cli.coordinator.status import StepRow

    row = StepRow(
        run_id="r",
        step=7,
        generation=1,
        loss=2.5,
        gradient_norm=1.0,
        learning_rate=1e-3,
        step_s=0.25,
        num_samples=16,
        num_tokens=0,
        committed_at=0.0,
    )

    assert cluster_view.step_line(row, 120) == "step   7  loss 2.5000  lr 1.00e-03  0.25 s  64.0 samples/s"


def test_events_keep_their_text_whole_at_any_width() -> None:
    text = drawn(story_view.events([example.event("the cloud took the node", node_id="n3", step=17)]), width=40)

    assert {"n3", "17", "the", "cloud", "took", "node"} <= set(text.split())


def test_events_in_a_pipe_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    text = "layers were handed over " * 30
    story = [example.event(text.strip(), node_id="n3", step=17)] * 2

    output.result(story_view.events(story), one_line_a_row=True)

    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(story)
    assert all(line.endswith(text.strip()) for line in lines)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(2.34567, "2.3457"), (-1.0, "-1.0000"), (1.23456e35, "1.235e+35"), (float("nan"), "nan"), (float("inf"), "inf")],
)
def test_a_loss_that_has_run_away_is_short(amount: float, text: str) -> None:
    assert output.loss(amount) == text
    run = replace(example.run(), loss=amount, first_loss=amount)
    assert f"loss {text} (first {text})" in cluster_view.run_lines(run)[0]


def test_the_bill_adds_up_to_the_last_digit() -> None:
    first = Amount(seconds=60.0, spot_microusd=5_001, on_demand_microusd=16_667)
    second = Amount(seconds=30.0, spot_microusd=2_999, on_demand_microusd=8_333)
    total = Amount(seconds=90.0, spot_microusd=8_000, on_demand_microusd=25_000)
    by_zone = (("a", first), ("b", second))
    nothing = Amount(seconds=0.0, spot_microusd=0, on_demand_microusd=0)

    text = drawn(
        bill_view.bill(
            Bill(
                total=total,
                idle=nothing,
                runs=(),
                by_zone=by_zone,
                by_type=by_zone,
                by_node=by_zone,
                price_sources=("job file",),
            )
        )
    )

    assert "$0.005001" in text and "$0.002999" in text and "$0.008000" in text
    assert "68%" in text
    assert "prices: job file" in text


def test_json_of_a_status_is_whole_and_a_node_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = example.cluster(nodes=NODES, of=example.run())

    output.json_result(cluster_view.brief(cluster))

    text = capsys.readouterr().out
    (line,) = [line for line in text.splitlines() if '"n2"' in line]
    assert json.loads(line.rstrip(",")) == output.as_json(NODES[1])
    whole = output.as_json(cluster)
    assert json.loads(text) == {name: value for name, value in whole.items() if name != "job_text"}


def test_json_has_the_names_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    output.json_result(example.cluster(nodes=NODES, of=example.run()))

    status = json.loads(capsys.readouterr().out)
    assert status["state"] == "up"
    assert status["nodes"][0]["workers"][0]["hosts"] == [[0, 0]]
    assert status["run"]["committed_steps"] == 41


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0.0 s"),
        (0.025, "25 ms"),
        (0.0994, "99 ms"),
        (0.0996, "0.1 s"),
        (0.84, "0.8 s"),
        (42.4, "42 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
    ],
)
def test_durations_are_spelt_for_people(amount: float, text: str) -> None:
    assert output.seconds(amount) == text


@pytest.mark.parametrize(("amount", "text"), [(0, "$0.00"), (0.00123, "$0.0012"), (1234.5, "$1,234.50")])
def test_money_shows_enough_digits(amount: float, text: str) -> None:
    assert output.usd(amount) == text


def test_nodes_are_ready_with_a_worker_or_once_a_run_has_ended_just_by_being_there() -> None:
    nodes = (example.node(1, state="joined"), example.node(2, state="standby"), example.node(3, state="ended"))

    assert coming_up.num_ready(example.cluster(nodes=nodes)) == 1
    assert coming_up.num_ready(example.cluster(nodes=nodes, of=example.run())) == 1
    assert coming_up.num_ready(example.cluster(nodes=nodes, of=example.run(ended_at=example.NOW))) == 2
