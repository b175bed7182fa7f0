"""What was computed again against what is on record. Pure."""

import math
import struct
from collections.abc import Sequence

from bamboo_trainer.control import LayerSaved
from bamboo_trainer.manifest import Manifest, weights_digest
from bamboo_trainer.plan import StepSummary

from bamboo_cli.coordinator.status import StepRow
from bamboo_cli.verification.findings import LayersVerdict, StepVerdict, Verdict
from bamboo_cli.verification.ledger import SUM_TOLERANCE

NO_ROW = "the ledger has no row of it"


def compare_step(
    row: StepRow | None, replayed: StepSummary, unit_names: Sequence[str], num_pipelines: int
) -> StepVerdict:
    """``row`` None: nobody lived to tell of the step."""
    verdict, detail = _compare(row, replayed, unit_names)
    return StepVerdict(step=replayed.step, num_pipelines=num_pipelines, verdict=verdict, detail=detail)


def _compare(row: StepRow | None, replayed: StepSummary, unit_names: Sequence[str]) -> tuple[Verdict, str]:
    if row is None:
        return Verdict.UNCHECKED, NO_ROW
    if row.losses is None or row.square_norms is None:
        return _compare_roughly(row, replayed)
    values = [
        *((f"loss of microbatch {m}", *pair) for m, pair in enumerate(_pairs(row.losses, replayed.losses))),
        *(
            (f"gradient of {unit_names[u] if u < len(unit_names) else f'unit {u}'} (its square norm)", *pair)
            for u, pair in enumerate(_pairs(row.square_norms, replayed.square_norms))
        ),
    ]
    differing = [value for value in values if _bits(value[1]) != _bits(value[2])]
    if not differing:
        return Verdict.EQUAL, ""
    where, recorded, computed = differing[0]
    more = f"; {len(differing) - 1} of {len(values) - 1} other values differ" if len(differing) > 1 else ""
    return Verdict.DIFFERS, f"{where}: {recorded!r} in the ledger, {computed!r} computed again{more}"


def _pairs(recorded: Sequence[float], computed: Sequence[float]) -> list[tuple[float, float]]:
    """A value that one side lacks is NaN there, which no committed value is."""
    length = max(len(recorded), len(computed))
    padded = [[*values, *[math.nan] * (length - len(values))] for values in (recorded, computed)]
    return list(zip(*padded, strict=True))


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)


def _compare_roughly(row: StepRow, replayed: StepSummary) -> tuple[Verdict, str]:
    norm = math.sqrt(sum(replayed.square_norms))
    for what, recorded, computed in (("loss", row.loss, replayed.loss), ("gradient norm", row.gradient_norm, norm)):
        if not math.isclose(recorded, computed, rel_tol=SUM_TOLERANCE):
            return Verdict.DIFFERS, f"{what}: {recorded!r} in the ledger, {computed!r} computed again"
    detail = "an older Bamboo kept only the loss and the gradient norm; they agree to 12 digits"
    return Verdict.UNCHECKED, detail


def compare_checkpoint(manifest: Manifest, replayed: Sequence[LayerSaved]) -> LayersVerdict:
    """Parameters, buffers and optimizer state of every layer, by the digest of the file that they make."""
    what = f"checkpoint of step {manifest.step}"
    for saved, computed in zip(manifest.layers, replayed, strict=False):
        if saved.parameters_sha256 != computed.parameters_sha256:
            return _differs(manifest.step, what, f"layer {saved.name} has other parameters")
        if saved.file_sha256 != computed.file_sha256:
            return _differs(manifest.step, what, f"layer {saved.name} has another optimizer state")
    if len(manifest.layers) != len(replayed):
        return _differs(manifest.step, what, f"it has {len(manifest.layers)} layers, the recipe {len(replayed)}")
    return LayersVerdict(step=manifest.step, what=what, verdict=Verdict.EQUAL)


def compare_final(step: int, weights_sha256: str, replayed: Sequence[LayerSaved]) -> LayersVerdict:
    what = "final weights"
    computed = weights_digest(layer.parameters_sha256 for layer in replayed)
    if computed != weights_sha256:
        detail = f"sha256 {weights_sha256[:12]}… in the state file, {computed[:12]}… computed again"
        return _differs(step, what, detail)
    return LayersVerdict(step=step, what=what, verdict=Verdict.EQUAL)


def _differs(step: int, what: str, detail: str) -> LayersVerdict:
    return LayersVerdict(step=step, what=what, verdict=Verdict.DIFFERS, detail=detail)
