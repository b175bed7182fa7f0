"""The certificate that a run lost no work: ledger, files and steps computed again, put together."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from bamboo_trainer.manifest import Manifest
from bamboo_trainer.replay_order import Answer, LayersReplayed, ReplayBegun, ReplayOrder, StepReplayed

from bamboo_cli import output
from bamboo_cli.coordinator.status import RunLedger
from bamboo_cli.recipe_file import recipe_digest
from bamboo_cli.verification.comparison import NO_ROW, compare_checkpoint, compare_final, compare_step
from bamboo_cli.verification.files import check_files, is_pruned
from bamboo_cli.verification.findings import About, Finding, LayersVerdict, StepVerdict, Verdict
from bamboo_cli.verification.ledger import check_ledger
from bamboo_cli.verification.replaying import ReplayFailedError, replayed
from bamboo_cli.verification.stretch import Stretch, choose_stretch, segments_of

NUM_LOOKS = 10
"""How often one is told how far it is."""
MAX_SAMPLES = 20_000_000
"""As many draws of samples are looked at for one that comes twice; about ten seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    run_id: str
    ok: bool
    """Nothing that was looked at is wrong, and something was compared (or only the ledger was asked for)."""
    summary: str
    state: str
    committed_steps: int
    chosen: str
    """Which steps were computed again, and why those."""
    problems: tuple[Finding, ...]
    notes: tuple[str, ...]
    steps: tuple[StepVerdict, ...]
    layers: tuple[LayersVerdict, ...]
    replay_s: float
    run_s: float
    """What the run took for the same steps."""


@dataclass(slots=True)
class _Replayed:
    """What the replay has told so far."""

    steps: list[StepVerdict] = field(default_factory=list)
    layers: list[LayersVerdict] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def certify(
    ledger: RunLedger,
    *,
    asked: tuple[int, int] | None,
    whole: bool,
    ledger_only: bool,
    saw: Callable[[str], None] = lambda _: None,
) -> Certificate:
    """``saw`` is called as it goes on. Raises UsageError for steps that are not committed."""
    checked, files = check_ledger(ledger), check_files(ledger)
    problems = [*checked.problems, *_check_recipe(ledger), *files.problems]
    notes = _notes(ledger)
    told, chosen, replay_s = _Replayed(), "no steps: only the ledger and the files, as asked", 0.0
    if not ledger_only and ledger.run.committed_steps:
        stretch = choose_stretch(ledger, files.intact, asked, whole=whole)
        chosen, began_at = stretch.reason, time.monotonic()
        order = _order(ledger, stretch, files.intact)
        try:
            _listen(told, ledger, files.intact, checked.unrecorded, order, replayed(order), saw)
        except ReplayFailedError as error:
            text = error.message
            if is_pruned(ledger, stretch.first_step - 1):
                text += "; the run goes on, and has deleted it since: verify again, or from the seed with --all"
            problems.append(Finding(about=About.REPLAY, text=text))
        replay_s = time.monotonic() - began_at
    steps = prove_unrecorded(told.steps, told.layers)
    problems += [*told.problems, *_unproved(checked.unrecorded, steps)]
    verdicts = [*(v.verdict for v in steps), *(v.verdict for v in told.layers)]
    compared = ledger_only or Verdict.EQUAL in verdicts
    replayed_steps = {v.step for v in steps}
    certificate = Certificate(
        run_id=ledger.run.run_id,
        ok=compared and not problems and Verdict.DIFFERS not in verdicts,
        summary="",
        state=ledger.run.state,
        committed_steps=ledger.run.committed_steps,
        chosen=chosen,
        problems=tuple(problems),
        notes=(*notes, *told.notes),
        steps=tuple(steps),
        layers=tuple(told.layers),
        replay_s=replay_s,
        run_s=sum(row.step_s for row in ledger.steps if row.step in replayed_steps),
    )
    return replace(
        certificate,
        summary=summarise(certificate, num_unrecorded=len(checked.unrecorded), num_earlier=ledger.run.begins_at_step),
    )


def _order(ledger: RunLedger, stretch: Stretch, intact: dict[int, Manifest]) -> ReplayOrder:
    spec = ledger.training
    reached = range(stretch.first_step, stretch.end_step)
    ends = {spec.num_steps - 1} if ledger.run.weights_sha256 is not None else set[int]()
    most = MAX_SAMPLES // (spec.num_microbatches * spec.microbatch_size)
    return ReplayOrder(
        spec=spec,
        segments=segments_of(ledger, stretch),
        layers_after=tuple(sorted(step for step in {*intact, *ends} if step in reached)),
        num_committed=min(ledger.run.committed_steps, most),
    )


