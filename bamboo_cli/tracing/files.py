"""From the state file to a trace file: which run, which steps, under which name. Needs no coordinator."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bamboo_cli import records
from bamboo_cli.coordinator.pages import Page, read_pages
from bamboo_cli.coordinator.reader import read_events, read_plans, read_runs
from bamboo_cli.errors import BambooError, UsageError
from bamboo_cli.tracing.chrome import chrome_trace
from bamboo_cli.tracing.picture import picture
from bamboo_cli.tracing.timeline import Timeline, around_step, recorded_steps, telling_step, timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    path: Path
    run_id: str
    steps: tuple[int, ...]
    num_workers: int
    hint: str = ""
    """Where to look for a failover, if this has none."""


def write_trace(state_file: Path, run: str | None, step: int | None, output: Path | None) -> TraceFile:
    """Chrome trace events of all recorded steps, or of one (with its neighbours, where a failover lies in it).

    Raises UsageError for a step that was not recorded, BambooError when there is nothing to write or no way to.
    """
    run_id, pages = _pages(state_file, run)
    if step is not None:
        pages = around_step(_having(pages, step), step)
    found = _timeline(state_file, run_id, pages)
    name = f"{run_id}.trace.json" if step is None else f"{run_id}-step{step}.trace.json"
    return _written(output, name, json.dumps(chrome_trace(found), separators=(",", ":")), found)


def write_picture(state_file: Path, run: str | None, step: int | None, output: Path | None) -> TraceFile:
    """An SVG of one step: by default the newest with a failover, else the newest. Raises as ``write_trace``."""
    run_id, pages = _pages(state_file, run)
    chosen = telling_step(pages) if step is None else step
    pages = tuple(page for page in _having(pages, chosen) if page.recorded.step == chosen)
    found = _timeline(state_file, run_id, pages)
    written = _written(output, f"{run_id}-step{chosen}.svg", picture(found), found)
    if step is not None or any(shown.has_failover for shown in found.steps):
        return written
    return replace(written, hint=f"No failover of it is recorded. {_earlier_failover(state_file, run_id)}".rstrip())


def _pages(state_file: Path, run: str | None) -> tuple[str, tuple[Page, ...]]:
    run_ids = [known.run_id for known in read_runs(state_file)]
    if not run_ids:
        next_step = f"`bamboo train JOB` starts one. {_earlier_failover(state_file, '')}".rstrip()
        raise BambooError("there has been no run yet", next_step=next_step)
    run_id = run or run_ids[-1]
    pages = read_pages(state_file, run_id)
    if not pages:
        raise BambooError(
            f"nothing of run {run_id} is recorded",
            next_step="Its first steps are, as soon as they are committed; `bamboo status` shows where it stands.",
        )
    return run_id, pages


def _earlier_failover(state_file: Path, but: str) -> str:
    """In words: the newest other run of the cluster's name with a failover, such as the one that was gone on with."""
    name = state_file.parent.name
    found = next((run for run in records.all_runs(name) if run.failovers and run.run_id != but), None)
    return "" if found is None else f"Run {found.run_id} had one: `bamboo trace {found.run_id} --svg --cluster {name}`."


def _timeline(state_file: Path, run_id: str, pages: tuple[Page, ...]) -> Timeline:
    return timeline(run_id, pages, read_events(state_file, run=run_id), read_plans(state_file, run_id))


def _having(pages: tuple[Page, ...], step: int) -> tuple[Page, ...]:
    steps = recorded_steps(pages)
    if step not in steps:
        raise UsageError(f"step {step} was not recorded", next_step=f"Recorded are steps {ranges(steps)}.")
    return pages


def ranges(numbers: Sequence[int]) -> str:
    """Of sorted numbers: ``0-2, 50, 97-101``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _written(output: Path | None, name: str, text: str, found: Timeline) -> TraceFile:
    """To the file ``output``, or under that name in the folder ``output``, by default the current one."""
    path = Path.cwd() / name if output is None else output / name if output.is_dir() else output
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BambooError(
            f"cannot write {path}: {error.strerror or error}", next_step="Say where with --output FILE."
        ) from error
    steps = tuple(sorted({step.step for step in found.steps}))
    return TraceFile(path=path, run_id=found.run_id, steps=steps, num_workers=len(found.workers))
