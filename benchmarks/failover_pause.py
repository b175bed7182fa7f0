"""Claim: a sudden kill in mid-step costs no more than one step, and a quarter of what kill-and-restart costs.

The same pipeline of four stages of emulated device time, the same kills of inner stages in mid-step, and a checkpoint
every 10 steps, in turn: ``bamboo run`` on a local cloud, coordinator and all; and Schedule1F1B under ``torchrun
--max-restarts``. The pause is the time between the commit before the disturbed step and the step's own commit, less an
undisturbed step; for torchrun that includes the steps since the checkpoint, which run again.

    python -m benchmarks.failover_pause [--rounds 3]
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cluster import Disturbed, Failover, disturbed_run
from benchmarks.fleet import claim, finish

STAGES = 4
MICROBATCHES = 8
MICROBATCH_SIZE = 16
CHECKPOINT_EVERY = 10
RECIPE_OPTIONS = {
    "depth": 16,
    "width": 64,
    "dropout": 0.0,
    "clip_norm": None,
    "sleep_forward_s": 0.0025,
    "sleep_backward_s": 0.005,
}
"""Four layers a stage: 10 ms forward, 20 ms backward, so a step is (8 + 3) * 30 = 330 ms at best."""
KILLS = (
    {"step": 20, "stage": 1, "action": "1B2"},
    {"step": 60, "stage": 2, "action": "2B4"},
    {"step": 100, "stage": 1, "action": "1F6"},
)
STEPS = 140
"""After each kill, time for a replacement to come and to be taken in."""
PEER_KILLS = tuple({"step": step, "stage": 1, "microbatch": 4} for step in (23, 45, 67))
"""On average in the middle between two checkpoints."""
PEER_STEPS = 70
PEER_TIMEOUT_S = 180.0


def ours() -> Disturbed:
    job = {
        "stages": STAGES,
        "recipe": "mlp",
        "recipe_options": RECIPE_OPTIONS,
        "steps": STEPS,
        "global_batch_size": MICROBATCHES * MICROBATCH_SIZE,
        "microbatch_size": MICROBATCH_SIZE,
        "digest_every": 0,
    }
    with tempfile.TemporaryDirectory(prefix="bamboo-bench-") as folder:
        return disturbed_run(job, [dict(kill) for kill in KILLS], Path(folder))


def tell(disturbed: Disturbed) -> None:
    print(f"bamboo: step {disturbed.step_s * 1e3:.0f} ms", file=sys.stderr)
    for f in disturbed.failovers:
        print(
            f"  {f.action}: decided {f.decided_s * 1e3:.0f} ms, adopted {f.adopted_s * 1e3:.0f} ms after the kill, "
            f"pause {f.pause_s:.3f} s = {f.pause_s / disturbed.step_s:.2f} steps, of it {f.recomputation_s:.3f} s "
            f"recomputation, {f.whole_again_s:.2f} s lost until whole again",
            file=sys.stderr,
        )


def torchruns() -> tuple[float, list[float]]:
    """Seconds of an undisturbed step, and of the pause after each kill."""
    depth = RECIPE_OPTIONS["depth"]
    assert isinstance(depth, int)
    cut = [(s * depth // STAGES, (s + 1) * depth // STAGES) for s in range(STAGES)]
    with tempfile.TemporaryDirectory(prefix="bamboo-bench-") as folder:
        job = {
            "recipe": "mlp",
            "recipe_options": RECIPE_OPTIONS,
            "num_microbatches": MICROBATCHES,
            "microbatch_size": MICROBATCH_SIZE,
            "cut": cut,
            "num_steps": PEER_STEPS,
            "kills": PEER_KILLS,
            "checkpoint_every": CHECKPOINT_EVERY,
            "folder": folder,
        }
        description = Path(folder) / "job.json"
        description.write_text(json.dumps(job))
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={STAGES}"]
        command += [f"--max-restarts={len(PEER_KILLS)}", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
        command += ["--monitor-interval=0.05", "-m", "benchmarks.torchrun_1f1b", str(description)]
        # Else the new processes read the addresses of the dead ones from the store that they share, and never meet.
        environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        log = None if os.environ.get("BAMBOO_BENCH_LOG") else subprocess.DEVNULL
        subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=PEER_TIMEOUT_S, check=True)
        commits = [json.loads(line) for line in (Path(folder) / "commits").read_text().splitlines()]
    return _peer_pauses(commits)


def _peer_pauses(commits: list[dict[str, Any]]) -> tuple[float, list[float]]:
    """A step may be committed twice: the first time, and again after a restart."""
    passed = [(b["step"], b["at"] - a["at"]) for a, b in pairwise(commits) if b["step"] == a["step"] + 1]
    usual_s = median(seconds for _, seconds in passed)
    first_at: dict[int, float] = {}
    for commit in commits:
        first_at.setdefault(commit["step"], commit["at"])
    return usual_s, [first_at[k["step"]] - first_at[k["step"] - 1] - usual_s for k in PEER_KILLS]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    failovers: list[tuple[Failover, float]] = []
    peer_pauses: list[tuple[float, float]] = []
    for _ in range(arguments.rounds):
        disturbed = ours()
        failovers += [(failover, disturbed.step_s) for failover in disturbed.failovers]
        tell(disturbed)
        step_s, pauses = torchruns()
        peer_pauses += [(pause_s, step_s) for pause_s in pauses]
        told = ", ".join(f"{pause_s:.2f} s = {pause_s / step_s:.1f} steps" for pause_s in pauses)
        print(f"torchrun: step {step_s * 1e3:.0f} ms; pauses {told}", file=sys.stderr)
    pause_s = median(f.pause_s for f, _ in failovers)
    peer_pause_s = median(pause for pause, _ in peer_pauses)
    claims = [
        claim("pause / undisturbed step", median(f.pause_s / step_s for f, step_s in failovers), 1.0),
        claim("seconds from kill to adoption", median(f.adopted_s for f, _ in failovers), 0.1),
        claim("pause / pause of torchrun", pause_s / peer_pause_s, 0.25),
    ]
    figures = {
        "step_s": median(step_s for _, step_s in failovers),
        "pause_s": pause_s,
        "kill_to_decision_s": median(f.decided_s for f, _ in failovers),
        "kill_to_adoption_s": median(f.adopted_s for f, _ in failovers),
        "recomputation_s": median(f.recomputation_s for f, _ in failovers),
        "lost_until_whole_again_s": median(f.whole_again_s for f, _ in failovers),
        "failovers": [dataclasses.asdict(f) for f, _ in failovers],
        "torchrun_step_s": median(step_s for _, step_s in peer_pauses),
        "torchrun_pause_s": peer_pause_s,
        "torchrun_pause_steps": median(pause / step_s for pause, step_s in peer_pauses),
        "torchrun_pauses_s": [pause for pause, _ in peer_pauses],
    }
    return finish("failover_pause", claims, figures=figures)


if __name__ == "__main__":
    sys.exit(main())
