"""Claim: a sudden kill in mid-step costs what must be computed again and hardly more; other losses what they must.

    python -m benchmarks.pause_vs_peers [--rounds 3]

In turn in every round, all with emulated device time: failover_pause.py's ``bamboo run`` with its kills of inner stages
(coordinator, agents and all), its peer under ``torchrun``, and torchft-nightly with a heartbeat time-out of 1 s, where
two replica groups train the same layers side by side and one is killed; then each case of rungs.py. torchft is
installed on demand in a folder of its own; where that is not possible, its figures are left out.
"""

import argparse
import sys
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks import failover_pause, rungs, torchft_pauses
from benchmarks.cluster import Failover
from benchmarks.fleet import claim, finish
from benchmarks.peers import NotInstalled

STEP_S = 0.33
"""Of the emulated pipeline at best; a replica group's layers sleep as long."""


@dataclass(slots=True)
class Pauses:
    """Seconds of an undisturbed step, and seconds of each pause, by round."""

    step_s: list[float] = field(default_factory=list)
    pause_s: list[list[float]] = field(default_factory=list)

    def add(self, step_s: float, pauses: list[float]) -> None:
        self.step_s.append(step_s)
        self.pause_s.append(pauses)

    @property
    def median_s(self) -> float:
        return median(pause for pauses in self.pause_s for pause in pauses)

    @property
    def median_steps(self) -> float:
        rounds = zip(self.step_s, self.pause_s, strict=True)
        return median(pause / step_s for step_s, pauses in rounds for pause in pauses)

    def figures(self) -> dict[str, Any]:
        told = {"step_s": self.step_s, "pause_s": self.pause_s}
        return told | {"median_pause_s": self.median_s, "median_pause_steps": self.median_steps}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    ours, torchrun, torchft = Pauses(), Pauses(), Pauses()
    failovers: list[Failover] = []
    outcomes: dict[str, list[rungs.Outcome]] = {case.name: [] for case in (*rungs.CASES, rungs.FREEZE)}
    left_out = ""
    for _ in range(arguments.rounds):
        disturbed = failover_pause.ours()
        failover_pause.tell(disturbed)
        failovers += disturbed.failovers
        ours.add(disturbed.step_s, [f.pause_s for f in disturbed.failovers])
        torchrun.add(*_told("torchrun", *failover_pause.torchruns()))
        if not left_out:
            try:
                torchft.add(*_told("torchft", *_torchft()))
            except NotInstalled as error:
                left_out = str(error)
                print(f"left out: {left_out}", file=sys.stderr)
        for case in (*rungs.CASES, rungs.FREEZE):
            outcomes[case.name].append(rungs.run_case(case))
            _tell(case, outcomes[case.name][-1])
    peers = {"torchrun": torchrun} | ({"torchft": torchft} if torchft.pause_s else {})
    beyond_s = [f.pause_s - f.recomputation_s for f in failovers]
    claims = [
        claim("1 fail over: seconds beyond the recomputation itself", median(beyond_s), 0.1),
        claim("1 fail over: pause in steps", ours.median_steps, 0.7),
        *[claim(f"pause / pause of {name}", ours.median_s / peer.median_s, 1.0) for name, peer in peers.items()],
        *_claims_of_rungs(outcomes),
    ]
    figures = {
        "bamboo": ours.figures(),
        "beyond_s": beyond_s,
        "recomputation_s": [f.recomputation_s for f in failovers],
        "kill_to_decision_s": [f.decided_s for f in failovers],
        "kill_to_adoption_s": [f.adopted_s for f in failovers],
        **{name: peer.figures() for name, peer in peers.items()},
        "left_out": left_out,
        "rungs": {
            name: {"lost_steps": [one.lost_steps for one in found], "step_ms": [one.step_s * 1e3 for one in found]}
            for name, found in outcomes.items()
        },
    }
    return finish("pause_vs_peers", claims, figures=figures)


def _torchft() -> tuple[float, list[float]]:
    options = failover_pause.RECIPE_OPTIONS
    depth, width = options["depth"], options["width"]
    assert isinstance(depth, int) and isinstance(width, int)
    return torchft_pauses.pauses(depth=depth, width=width, step_s=STEP_S, num_kills=len(failover_pause.KILLS))


def _told(name: str, step_s: float, pauses: list[float]) -> tuple[float, list[float]]:
    told = ", ".join(f"{pause_s:.2f} s = {pause_s / step_s:.1f} steps" for pause_s in pauses)
    print(f"{name}: step {step_s * 1e3:.0f} ms; pauses {told}", file=sys.stderr)
    return step_s, pauses


def _tell(case: rungs.Case, one: rungs.Outcome) -> None:
    counts = {key: one.summary[key] for key in ("failovers", "reconfigurations", "restores", "steps_rerun")}
    fenced = f"; fenced after {one.fenced_s:.2f} s" if case is rungs.FREEZE and one.fenced_s is not None else ""
    print(f"{case.name}: {one.lost_steps:.2f} steps of {one.step_s * 1e3:.0f} ms{fenced}; {counts}", file=sys.stderr)


def _claims_of_rungs(outcomes: dict[str, list[rungs.Outcome]]) -> list[dict[str, Any]]:
    claims = [
        claim(f"{case.name}: steps lost", median(one.lost_steps for one in outcomes[case.name]), case.limit)
        for case in rungs.CASES
    ]
    rerun = sum(one.summary["steps_rerun"] for case in rungs.CASES[:-1] for one in outcomes[case.name])
    fenced_s = median(one.fenced_s for one in outcomes[rungs.FREEZE.name] if one.fenced_s is not None)
    return [
        *claims,
        claim("committed steps run again on rungs 0 to 2", rerun, 0),
        claim("frozen worker: seconds until it is fenced", fenced_s, 1.0),
    ]


if __name__ == "__main__":
    sys.exit(main())
