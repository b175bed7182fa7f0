"""What a worker does next: one pure function of what it hosts, its in-order counters and what has arrived.

1F1B falls out of "backward first, at most P − stage microbatches in flight" (PipeDream-Flush; Narayanan et al.,
arXiv 2006.09503). A takeover is one more hosted stage with counters at zero. The executor, the dry run and the tests
all call ``next_action``; nothing else decides.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from bamboo_trainer.plan import Mode, StagePlan


class Kind(StrEnum):
    FORWARD = "F"
    BACKWARD = "B"
    REDUNDANT_FORWARD = "FRC"
    CONTRIBUTE = "C"
    """Hand a finished stage's gradients to the reducers, or a finished part's to the next part's host."""
    REDUCE = "R"
    """Sum one chunk of one unit over the pipelines."""
    HOLD = "HELD"
    """Tell everybody that all reduced gradients of the held layers are here."""
    COMMIT = "COMMIT"
    """Everybody holds: apply the optimizer."""
    SAVE = "SAVE"
    """Hand the layers of a checkpoint to the background writer."""


@dataclass(frozen=True, slots=True)
class Action:
    """Spelt ``1F0``: stage 1, forward, microbatch 0. ``3C``: stage 3 contributes (``3C4``: its part from microbatch 4
    on). ``R5.0``: unit 5, chunk 0."""

    kind: Kind
    pipeline_index: int = 0
    stage_index: int = 0
    microbatch: int = 0
    unit_index: int = 0
    chunk: int = 0

    def __str__(self) -> str:
        if self.kind in (Kind.FORWARD, Kind.BACKWARD, Kind.REDUNDANT_FORWARD):
            return f"{self.stage_index}{self.kind}{self.microbatch}"
        if self.kind is Kind.CONTRIBUTE:
            return f"{self.stage_index}C{self.microbatch or ''}"
        if self.kind is Kind.REDUCE:
            return f"R{self.unit_index}.{self.chunk}"
        return str(self.kind)

    @classmethod
    def parse(cls, text: str, pipeline_index: int = 0) -> "Action":
        """The inverse of ``str``. Raises ValueError on anything else."""
        if match := re.fullmatch(r"(\d+)(F|B|FRC)(\d+)", text):
            stage, kind, microbatch = match.groups()
            return cls(Kind(kind), pipeline_index, int(stage), int(microbatch))
        if match := re.fullmatch(r"(\d+)C(\d*)", text):
            return cls(Kind.CONTRIBUTE, pipeline_index, int(match[1]), int(match[2] or 0))
        if match := re.fullmatch(r"R(\d+)\.(\d+)", text):
            return cls(Kind.REDUCE, pipeline_index, unit_index=int(match[1]), chunk=int(match[2]))
        if text in (Kind.HOLD, Kind.COMMIT, Kind.SAVE):
            return cls(Kind(text), pipeline_index)
        raise ValueError(f"{text!r} is no action; write for example 1F0, 2B3, 1FRC0, 2C, R4.0, HELD, COMMIT or SAVE")


class Key(NamedTuple):
    """The name of a datum of one step; see docs/step.md. Unused places are 0."""

    kind: str
    a: int
    b: int
    c: int = 0
    d: int = 0


def forward_key(pipeline_index: int, stage_index: int, microbatch: int) -> Key:
    """The input of the stage."""
    return Key("F", pipeline_index, stage_index, microbatch)


def backward_key(pipeline_index: int, stage_index: int, microbatch: int) -> Key:
    """The gradient of the output of the stage."""
    return Key("B", pipeline_index, stage_index, microbatch)


def contribution_key(unit_index: int, chunk: int, pipeline_index: int, layer: int) -> Key:
    return Key("C", unit_index, chunk, pipeline_index, layer)


def partial_key(layer: int, pipeline_index: int, end_microbatch: int) -> Key:
    """The layer's gradient, summed from the pipeline's first microbatch to before this one."""
    return Key("P", layer, pipeline_index, end_microbatch)


def reduced_key(unit_index: int, chunk: int) -> Key:
    return Key("R", unit_index, chunk)


class Share(NamedTuple):
    """A stage, or the part of it that begins at a microbatch."""

    pipeline_index: int
    stage_index: int
    first_microbatch: int


@dataclass(slots=True)
class HostedStage:
    """A stage that this worker runs, and how far it is. Counters are microbatches of the global batch."""

    stage: StagePlan
    num_stages: int
    microbatches: range
    next_forward: int
    next_backward: int
    contributed: bool = False
    present: bool = True
    """Its layers are here (a fetch may still be under way)."""
    redundant: bool = False
    """Another worker is its host; this one computes the same beside it (``full``)."""
    apart: bool = False
    """A part that does not begin with the pipeline's first microbatch: its gradients are kept apart, and added to the
    sum that the part before it sends."""
    spared: bool = False
    """Of a lost host that had done it all; so its outputs are not here."""
    taken_over: bool = False
    """In this step, from a host that was lost."""

    @property
    def is_last(self) -> bool:
        """Its outputs are losses."""
        return self.stage.stage_index == self.num_stages - 1

    @property
    def share(self) -> Share:
        return Share(*self.stage.place, self.microbatches.start)

    @property
    def in_flight_limit(self) -> int:
        return self.num_stages - self.stage.stage_index

    @property
    def finished(self) -> bool:
        return self.next_backward == self.microbatches.stop

    def is_of(self, action: Action) -> bool:
        """Whether the action is this stage's, or part's."""
        place = (action.pipeline_index, action.stage_index)
        if action.kind is Kind.CONTRIBUTE:
            return self.stage.place == place and action.microbatch == (self.microbatches.start if self.apart else 0)
        return self.stage.place == place and action.microbatch in self.microbatches


