"""Looking on while things happen: reads the state file again and again, and never changes anything."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo_cli import output
from bamboo_cli.coordinator.reader import read_events, read_look, read_runs, read_status, read_steps
from bamboo_cli.signals import unbroken

if TYPE_CHECKING:
    from bamboo_cli.coordinator.status import ClusterStatus, RunStatus, StepRow, StoryEvent

LIVE_POLL_S = 0.5
PLAIN_POLL_S = 0.4
MOST_LOAD = 0.1
"""Of a core, for drawing: where a look takes long, there are fewer."""
STORY_LINES = 5
SILENCE_S = 15.0
"""Without a terminal, a run that is silent is said to be so this often."""


def watch_cluster(path: Path) -> None:
    """Show the cluster until Ctrl-C, or until it is closed. Without a terminal: a line now and then, and the events."""
    if output.console().is_terminal:
        _look_on(path, "Ctrl-C ends this view, and nothing else", lambda cluster: cluster.state == "closed")
    else:
        _print_summaries(path)


def watch_run(
    path: Path,
    run_id: str,
    *,
    plain: bool = False,
    step_lines: int | None = None,
    between_looks: Callable[[], None] = lambda: None,
) -> "RunStatus":
    """Show the run until it has ended; returns how it is then.

    A live view on a terminal; else, or with ``plain``, one line an event and one line every ``step_lines`` steps
    (None: about a hundred in all).
    KeyboardInterrupt is the caller's.
    """
    if plain or not output.console().is_terminal:
        _print_lines(path, run_id, step_lines, between_looks)
    else:
        note = "Ctrl-C detaches; the run goes on"
        _look_on(path, note, lambda cluster: _has_ended(cluster, run_id), between_looks)
    return read_run(path, run_id)


def follow_events(path: Path, story: Sequence["StoryEvent"], *, node: str | None, run: str | None, json: bool) -> None:
    """Print ``story`` and then whatever happens, until Ctrl-C."""
    from bamboo_cli.views.story import event_line

    last = 0
    while True:
        for event in story:
            last = event.event_id
            if json:
                output.json_line(event)
            else:
                output.line(event_line(event))
        time.sleep(PLAIN_POLL_S)
        story = read_events(path, last, node=node, run=run)


def _has_ended(cluster: "ClusterStatus", run_id: str) -> bool:
    run = cluster.run
    return run is not None and (run.run_id != run_id or run.ended_at is not None)


def _look_on(
    path: Path,
    note: str,
    ended: Callable[["ClusterStatus"], bool],
    between_looks: Callable[[], None] = lambda: None,
) -> None:
    from bamboo_cli.coordinator.looking import Seen
    from bamboo_cli.views.screen import Screen

    seen = Seen()

    def look() -> tuple["ClusterStatus", tuple[Screen, Screen]]:
        now = time.time()
        found = read_look(path, now=now, num_events=STORY_LINES, before=seen)
        return found.cluster, (Screen(found, now, note), Screen(found, now))

    cluster, drawn = look()
    with output.screen(drawn) as show:
        rest_s = LIVE_POLL_S
        while not ended(cluster):
            time.sleep(rest_s)
            began = time.process_time()
            between_looks()
            with unbroken():
                cluster, drawn = look()
                show(drawn)
            rest_s = max(LIVE_POLL_S, (time.process_time() - began) / MOST_LOAD)


def _print_summaries(path: Path) -> None:
    from bamboo_cli.coordinator.looking import Seen
    from bamboo_cli.views.screen import summary_line
    from bamboo_cli.views.story import event_line

    seen, last_event, told, told_at = Seen(), 0, "", 0.0
    while True:
        now = time.time()
        found = read_look(path, now=now, num_events=STORY_LINES, before=seen)
        story = read_events(path, last_event) if last_event else found.story
        for event in story:
            last_event = event.event_id
            output.line(event_line(event))
        summary = summary_line(found)
        if summary != told and now - told_at >= SILENCE_S:
            told, told_at = summary, now
            output.line(f"{output.clock(now)}  {summary}")
        if found.cluster.state == "closed":
            return
        time.sleep(PLAIN_POLL_S)


def _print_lines(path: Path, run_id: str, step_lines: int | None, between_looks: Callable[[], None]) -> None:
    """Events and steps as they come, in the order of time; a step that is run again is printed again."""
    from bamboo_cli.views.cluster import waiting_lines

    last_event, last_step, ended = 0, -1, False
    news_at = told_at = time.monotonic()
    while True:
        run = read_run(path, run_id)
        last_step = min(last_step, run.committed_steps - 1)  # a restore goes back
        story = read_events(path, last_event)
        steps = read_steps(path, run_id, last_step)
        _print_in_order(story, steps, run.num_steps, step_lines or max(1, run.num_steps // 100))
        now = time.monotonic()
        if story or steps:
            news_at = told_at = now
        elif now - told_at >= SILENCE_S:
            told_at = now
            waits = "".join(f"; it {line}" for line in waiting_lines(read_status(path, now=time.time())))
            silence = output.seconds(now - news_at)
            output.note(f"run {run_id} is {run.state}; no step and no event for {silence}{waits}")
        last_event = story[-1].event_id if story else last_event
        last_step = steps[-1].step if steps else last_step
        if ended:
            return
        ended = run.ended_at is not None  # and look once more, for what came in between
        if not ended:
            time.sleep(PLAIN_POLL_S)
            between_looks()


def _print_in_order(story: Sequence["StoryEvent"], steps: Sequence["StepRow"], num_steps: int, step_lines: int) -> None:
    from bamboo_cli.views.cluster import step_line
    from bamboo_cli.views.story import event_line

    lines = [(event.at, event_line(event)) for event in story]
    lines += [
        (row.committed_at, step_line(row, num_steps))
        for row in steps
        if row.step % step_lines == 0 or row.step == num_steps - 1
    ]
    for _, text in sorted(lines, key=lambda timed: timed[0]):
        output.line(text)


def read_run(path: Path, run_id: str) -> "RunStatus":
    return next(run for run in read_runs(path) if run.run_id == run_id)
