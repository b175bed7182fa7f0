"""A picture (SVG) of one step: a row for each worker, time to the right. Pure.

Redundant forwards are hatched, and white is waiting. A worker of which nothing was recorded, since it is lost, shows
when its data arrived at others.
"""

import re
from collections.abc import Iterable, Iterator
from html import escape
from itertools import pairwise, takewhile
from statistics import median

from bamboo_trainer.plan import WorkerId, node_id_of

from bamboo_cli.tracing.names import SlotKind
from bamboo_cli.tracing.timeline import TimedSlot, Timeline, WorkerStep

LEFT, RIGHT, TOP, BOTTOM = 165, 30, 78, 86
ROW, BAR = 58, 36
LABELLED_PX = 30
"""What the median forward gets, so that its label fits ..."""
MIN_PX, MAX_PX = 1100, 8000
"""... within these widths of the drawing."""
LETTER_PX = 6.6
TOLD = ("failover", "reconfiguration", "restore")
"""What of the story stands above the picture ..."""
BEFORE_S = 0.2
"""... also when it was told so shortly before: a plan is, before its first step begins."""

FILLS = {
    SlotKind.FORWARD: "#8ec6f0",
    SlotKind.BACKWARD: "#8fd3a5",
    SlotKind.REDUNDANT: "url(#hatched)",
    SlotKind.REDUCE: "#f3b562",
    SlotKind.COMMIT: "#b79be0",
    SlotKind.SAVE: "#c9b79c",
    SlotKind.FETCH: "#7fd0cf",
    SlotKind.PLAN: "#e4574f",
    SlotKind.WAIT: "#fff",
    SlotKind.OTHER: "#cccccc",
}
_NAMES = {SlotKind.REDUNDANT: "redundant, 1f0", SlotKind.PLAN: "plan, failover"}
_STYLE = (
    "text{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:11px;fill:#222}"
    ".title{font-size:15px;font-weight:bold}.worker{font-size:13px;font-weight:bold}.small{fill:#666}"
    ".red{fill:#b3261e}.slot{stroke:#55606b;stroke-width:.6}.over{stroke:#b3261e;stroke-width:1.8}"
    ".late{stroke:#b3261e;stroke-width:1.4;stroke-dasharray:5 3}.axis{stroke:#999;stroke-width:.6}"
)
_HATCHED = (
    '<pattern id="hatched" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="#e3f1fb"/><line x1="0" y1="0" x2="0" y2="6" stroke="#5b9fd0" stroke-width="2.4"/>'
    "</pattern>"
)

Place = tuple[int, int]
"""Of a stage: its pipeline and its number in it."""


def picture(found: Timeline) -> str:
    """``found``: the pages of one step. Raises ValueError when there are none."""
    scale = _Scale(found)
    height = TOP + ROW * len(found.workers) + BOTTOM
    width = scale.width
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style><defs>{_HATCHED}</defs>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *_title(found),
        *_axis(scale, TOP + ROW * len(found.workers)),
    ]
    rows = {worker_id: TOP + ROW * index for index, worker_id in enumerate(_by_stage(found))}
    for worker_id, y in rows.items():
        parts += _row(found, worker_id, y, scale)
    parts += [*_losses(found, rows, scale), *_legend(height - 30), "</svg>"]
    return "\n".join(parts)


def _by_stage(found: Timeline) -> list[WorkerId]:
    """Pipeline by pipeline, first stages first. Whose slots are not known is placed by what it sent."""
    places: dict[WorkerId, list[Place]] = {worker_id: [] for worker_id in found.workers}
    for step in found.steps:
        places[step.worker_id] += _ran(_before_failover(step))
    for transfer in found.transfers:
        if transfer.producer is None and (stage := re.match(r"\d+", transfer.name)):
            places[transfer.sender].append((transfer.pipeline_index, int(stage[0])))
    return sorted(found.workers, key=lambda worker_id: min(places[worker_id], default=(len(places), 0)))