def _listen(
    told: _Replayed,
    ledger: RunLedger,
    intact: dict[int, Manifest],
    unrecorded: tuple[int, ...],
    order: ReplayOrder,
    answers: Iterable[Answer],
    saw: Callable[[str], None],
) -> None:
    """Adds to ``told``, which so has what came before a failure. Raises ReplayFailedError."""
    rows = {row.step: row for row in ledger.steps if row.step not in unrecorded}
    num_pipelines = {s: len(seg.microbatches) for seg in order.segments for s in range(seg.first_step, seg.end_step)}
    look_every = max(1, len(num_pipelines) // NUM_LOOKS)
    unit_names: tuple[str, ...] = ()
    for answer in answers:
        match answer:
            case ReplayBegun():
                unit_names = answer.unit_names
                _note_samples(told, order, answer)
            case StepReplayed(summary=summary):
                step = summary.step
                told.steps.append(compare_step(rows.get(step), summary, unit_names, num_pipelines[step]))
                if len(told.steps) % look_every == 0:
                    saw(f"step {step}, up to {order.segments[-1].end_step - 1}")
            case LayersReplayed(step=step, layers=layers):
                if step in intact:
                    told.layers.append(compare_checkpoint(intact[step], layers))
                if step == ledger.training.num_steps - 1 and ledger.run.weights_sha256 is not None:
                    told.layers.append(compare_final(step, ledger.run.weights_sha256, layers))


def _note_samples(told: _Replayed, order: ReplayOrder, begun: ReplayBegun) -> None:
    if begun.repeated is not None:
        epoch, sample = begun.repeated
        told.problems.append(Finding(about=About.SAMPLES, text=f"sample {sample} is drawn twice in epoch {epoch}"))
        return
    spec = order.spec
    drawn = order.num_committed * spec.num_microbatches * spec.microbatch_size
    epochs, rest = divmod(drawn, begun.num_samples)
    told.notes.append(
        f"steps 0 to {order.num_committed - 1} draw {drawn} samples: {epochs} whole epochs of {begun.num_samples}, "
        f"and {rest} samples of epoch {epochs}; none comes twice in an epoch"
    )


def prove_unrecorded(steps: list[StepVerdict], layers: list[LayersVerdict]) -> list[StepVerdict]:
    """A step without a row is proved by what rests on it: a later step, or layers, that are equal."""
    equal = [v.step for v in steps if v.verdict is Verdict.EQUAL]
    equal_layers = [v.step for v in layers if v.verdict is Verdict.EQUAL]

    def proved(step: int) -> bool:
        return any(later > step for later in equal) or any(later >= step for later in equal_layers)

    detail = f"{NO_ROW}; what rests on it is equal, and so proves it"
    return [
        replace(v, verdict=Verdict.EQUAL, detail=detail) if v.detail == NO_ROW and proved(v.step) else v for v in steps
    ]


def _unproved(unrecorded: Iterable[int], steps: list[StepVerdict]) -> list[Finding]:
    proved = {v.step for v in steps if v.verdict is Verdict.EQUAL}
    return [
        Finding(
            about=About.LEDGER,
            step=step,
            text=f"{NO_ROW}; compute it and the next one again to prove it: --steps {step}:{step + 2}",
        )
        for step in unrecorded
        if step not in proved
    ]


def _check_recipe(ledger: RunLedger) -> list[Finding]:
    then, spec = ledger.run.recipe_sha256, ledger.training
    if then is None:
        return []
    now = recipe_digest(spec.recipe)
    if not now:
        return [Finding(about=About.RECIPE, text=f"the recipe {spec.recipe} cannot be read any more")]
    if now != then:
        text = f"the recipe {spec.recipe} has changed since the run began: sha256 {then[:12]}… then, {now[:12]}… now"
        return [Finding(about=About.RECIPE, text=text)]
    return []


def _notes(ledger: RunLedger) -> list[str]:
    notes = []
    if ledger.run.ended_at is None:
        notes.append(f"the run goes on: looked at as it was after {ledger.run.committed_steps} steps")
    if ledger.run.steps_rerun:
        steps = output.plural(ledger.run.steps_rerun, "step")
        restores = output.plural(ledger.run.restores, "restore")
        notes.append(f"{steps} had to be run again after {restores}: paid for twice, counted once")
    if ledger.run.begins_at_step:
        notes.append(
            f"steps 0 to {ledger.run.begins_at_step - 1} are on record under the run that this one goes on from"
        )
    if ledger.run.recipe_sha256 is None:
        notes.append("whether the recipe has changed since is not known: an older Bamboo did not keep its digest")
    return notes


def summarise(certificate: Certificate, *, num_unrecorded: int, num_earlier: int = 0) -> str:
    """One line."""
    c = certificate
    own = max(0, c.committed_steps - num_earlier)
    parts = [f"{own - num_unrecorded} of {own} committed steps in the ledger"]
    count = {v: sum(step.verdict is v for step in c.steps) for v in Verdict}
    if c.steps:
        told = [f"{count[Verdict.EQUAL]} equal", f"{count[Verdict.DIFFERS]} differ", f"{count[Verdict.UNCHECKED]} not"]
        if count[Verdict.UNCHECKED]:
            told[2] += " comparable"
        else:
            told.pop()
        if not count[Verdict.DIFFERS]:
            told.pop(1)
        parts.append(f"{len(c.steps)} computed again: {', '.join(told)}")
    if c.layers:
        equal = sum(v.verdict is Verdict.EQUAL for v in c.layers)
        parts.append(f"checkpoints and weights: {equal} of {len(c.layers)} equal")
    if c.problems:
        parts.append("1 problem" if len(c.problems) == 1 else f"{len(c.problems)} problems")
    return f"{'verified' if c.ok else 'NOT verified'}: run {c.run_id}: {'; '.join(parts)}"