@dataclass(slots=True)
class ShadowedStage:
    stage: StagePlan
    microbatches: range
    next_redundant: int
    num_layers_done: int = 0
    """Over all microbatches."""
    present: bool = True
    slots: tuple[int, ...] = ()
    """See ``StagePlan.slots``: those of this worker."""

    def advance(self, *, complete: bool) -> None:
        """One layer further; ``complete``: it was the microbatch's last."""
        self.num_layers_done += 1
        self.next_redundant += complete


Has = Callable[[Key], bool]


def next_action(hosted: Sequence[HostedStage], shadowed: Sequence[ShadowedStage], has: Has) -> Action | None:
    """The forward, backward, contribution or redundant forward to do now; None: wait for a message.

    Normal computation comes first: a backward before a forward, and after a takeover as ``_compute_action`` says. FRC
    fills its slots, or, where a plan has none, waits while the worker still has normal work to come; in ``eager`` and
    ``full`` mode what is left is done after it.
    """
    own = [h for h in hosted if not h.redundant]
    action = _compute_action(own, has)
    if action is not None:
        return action
    for h in own:
        if h.finished and not h.contributed and _sum_ready(h, has):
            return Action(Kind.CONTRIBUTE, *h.stage.place, h.microbatches.start if h.apart else 0)
    action = _compute_action([h for h in hosted if h.redundant], has)
    if action is not None:
        return action
    num_done = sum(h.next_forward + h.next_backward - 2 * h.microbatches.start for h in own)
    waiting = not all(h.finished for h in own)
    for s in shadowed:
        if s.present and _is_redundant_wanted(s, num_done, waiting=waiting) and _redundant_ready(s, has):
            return Action(Kind.REDUNDANT_FORWARD, *s.stage.place, s.next_redundant)
    return None


def _is_redundant_wanted(s: ShadowedStage, num_done: int, *, waiting: bool) -> bool:
    is_left_to_do = s.stage.mode is Mode.EAGER and not waiting
    if s.slots:
        return is_left_to_do or s.num_layers_done < s.slots[min(num_done, len(s.slots) - 1)]
    return is_left_to_do or (s.stage.mode in (Mode.EAGER, Mode.BUBBLE) and waiting)


def _compute_action(hosted: Sequence[HostedStage], has: Has) -> Action | None:
    """A worker that took a stage over beside its own has its backwards to make up, with all gradients at hand. Would it
    do them first, the later stages would starve, and keep it waiting at the end: so a forward that may be done goes
    first there. A backward that feeds the stage before it goes before one that may be done any time.
    """
    by_depth = sorted((h for h in hosted if h.present), key=lambda h: h.stage.stage_index, reverse=True)
    pipelines = {h.stage.pipeline_index for h in hosted if not h.taken_over}
    behind = {h.stage.pipeline_index for h in hosted if h.taken_over} & pipelines
    for h in by_depth:
        makes_up = h.stage.pipeline_index in behind and not h.is_last
        if makes_up and _backward_ready(h, has) and _forward_ready(h, has):
            return Action(Kind.FORWARD, *h.stage.place, h.next_forward)
    for h in sorted(by_depth, key=lambda h: h.stage.stage_index or h.num_stages):
        if _backward_ready(h, has):
            return Action(Kind.BACKWARD, *h.stage.place, h.next_backward)
    for h in by_depth:
        if _forward_ready(h, has):
            return Action(Kind.FORWARD, *h.stage.place, h.next_forward)
    return None


def _backward_ready(h: HostedStage, has: Has) -> bool:
    if h.next_backward == h.next_forward:
        return False
    return h.is_last or has(backward_key(h.stage.pipeline_index, h.stage.stage_index, h.next_backward))


def _forward_ready(h: HostedStage, has: Has) -> bool:
    if h.next_forward == h.microbatches.stop or h.next_forward - h.next_backward >= h.in_flight_limit:
        return False
    is_first = h.stage.stage_index == 0
    return is_first or has(forward_key(h.stage.pipeline_index, h.stage.stage_index, h.next_forward))


def _sum_ready(h: HostedStage, has: Has) -> bool:
    """What its gradients are added to."""
    d, start = h.stage.pipeline_index, h.microbatches.start
    return not h.apart or all(has(partial_key(layer, d, start)) for layer in h.stage.layers)


def _redundant_ready(s: ShadowedStage, has: Has) -> bool:
    if s.next_redundant == s.microbatches.stop:
        return False
    is_first = s.stage.stage_index == 0
    return is_first or has(forward_key(s.stage.pipeline_index, s.stage.stage_index, s.next_redundant))
