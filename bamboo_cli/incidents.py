"""The losses of a run, each told from its first sign to the commit after which all is whole again. Pure.

A loss has a node, its victim. Its signs are events of that node: a drill, a notice, a verdict, the cloud's word. It is
over with the first plan that was made at a boundary after the last sign, or with a restore, or with the run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from bamboo_cli.coordinator.story_kinds import StoryKind

if TYPE_CHECKING:
    from bamboo_cli.coordinator.status import StoryEvent

FIRST_SIGNS = (StoryKind.DRILL, StoryKind.NOTICE, StoryKind.LOSS, StoryKind.PREEMPTION)
HEALED = (StoryKind.RECONFIGURATION, StoryKind.RESTORE)
CHANGES = (StoryKind.FAILOVER, *HEALED)
"""After these, the next commit says how long the pause was."""
LINK_WORDS = "the link to the agent of"
"""Of an event of the kind ``node`` that may be the very first sign."""
LINK_S = 30.0
AFTERMATH_S = 60.0
"""What happens to the victim so soon after all is whole belongs to its loss: that it is given back, and gone."""
USUAL_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    step: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    at: float
    after_s: float
    """Since the first sign."""
    text: str
    is_commit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    node_id: str
    run_id: str | None
    begins_at: float
    healed_at: float | None
    """None: nothing was made whole again, so far or at all."""
    ends_at: float
    """Of the last event that belongs to it."""
    noticed: bool
    taken: bool
    """By the cloud, as far as is known."""
    events: tuple["StoryEvent", ...]
    """All between, of whatever kind: what else happened may matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A loss with the commits around it."""

    loss: Loss
    step: int | None
    """The one that was under way at its first sign."""
    usual_step_s: float | None
    late_s: float | None
    """By how much the commits after changes came later than usual, in all."""
    steps_rerun: int
    moments: tuple[Moment, ...]


def losses(story: Sequence["StoryEvent"]) -> tuple[Loss, ...]:
    """Of a whole story, by their first signs."""
    by_node: dict[str, list[StoryEvent]] = {}
    for event in story:
        if event.kind in FIRST_SIGNS and event.node_id is not None:
            by_node.setdefault(event.node_id, []).append(event)
    found = [_loss(node_id, signs, story) for node_id, listed in by_node.items() for signs in _separate(listed, story)]
    return tuple(sorted(found, key=lambda loss: loss.begins_at))


def _separate(signs: Sequence["StoryEvent"], story: Sequence["StoryEvent"]) -> Iterator[list["StoryEvent"]]:
    """Signs of one node: what comes after all was whole again is another loss, but for the cloud's belated word."""
    group = [signs[0]]
    for sign in signs[1:]:
        healed = _healed(story, group[-1])
        if healed is not None and healed.event_id < sign.event_id and sign.kind != StoryKind.PREEMPTION:
            yield group
            group = []
        group.append(sign)
    yield group


def _healed(story: Sequence["StoryEvent"], sign: "StoryEvent") -> "StoryEvent | None":
    return next((e for e in story if e.event_id > sign.event_id and e.kind in HEALED), None)


def _loss(node_id: str, signs: Sequence["StoryEvent"], story: Sequence["StoryEvent"]) -> Loss:
    link = [
        e for e in story if e.node_id == node_id and e.text.startswith(LINK_WORDS) and 0 <= signs[0].at - e.at <= LINK_S
    ]
    first = link[-1] if link else signs[0]
    belated = signs[-1].kind == StoryKind.PREEMPTION and len(signs) > 1
    healed = _healed(story, signs[-2] if belated else signs[-1]) or (_healed(story, signs[-1]) if belated else None)
    last = max((e for e in (signs[-1], healed, _change(story, signs[-1])) if e is not None), key=lambda e: e.event_id)
    last = _aftermath(story, node_id, last)
    return Loss(
        node_id=node_id,
        run_id=first.run_id or last.run_id,
        begins_at=first.at,
        healed_at=healed.at if healed is not None else None,
        ends_at=last.at,
        noticed=any(sign.kind == StoryKind.NOTICE for sign in signs),
        taken=any(sign.kind == StoryKind.PREEMPTION for sign in signs),
        events=tuple(e for e in story if first.event_id <= e.event_id <= last.event_id),
    )


def _change(story: Sequence["StoryEvent"], sign: "StoryEvent") -> "StoryEvent | None":
    """What was done about a loss that nothing has made whole again."""
    return next((e for e in story if e.event_id > sign.event_id and e.kind in CHANGES), None)


def _aftermath(story: Sequence["StoryEvent"], node_id: str, last: "StoryEvent") -> "StoryEvent":
    """The end of the victim, unless it is lost once more."""
    for event in story:
        if event.event_id <= last.event_id or event.node_id != node_id:
            continue
        if event.kind != StoryKind.NODE or event.at - last.at > AFTERMATH_S:
            break
        last = event
    return last


def of_node(story: Sequence["StoryEvent"], node_id: str) -> frozenset[int]:
    """Ids of the events that answer a loss of the node: failovers, hand-overs, new plans, restores."""
    answers = (*CHANGES, StoryKind.HANDOVER, StoryKind.WAIT)
    return frozenset(
        event.event_id
        for loss in losses(story)
        if loss.node_id == node_id
        for event in loss.events
        if event.kind in answers
    )


def told(loss: Loss, commits: Sequence[Commit]) -> Told:
    """``commits``: some before the loss, all during it and one after it, in the order of time."""
    before = [commit for commit in commits if commit.at <= loss.begins_at]
    usual_s = median(gaps) if (gaps := [b.at - a.at for a, b in pairwise(before[-USUAL_STEPS - 1 :])]) else None
    shown = dict.fromkeys(before[-1:])
    late_s = 0.0
    for change in (event for event in loss.events if event.kind in CHANGES):
        after = next((commit for commit in commits if commit.at > change.at), None)
        if after is not None and after not in shown:
            shown[after] = None
            late_s += _late_s(after, commits, usual_s)
    moments = [_moment(loss, event.at, event.text) for event in loss.events]
    moments += [_moment(loss, c.at, _commit_text(c, commits, usual_s), is_commit=True) for c in shown]
    return Told(
        loss=loss,
        step=before[-1].step + 1 if before else None,
        usual_step_s=usual_s,
        late_s=late_s if usual_s is not None and len(shown) > 1 else None,
        steps_rerun=sum(int(event.numbers.get("steps_rerun", 0)) for event in loss.events),
        moments=tuple(sorted(moments, key=lambda moment: moment.at)),
    )


def _late_s(commit: Commit, commits: Sequence[Commit], usual_s: float | None) -> float:
    before = max((other.at for other in commits if other.at < commit.at), default=None)
    return 0.0 if before is None or usual_s is None else max(0.0, commit.at - before - usual_s)


def _commit_text(commit: Commit, commits: Sequence[Commit], usual_s: float | None) -> str:
    before = max((other.at for other in commits if other.at < commit.at), default=None)
    if before is None or usual_s is None:
        return f"step {commit.step} is committed"
    return f"step {commit.step} is committed, {commit.at - before:.2f} s after the one before (usually {usual_s:.2f} s)"


def _moment(loss: Loss, at: float, text: str, *, is_commit: bool = False) -> Moment:
    return Moment(at=at, after_s=at - loss.begins_at, text=text, is_commit=is_commit)


def chosen(found: Iterable[Loss], which: str) -> tuple[Loss, ...]:
    """``latest``, ``all``, or a node's."""
    listed = tuple(found)
    if which == "all":
        return listed
    return listed[-1:] if which == "latest" else tuple(loss for loss in listed if loss.node_id == which)
