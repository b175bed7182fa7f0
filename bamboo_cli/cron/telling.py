"""What a night says in the end: a summary line, and a mail that is short. Pure."""

import json
import signal
from collections.abc import Iterable, Sequence
from typing import Any

from bamboo_cli import output
from bamboo_cli.cron.nights import Night, NightState

MAX_COLUMNS = 160
REASON_LINES = 6
EXIT_LIMIT = 4
IN_ORDER = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals at which ``bamboo run`` saves a checkpoint and gives everything back."""


def state_of(exit_code: int) -> NightState:
    """Of a night whose ``bamboo run`` ended so."""
    if exit_code == 0:
        return NightState.DONE
    if exit_code == EXIT_LIMIT:
        return NightState.AT_LIMIT
    return NightState.STOPPED if exit_code - 128 in IN_ORDER else NightState.FAILED


def run_in(lines: Iterable[str]) -> dict[str, Any] | None:
    """What ``bamboo run --json`` says of its run, wherever it stands among what else it says."""
    found = None
    for line in lines:
        if line.startswith('{"run_id"'):
            try:
                found = json.loads(line)
            except ValueError:
                continue
    return found


def reason_in(lines: Sequence[str]) -> tuple[str, ...]:
    """From ``error:`` or ``stopped:`` on."""
    starts = [index for index, line in enumerate(lines) if line.startswith(("error: ", "stopped: "))]
    if not starts:
        return ()
    said = (lines[starts[-1]].partition(": ")[2], *lines[starts[-1] + 1 :])
    return tuple(line for line in said if line.strip())[:REASON_LINES]


def of_run(run: dict[str, Any] | None, state: NightState, *, first_step: int, num_steps: int, took_s: float) -> str:
    """``done, all 200 steps, from step 120 on, loss 2.3456 at last; $0.12; 12 min 03 s``"""
    if run is None or run.get("run_id") is None:
        return f"{state}, without a run; {output.seconds(took_s)}"
    steps = int(run["steps"])
    parts = [f"{state}, " + (f"all {steps} steps" if steps >= num_steps else f"{steps} of {num_steps} steps")]
    if first_step:
        parts.append(f"from step {first_step} on")
    if run["final_loss"] is not None:
        parts.append(f"loss {output.loss(float(run['final_loss']))} at last")
    lost = [output.plural(run[kind], kind[:-1]) for kind in ("preemptions", "failovers", "restores") if run[kind]]
    if lost:
        parts.append(f"survived {' and '.join(lost)}")
    return f"{', '.join(parts)}; {output.usd(float(run['cost_usd']))}; {output.seconds(took_s)}"


def summary(entry_id: str, what: str, state: NightState, exit_code: int) -> str:
    """One line. A failure stands out, also in the subject of a mail or in a chat."""
    sign = f"FAILED (exit code {exit_code}): " if state.is_failure else ""
    return cut(f"{entry_id}: {sign}{what}")


def mail(night: Night, *, reason: Sequence[str], tail: Sequence[str], notes: Sequence[str], log: str) -> list[str]:
    """Short, plain lines; of a failure, why and the end of its log."""
    lines = [night.summary, *notes]
    if night.state.is_failure:
        lines += [cut(line) for line in reason]
        if tail:
            lines += ["", f"The end of {log}:", *(cut(f"  {line}") for line in tail)]
    return lines


def cut(text: str) -> str:
    """On one line, and plain: no escapes, nothing that a terminal or a mail would stumble over."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if len(plain) <= MAX_COLUMNS else plain[: MAX_COLUMNS - 3] + "..."


def signal_of(exit_code: int) -> str | None:
    """``SIGKILL`` for 137; None: no signal."""
    return signal.Signals(exit_code - 128).name if exit_code - 128 in set(signal.Signals) else None
