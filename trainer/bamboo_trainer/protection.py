"""How the stages of a cut may be protected: the job's word, or stage by stage what its loss would cost and what fits.

``eager`` and ``full`` cost time in every step to save less than a step after a loss: they are for those who ask for
them. Pure.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from bamboo_trainer.arrangement import Arrangement
from bamboo_trainer.memory import memory_of
from bamboo_trainer.outlook import Cut, Shares, loss_s, num_covering, simulate
from bamboo_trainer.paper import homes_of
from bamboo_trainer.plan import Mode
from bamboo_trainer.wanted import Wanted

SHADOWED = (Mode.BUBBLE, Mode.LAZY, Mode.MIRROR)
BARE = (Mode.REROUTE, Mode.OFF)
"""Of equals, the earlier one."""
MAX_LEVEL = 2

Rows = tuple[tuple[Mode, ...], ...]


def protections(cuts: tuple[Cut, ...], microbatches: tuple[range, ...], wanted: Wanted) -> Iterator[Arrangement]:
    """With shadows at each level that is allowed, and without: in each, the best mode for every stage."""
    levels = range(1, MAX_LEVEL + 1) if wanted.level is None else (wanted.level,)
    longest = max(map(len, cuts))
    can_shadow = longest > 1 and (wanted.mode is None or wanted.mode.has_shadows)
    for level in levels if can_shadow else ():
        if level < longest or level == levels[0]:
            yield _protect(cuts, microbatches, wanted, (wanted.mode,) if wanted.mode else SHADOWED, level)
    if wanted.mode is None:
        yield _protect(cuts, microbatches, wanted, BARE, levels[0])
    elif not can_shadow:
        yield _with(cuts, microbatches, tuple((wanted.mode,) * len(cut) for cut in cuts), levels[0])


def _protect(
    cuts: tuple[Cut, ...], microbatches: tuple[range, ...], wanted: Wanted, among: tuple[Mode, ...], level: int
) -> Arrangement:
    first = _with(cuts, microbatches, tuple((among[0],) * len(cut) for cut in cuts), level)
    if len(among) == 1:
        return first
    runs = [
        simulate(cut, len(microbatches[d]), first.modes[d], level, wanted.costs) for d, cut in enumerate(first.cuts)
    ]
    step_s = max(made_s for made_s, _ in runs)
    homes = homes_of(first, wanted.weather.num_accelerators)
    none = [(0.0,) * len(cut) for cut in cuts]

    def price(mode: Mode, d: int, s: int) -> float:
        alike = _with(cuts, microbatches, tuple((mode,) * len(cut) for cut in cuts), level)
        shares = [made for _, made in runs] if mode is Mode.BUBBLE else none
        return loss_s(alike, homes, [(d, s)], wanted, step_s, shares, num_standbys=1)

    def best(d: int, s: int, modes: tuple[Mode, ...]) -> Mode:
        if len(cuts[d]) == 1 and modes[0].has_shadows:  # there is nobody to shadow it
            modes = BARE
        if modes is BARE and not num_covering(first, homes, d, s):  # and nobody in another pipeline to take it over
            return Mode.OFF
        return min(modes, key=lambda mode: price(mode, d, s))

    modes = tuple(tuple(best(d, s, among) for s in range(len(cut))) for d, cut in enumerate(cuts))
    chosen = _with(cuts, microbatches, modes, level)
    return _covered(_within_memory(chosen, wanted, [share for _, share in runs], best), wanted)


def _covered(chosen: Arrangement, wanted: Wanted) -> Arrangement:
    """A stage that nobody could take over is not called ``reroute``: others may have lost what covered it."""
    homes = homes_of(chosen, wanted.weather.num_accelerators)
    for d, cut in enumerate(chosen.cuts):
        for s in range(len(cut)):
            if chosen.modes[d][s] is Mode.REROUTE and not num_covering(chosen, homes, d, s):
                chosen = _changed(chosen, d, s, Mode.OFF)
    return chosen


def _within_memory(
    chosen: Arrangement, wanted: Wanted, shares: list[Shares], best: Callable[[int, int, tuple[Mode, ...]], Mode]
) -> Arrangement:
    """Where a worker is too full, the stages that it shadows get less: no FRC, then no takeover, then no shadow."""
    limit = wanted.weather.memory_bytes
    rungs = (SHADOWED[1:], (Mode.MIRROR,), BARE) if limit is not None else ()
    for rung in rungs:
        assert limit is not None
        for d, cut in enumerate(chosen.cuts):
            for s in range(len(cut)):
                if memory_of(chosen, wanted.costs, d, s, shares[d], wanted.redundancy_memory).peak <= limit:
                    continue
                for other in chosen.shadowed_by(d, s):
                    chosen = _changed(chosen, d, other, best(d, other, rung))
    return chosen


def _changed(arrangement: Arrangement, d: int, s: int, mode: Mode) -> Arrangement:
    modes = [list(row) for row in arrangement.modes]
    modes[d][s] = mode
    return replace(arrangement, modes=tuple(map(tuple, modes)))


def _with(cuts: tuple[Cut, ...], microbatches: tuple[range, ...], modes: Rows, level: int) -> Arrangement:
    return Arrangement(cuts=cuts, microbatches=microbatches, modes=modes, level=level)