class _Scale:
    def __init__(self, found: Timeline) -> None:
        self.start, self.seconds = found.start, max(found.end - found.start, 1e-6)
        forwards = [s.end - s.start for step in found.steps for s in step.slots if s.kind is SlotKind.FORWARD]
        wanted = LABELLED_PX * self.seconds / max(median(forwards), 1e-9) if forwards else MIN_PX
        self._px = min(max(wanted, MIN_PX), MAX_PX)
        self.width = round(LEFT + self._px + RIGHT)

    def x(self, at: float) -> float:
        return round(LEFT + (at - self.start) / self.seconds * self._px, 2)


def _title(found: Timeline) -> Iterator[str]:
    plans = " and ".join(str(plan) for plan in sorted({step.generation for step in found.steps}))
    took = f"{(found.end - found.start) * 1e3:.1f} ms"
    given_up = "" if all(step.committed for step in found.steps) else ", given up by some and run again"
    yield _text(12, 24, f"{found.run_id}, step {found.steps[0].step} under plan {plans}: {took}{given_up}", "title")
    told = [e for e in found.story if e.kind in TOLD and found.start - BEFORE_S <= e.at <= found.end]
    for line, event in enumerate(told[:2]):
        yield _text(12, 44 + 16 * line, f"{(event.at - found.start) * 1e3:.1f} ms  {event.text}", "red")


def _axis(scale: _Scale, bottom: float) -> Iterator[str]:
    every_ms = _round_step(scale.seconds * 1e3 / 12)
    count = int(scale.seconds * 1e3 / every_ms)
    for index in range(count + 1):
        ms = index * every_ms
        x = scale.x(scale.start + ms / 1e3)
        yield f'<line class="axis" x1="{x}" y1="{TOP - 6}" x2="{x}" y2="{bottom + 4}" stroke-opacity=".35"/>'
        yield _text(x, bottom + 18, f"{ms:g} ms" if index == count else f"{ms:g}", "small", anchor="middle")


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** len(str(int(least))) / 10 if least >= 1 else 0.1
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least or factor == 10)


def _row(found: Timeline, worker_id: WorkerId, y: float, scale: _Scale) -> Iterator[str]:
    steps = [step for step in found.steps if step.worker_id == worker_id]
    yield _text(12, y + 17, worker_id, "worker")
    for line, label in enumerate(_stages(steps) if steps else ["only what it sent"]):
        yield _text(12, y + 32 + 13 * line, label, "small")
    if not steps:
        yield from _sent(found, worker_id, y, scale)
    for step in steps:
        home = _ran(_before_failover(step))
        x, end = scale.x(step.start), scale.x(step.end)
        yield f'<rect class="axis" x="{x}" y="{y}" width="{end - x:.2f}" height="{BAR}" fill="#fff"/>'
        for slot in step.slots:
            took_over = bool(home) and not _ran([slot]) <= home
            yield from _slot(slot, y, scale, "slot over" if took_over else "slot")
            if slot.is_failover:
                x = scale.x(slot.start)
                yield f'<line class="late" x1="{x}" y1="{y - 8}" x2="{x}" y2="{y + BAR + 8}"/>'
                yield _text(x + 4, y - 3, "failover", "red")


def _slot(slot: TimedSlot, y: float, scale: _Scale, style: str) -> Iterator[str]:
    if slot.kind is SlotKind.WAIT:
        return
    x, end = scale.x(slot.start), scale.x(slot.end)
    width = max(end - x, 0.8)
    about = escape(f"{slot.name}: {(slot.end - slot.start) * 1e3:.2f} ms")
    yield (
        f'<rect class="{style}" x="{x}" y="{y}" width="{width:.2f}" height="{BAR}" fill="{FILLS[slot.kind]}">'
        f"<title>{about}</title></rect>"
    )
    label = slot.name.replace("FRC", "f")
    label_px = len(label) * LETTER_PX + 3
    if label_px > width:
        return
    if slot.kind is SlotKind.REDUNDANT:
        left, top = (x + end - label_px) / 2, y + BAR / 2 - 7
        yield f'<rect x="{left:.2f}" y="{top}" width="{label_px:.2f}" height="14" fill="#fff" fill-opacity=".8"/>'
    yield _text((x + end) / 2, y + BAR / 2 + 4, label, anchor="middle")


