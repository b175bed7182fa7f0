"""A step that was run on paper, drawn for people: a line per worker, a column per unit of time."""

from bamboo_trainer.dryrun import DryRun, Slot
from bamboo_trainer.plan import WorkerId
from bamboo_trainer.schedule import Kind

_LETTER = {Kind.FORWARD: "F", Kind.BACKWARD: "B"}
LEGEND = "F3 forward, B3 backward, f3 redundant forward (FRC) of microbatch 3; · bubble"
_REDUNDANT_LETTER = {Kind.FORWARD: "f", Kind.BACKWARD: "b", Kind.REDUNDANT_FORWARD: "f"}


def grid(result: DryRun, unit: float = 1.0) -> dict[WorkerId, str]:
    """One line per worker, one column per ``unit`` of time: ``F0 F1 ·  B0───``.

    A worker that hosts several stages (after a failover) spells its actions in full, ``1F0``.
    """
    several = {slot.worker_id for slot in result.slots if _stages_of(result, slot.worker_id) > 1}
    texts = {id(slot): _text(slot, full=slot.worker_id in several) for slot in result.slots}
    width = max((len(text) for text in texts.values()), default=1) + 1
    lines = {}
    for worker_id in result.workers:
        columns = ["·".ljust(width)] * max(1, round(result.makespan / unit))
        for slot in (slot for slot in result.slots if slot.worker_id == worker_id):
            first, end = round(slot.start / unit), max(round(slot.end / unit), round(slot.start / unit) + 1)
            drawn = texts[id(slot)].ljust(width * (end - first) - 1, "─" if end - first > 1 else " ") + " "
            for column in range(first, min(end, len(columns))):
                columns[column] = drawn[(column - first) * width : (column - first + 1) * width]
        lines[worker_id] = "".join(columns).rstrip()
    return lines


def _stages_of(result: DryRun, worker_id: WorkerId) -> int:
    mine = [s.action for s in result.slots if s.worker_id == worker_id and not s.redundant]
    return len({(action.pipeline_index, action.stage_index) for action in mine})


def _text(slot: Slot, *, full: bool) -> str:
    letters = _REDUNDANT_LETTER if slot.redundant else _LETTER
    return str(slot.action) if full else f"{letters[slot.action.kind]}{slot.action.microbatch}"
