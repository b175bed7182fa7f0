"""The ledger of a run against its spec, its plans and its restores. Pure; needs no torch."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bamboo_trainer.plan import Plan, PlanKind

from bamboo_cli.coordinator.status import RunLedger, StepRow
from bamboo_cli.verification.findings import About, Finding

SUM_TOLERANCE = 1e-12
"""Relative. Python 3.12 adds floats with less rounding than 3.11, and the file may have been written by either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCheck:
    problems: tuple[Finding, ...]
    unrecorded: tuple[int, ...]
    """Committed steps without a row of their own: whoever knew of it was lost before it told. Computing the next step
    again is the only proof of them."""


def check_ledger(ledger: RunLedger) -> LedgerCheck:
    """Every committed step is there once, as it was committed last, with the samples that are its own."""
    committed = ledger.run.committed_steps
    rows = {row.step: row for row in ledger.steps if row.step < committed}
    stale = {step for step, row in rows.items() if is_stale(ledger, row)}
    problems = [*_check_totals(ledger), *_check_restores(ledger), *_check_beyond(ledger)]
    num_units = Counter(len(row.square_norms) for row in rows.values() if row.square_norms is not None).most_common(1)
    for step in sorted(rows.keys() - stale):
        texts = [*_check_generation(ledger, rows[step]), *_check_row(ledger, rows[step])]
        norms = rows[step].square_norms
        if norms is not None and len(norms) != num_units[0][0]:
            texts.append(f"its row has {len(norms)} square norms, the others have {num_units[0][0]}")
        problems += [_problem(text, step) for text in texts]
    own = range(ledger.run.begins_at_step, committed)
    unrecorded = tuple(step for step in own if step not in rows or step in stale)
    return LedgerCheck(problems=tuple(problems), unrecorded=unrecorded)


def base_plan(plans: Sequence[Plan], step: int) -> Plan | None:
    """The boundary plan that the step was run under for the last time: the newest that begins no later."""
    boundaries = (plan for plan in reversed(plans) if plan.kind is PlanKind.BOUNDARY)
    return next((plan for plan in boundaries if plan.first_step <= step), None)


def is_stale(ledger: RunLedger, row: StepRow) -> bool:
    """A recorded restore undid the step after this row was written, and no row tells of its second time."""
    base = base_plan(ledger.plans, row.step)
    if base is None or row.generation >= base.generation:
        return False
    undone = (event.numbers.get("generation") for event in ledger.restores)
    return any(g is not None and row.generation < g <= base.generation for g in undone)


def _check_generation(ledger: RunLedger, row: StepRow) -> Iterator[str]:
    known = {plan.generation for plan in ledger.plans}
    base = base_plan(ledger.plans, row.step)
    if row.generation not in known or base is None:
        yield f"it is recorded under plan {row.generation}, which this run never had"
        return
    boundaries = [plan.generation for plan in ledger.plans if plan.kind is PlanKind.BOUNDARY]
    own = max((generation for generation in boundaries if generation <= row.generation), default=0)
    if own < base.generation:
        yield (
            f"it is recorded under plan {row.generation}, but plan {base.generation} began at step {base.first_step}, "
            "and no restore is recorded that went back there"
        )
    elif own > base.generation:
        yield f"it is recorded under plan {row.generation}, which had nothing to do with it"


def _check_row(ledger: RunLedger, row: StepRow) -> Iterator[str]:
    spec = ledger.training
    samples = spec.num_microbatches * spec.microbatch_size
    if row.num_samples != samples:
        yield f"its row says {row.num_samples} samples; a step has {samples}"
    if row.first_sample is not None and row.first_sample != row.step * samples:
        yield f"its row begins at sample {row.first_sample}; the step's first is {row.step * samples}"
    if not math.isfinite(row.loss) or not math.isfinite(row.gradient_norm):
        yield f"loss {row.loss}, gradient norm {row.gradient_norm}: no such step is ever committed"
    if row.losses is not None:
        if len(row.losses) != spec.num_microbatches:
            yield f"its row has the losses of {len(row.losses)} microbatches; a step has {spec.num_microbatches}"
        elif not _agree(row.loss, sum(row.losses) / len(row.losses)):
            yield f"its loss {row.loss!r} is not the mean of its microbatches' losses"
    if row.square_norms is not None and not _agree(row.gradient_norm, math.sqrt(abs(sum(row.square_norms)))):
        yield f"its gradient norm {row.gradient_norm!r} is not the root of its square norms' sum"


def _agree(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=SUM_TOLERANCE)


def _check_totals(ledger: RunLedger) -> Iterator[Finding]:
    run, spec = ledger.run, ledger.training
    num_steps = max(0, run.committed_steps - ledger.run.begins_at_step)
    samples = num_steps * spec.num_microbatches * spec.microbatch_size
    if run.num_samples != samples:
        yield _problem(f"{run.num_samples} samples are counted; {num_steps} steps have {samples}")
    if run.state == "done" and run.committed_steps != spec.num_steps:
        yield _problem(f"the run is done with {run.committed_steps} of {spec.num_steps} steps")


def _check_restores(ledger: RunLedger) -> Iterator[Finding]:
    run = ledger.run
    rerun = sum(int(event.numbers.get("steps_rerun", 0)) for event in ledger.restores)
    if (run.restores, run.steps_rerun) != (len(ledger.restores), rerun):
        yield _problem(
            f"{run.restores} restores and {run.steps_rerun} steps run again are counted, "
            f"but the story tells of {len(ledger.restores)} and {rerun}"
        )
    plans = {plan.generation: plan for plan in ledger.plans}
    for event in ledger.restores:
        plan = plans.get(int(event.numbers.get("generation", -1)))
        if plan is None or plan.first_step != event.step:
            yield _problem(f"the story tells of a restore to step {event.step}, but no plan began there", event.step)


def _check_beyond(ledger: RunLedger) -> Iterator[Finding]:
    """Rows of steps that are not committed: those that a restore has undone, else there must be none."""
    committed = ledger.run.committed_steps
    beyond = [row for row in ledger.steps if row.step >= committed]
    undone = any(event.step is not None and event.step <= committed for event in ledger.restores)
    if beyond and not undone:
        steps = ", ".join(str(row.step) for row in beyond[:4])
        yield _problem(f"only {committed} steps are committed, but there are rows of steps {steps}", beyond[0].step)


def _problem(text: str, step: int | None = None) -> Finding:
    return Finding(about=About.LEDGER, step=step, text=text)