def _sent(found: Timeline, worker_id: WorkerId, y: float, scale: _Scale) -> Iterator[str]:
    """Where what it made arrived first."""
    first: dict[str, float] = {}
    for transfer in found.transfers:
        if transfer.sender == worker_id:
            first[transfer.name] = min(transfer.arrived_at, first.get(transfer.name, transfer.arrived_at))
    last_x = 0.0
    for name, at in sorted(first.items(), key=lambda item: item[1]):
        x = scale.x(at)
        yield f'<line class="axis" x1="{x}" y1="{y + 8}" x2="{x}" y2="{y + BAR}"><title>{escape(name)}</title></line>'
        if x - last_x > len(name) * LETTER_PX + 2:
            yield _text(x, y + 5, f"{name}", "small", anchor="middle")
            last_x = x


def _losses(found: Timeline, rows: dict[WorkerId, int], scale: _Scale) -> Iterator[str]:
    """From when the coordinator said so."""
    left = dict(rows)
    losses = [event for event in found.story if event.kind == "loss" and found.start <= event.at <= found.end]
    for event, worker_id in [(event, worker_id) for event in losses for worker_id in rows]:
        named = f"worker {worker_id} " in event.text or not event.text.startswith("worker ")
        if worker_id not in left or event.node_id != node_id_of(worker_id) or not named:
            continue
        x, end, y = scale.x(event.at), scale.x(found.end), left.pop(worker_id)
        yield f'<rect x="{x}" y="{y}" width="{end - x:.2f}" height="{BAR}" fill="#b3261e" fill-opacity=".12"/>'
        yield f'<line class="late" x1="{x}" y1="{y - 8}" x2="{x}" y2="{y + BAR + 8}"/>'
        yield _text(x + 6, y + BAR / 2 + 4, f"lost: {event.text}", "red")


def _legend(y: float) -> Iterator[str]:
    x = 12.0
    shown = [kind for kind in SlotKind if kind is not SlotKind.OTHER]
    for name, fill, style in [
        *((_NAMES.get(kind, str(kind)), FILLS[kind], "slot") for kind in shown),
        ("stage taken over", "#fff", "slot over"),
    ]:
        yield f'<rect class="{style}" x="{x}" y="{y}" width="16" height="13" fill="{fill}"/>'
        yield _text(x + 21, y + 11, name)
        x += 21 + len(name) * LETTER_PX + 16


def _stages(steps: Iterable[WorkerStep]) -> list[str]:
    """``pipeline 0`` and ``stage 0``, after a failover ``stage 0, then 0 and 1``."""
    ran = [places for step in steps for places in (_ran(_before_failover(step)), _ran(step.slots)) if places]
    if not ran:
        return ["no stage"]
    home = min(ran[0])[0]
    spelt = [" and ".join(_place(place, home) for place in sorted(places)) for places in ran]
    changed = spelt[:1] + [later for earlier, later in pairwise(spelt) if later != earlier]
    return [f"pipeline {home}", "stage " + ", then ".join(changed)]


def _place(place: Place, home: int) -> str:
    pipeline_index, stage_index = place
    return f"{stage_index}" if pipeline_index == home else f"{stage_index} of pipeline {pipeline_index}"


def _ran(slots: Iterable[TimedSlot]) -> set[Place]:
    normal = (SlotKind.FORWARD, SlotKind.BACKWARD)
    return {(s.pipeline_index, s.stage_index) for s in slots if s.kind in normal and s.stage_index is not None}


def _before_failover(step: WorkerStep) -> list[TimedSlot]:
    """All of them, where there is no failover."""
    return list(takewhile(lambda slot: not slot.is_failover, step.slots))


def _text(x: float, y: float, text: str, style: str = "", *, anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
