"""What a night does, from what it finds. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Left(StrEnum):
    """What is there under the cluster's name before the night begins."""

    NOTHING = "nothing"
    OURS = "ours"
    """An earlier night's cluster is up."""
    IN_USE = "in use"
    """Somebody's cluster is up, and trains."""
    IDLE = "idle"
    """Somebody's cluster is up, and nobody trains on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    is_up: bool
    made_by: str | None
    """Id of the entry whose night made the cluster."""
    is_marked: bool
    """Whether it says who made it. Nothing is rented before it does."""
    trains: bool
    """A run is on, and a coordinator looks after it."""


def whose(seen: Seen, *, last_was_cut_off: bool) -> Left:
    """``last_was_cut_off``: the night before never told how it ended."""
    if not seen.is_up:
        return Left.NOTHING
    if seen.made_by is not None or (not seen.is_marked and last_was_cut_off):
        return Left.OURS
    return Left.IN_USE if seen.trains else Left.IDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The newest complete checkpoint of the cluster's runs."""

    run_id: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """``resume``: the run to go on from; None: at step 0."""

    resume: str | None
    first_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToDo:
    num_steps: int


def what_to_do(newest: Newest | None, num_steps: int, *, anew: bool) -> Begin | NothingToDo:
    """A job whose steps are done is done: its bits would be the same."""
    if anew or newest is None:
        return Begin(resume=None, first_step=0)
    if newest.step + 1 >= num_steps:
        return NothingToDo(num_steps=newest.step + 1)
    return Begin(resume=newest.run_id, first_step=newest.step + 1)
