"""Steps that are committed though nobody has told of them: (first, end) in order, none empty, none touching. Pure."""

Untold = tuple[tuple[int, int], ...]


def added(untold: Untold, first: int, end: int) -> Untold:
    """``first``: no earlier than the end of those that are there already."""
    if first >= end:
        return untold
    if untold and untold[-1][1] == first:
        return (*untold[:-1], (untold[-1][0], end))
    return (*untold, (first, end))


def holds(untold: Untold, step: int) -> bool:
    return any(first <= step < end for first, end in untold)


def told(untold: Untold, step: int) -> Untold:
    """Without that step."""
    pieces = (
        piece
        for first, end in untold
        for piece in (((first, step), (step + 1, end)) if first <= step < end else ((first, end),))
    )
    return tuple((first, end) for first, end in pieces if first < end)


def up_to(untold: Untold, last: int) -> Untold:
    """What is left of them when the run goes back to the end of step ``last``."""
    return tuple((first, min(end, last + 1)) for first, end in untold if first <= last)
