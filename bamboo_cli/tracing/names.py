"""What the names in a page mean: of what kind a slot is, which slot made a datum, which ones use it. Pure."""

import re
from enum import StrEnum


class SlotKind(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"
    REDUNDANT = "redundant"
    REDUCE = "reduce"
    COMMIT = "commit"
    SAVE = "save"
    FETCH = "fetch"
    PLAN = "plan"
    WAIT = "bubble"
    OTHER = "other"


_KINDS = {
    "F": SlotKind.FORWARD,
    "B": SlotKind.BACKWARD,
    "FRC": SlotKind.REDUNDANT,
    "C": SlotKind.REDUCE,
    "R": SlotKind.REDUCE,
    "HELD": SlotKind.COMMIT,
    "COMMIT": SlotKind.COMMIT,
    "SAVE": SlotKind.SAVE,
    "LOAD": SlotKind.FETCH,
    "GIVE": SlotKind.FETCH,
    "PLAN": SlotKind.PLAN,
    "FAILOVER": SlotKind.PLAN,
}
"""By the letters of an action."""


def kind_of(name: str) -> SlotKind:
    """``OTHER`` for what a newer worker spells."""
    letters = re.search(r"[A-Z]+", name)
    return _KINDS.get(letters[0], SlotKind.OTHER) if letters else SlotKind.OTHER


def consumers(datum: str) -> tuple[str, ...]:
    """The actions that may use what an action made (or the layer, or the contribution) first."""
    if match := re.fullmatch(r"(\d+)F(\d+)", datum):
        stage, microbatch = int(match[1]) + 1, match[2]
        return f"{stage}F{microbatch}", f"{stage}FRC{microbatch}"
    if match := re.fullmatch(r"(\d+)B(\d+)", datum):
        return (f"{int(match[1]) - 1}B{match[2]}",)
    if match := re.fullmatch(r"C(\d+\.\d+)", datum):
        return (f"R{match[1]}",)
    if match := re.fullmatch(r"LAYER(\d+)", datum):
        return (f"LOAD{match[1]}",)
    if datum.startswith("R"):
        return ("HELD",)
    return ("COMMIT",) if datum == "HELD" else ()


def maker(datum: str) -> str:
    """What ``makes`` of the slot that made the datum is."""
    return "C" if datum.startswith(("C", "SUM")) else datum


def makes(action: str) -> str:
    """The datum: named like the action, but for a layer that is given away, and contributions and sums of a part's
    gradients, all made at once."""
    if re.fullmatch(r"\d+C\d*", action):
        return "C"
    return action.replace("GIVE", "LAYER")
