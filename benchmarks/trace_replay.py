"""Claim: on a recorded spot trace Bamboo commits nearly what its nodes could, and far more than checkpoint and restart.

    python -m benchmarks.trace_replay TRACE [--losses 12] [--speed 24] [--nodes 8] [--off]

TRACE has a line ``milliseconds,add|remove,name`` for each instance that came or went. Replayed is its first hour with
at least so many losses, scaled to so many nodes and sped up (docs/local-cloud.md says how), in turn by ``bamboo run``
and twice by restart_peer.py, whose processes all start anew from the newest checkpoint after each loss: with a
checkpoint and its reading that take what those of a large trainer took, and all in its favour, where both cost nothing.
With ``--off`` also by ``bamboo run`` with ``redundancy: off``, which goes back to its newest checkpoint with the
processes that live.
Emulated device time. The replay begins ``--warm-up-s`` before the hour that counts, for the first processes to start.
"""

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from bamboo_cli.coordinator.reader import read_plans, read_status, read_steps
from bamboo_cli.errors import CloudError, StateError
from bamboo_cli.providers.local import load_trace
from bamboo_cli.providers.local_cloud import store
from benchmarks import emulated
from benchmarks.cluster import NAME
from benchmarks.fleet import claim, finish
from benchmarks.weather import Weather, perfect_steps, weather

MICROBATCHES = 16
MICROBATCH_SIZE = 8
BATCH = MICROBATCHES * MICROBATCH_SIZE
DEPTH = 32
RECIPE = str(Path(emulated.__file__).absolute())
RECIPE_OPTIONS = {
    "depth": DEPTH,
    "sleep_forward_s": 0.003,
    "sleep_backward_s": 0.006,
}
"""With 8 stages of four layers a step is (16 + 7) * 36 = 828 ms at best."""
CHECKPOINT_EVERY = 10
BOOT_S = 45.0
"""Of a real instance (the constant of the Bamboo paper's simulator); divided by the speed."""
RECORDED_CHECKPOINT_S = 89.0
RECORDED_LOAD_S = 50.0
"""Of the trainer that the Bamboo paper compares with, as its authors recorded them: written beside training, one
checkpoint after the other; and read. Divided by the speed."""
START_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    samples: int
    step_s: float
    """The median with all nodes under one plan, nobody lost; of a peer without plans, of steps in a row."""
    spans: tuple[tuple[float, float], ...]
    """When each instance ran."""
    summary: dict[str, Any]

    @property
    def node_seconds(self) -> float:
        return sum(end - begin for begin, end in self.spans)


# --- ours --------------------------------------------------------------------------------------------------------


def ours(sky: Weather, redundancy: str = "bubble") -> Outcome:
    with tempfile.TemporaryDirectory(prefix="bamboo-bench-") as folder:
        home = Path(folder)
        job = {
            "name": NAME,
            "recipe": RECIPE,
            "recipe_options": RECIPE_OPTIONS,
            "steps": 10**6,
            "global_batch_size": BATCH,
            "microbatch_size": MICROBATCH_SIZE,
            "stages": sky.num_nodes,
            "redundancy": redundancy,
            "digest_every": 0,
            "checkpoint": {"url": str(home / "saved"), "every": CHECKPOINT_EVERY},
            "local": {
                "boot_delay_s": BOOT_S / sky.speed,
                "notice_s": 0.0,
                "trace": {"path": str(sky.path.absolute()), "speed": sky.speed, "start_s": sky.start_s},
            },
        }
        (home / "job.yaml").write_text(json.dumps(job))
        environment = os.environ | {"BAMBOO_HOME": folder, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "bamboo_cli.main"]
        log = (home / "run.log").open("wb")
        run = subprocess.Popen([*command, "run", f"{folder}/job.yaml", "--yes", "--json"], env=environment, stderr=log)
        try:
            return _watch(home, sky)
        finally:
            down = [*command, "down", "--cluster", NAME, "--yes"]
            subprocess.run(down, env=environment, timeout=90, check=False, capture_output=True)
            run.kill()
            run.wait()
            log.close()


def _watch(home: Path, sky: Weather) -> Outcome:
    started_at = _started_at(home)
    path = home / "clusters" / NAME / "state.db"
    time.sleep(max(0.0, started_at + sky.end_s - time.time()))
    status = read_status(path, now=time.time())
    if status.run is None:
        raise RuntimeError("the run did not start before the hour was over")
    steps = read_steps(path, status.run.run_id)
    before = sum(step.committed_at < started_at + sky.first_s for step in steps)
    if not before:
        raise RuntimeError(f"no step was committed in the first {sky.first_s:.0f} s of the replay")
    keys = ("preemptions", "failovers", "reconfigurations", "restores", "steps_rerun", "pause_s")
    return Outcome(
        samples=(status.run.committed_steps - before) * BATCH,
        step_s=_whole_step_s(path, status.run.run_id, sky.num_nodes),
        spans=tuple(_spans(home, sky, started_at)),
        summary={key: getattr(status.run, key) for key in keys},
    )


def _whole_step_s(path: Path, run_id: str, num_nodes: int) -> float:
    """The median with all nodes under one plan: between commits, but for each plan's first steps."""
    hosts = {plan.generation: len(plan.pipelines[0].stages) for plan in read_plans(path, run_id)}
    steps = read_steps(path, run_id)
    rows = [
        b.committed_at - a.committed_at
        for z, a, b in zip(steps, steps[1:], steps[2:], strict=False)
        if z.generation == b.generation and hosts[b.generation] == num_nodes
    ]
    return median(rows) if rows else float("nan")


def _spans(home: Path, sky: Weather, started_at: float) -> list[tuple[float, float]]:
    """Of each instance, from the end of its boot to its own, as far as it counts."""
    first, last = started_at + sky.first_s, started_at + sky.end_s
    rented = store.load(home / "local-cloud" / "state.json").rented
    spans = [(max(first, r.launched_at + BOOT_S / sky.speed), min(last, r.ended_at or last)) for r in rented]
    return [(begin, end) for begin, end in spans if begin < end]


def _started_at(home: Path) -> float:
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            replays = store.load(home / "local-cloud" / "state.json").replays
        except StateError:
            replays = {}
        if replays:
            return next(iter(replays.values())).started_at
        time.sleep(0.02)
    raise RuntimeError(f"bamboo run rented nothing: {(home / 'run.log').read_text()[-2000:]}")


# --- the peer ----------------------------------------------------------------------------------------------------


def restarted(sky: Weather, *, checkpoint_s: float = 0.0, load_s: float = 0.0) -> Outcome:
    """``checkpoint_s``: until a checkpoint is of use; 0: at once, and one every so many steps."""
    with tempfile.TemporaryDirectory(prefix="bamboo-bench-") as folder:
        job = {
            "recipe": RECIPE,
            "recipe_options": RECIPE_OPTIONS,
            "num_microbatches": MICROBATCHES,
            "microbatch_size": MICROBATCH_SIZE,
            "checkpoint_every": CHECKPOINT_EVERY,
            "changes": [dataclasses.asdict(change) for change in sky.changes],
            "until_s": sky.end_s,
            "checkpoint_s": checkpoint_s,
            "load_s": load_s,
            "folder": folder,
        }
        (Path(folder) / "job.json").write_text(json.dumps(job))
        command = [sys.executable, "-m", "benchmarks.restart_peer", f"{folder}/job.json"]
        log = None if os.environ.get("BAMBOO_BENCH_LOG") else subprocess.DEVNULL
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        peer = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        try:
            told, _ = peer.communicate(timeout=sky.end_s + START_DEADLINE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(peer.pid, signal.SIGKILL)
        if peer.returncode:
            raise RuntimeError(f"the peer ended with {peer.returncode}; BAMBOO_BENCH_LOG=1 shows why")
        started = json.loads((Path(folder) / "started").read_text())
        commits = [json.loads(line) for line in (Path(folder) / "commits").read_text().splitlines()]
    before = sum(commit["at"] < started["at"] + sky.first_s for commit in commits)
    in_row = [b["at"] - a["at"] for a, b in pairwise(commits) if b["step"] == a["step"] + 1]
    return Outcome(
        samples=(commits[-1]["step"] + 1 - before) * BATCH,
        step_s=median(in_row),
        spans=(),
        summary={"process_start_s": started["load_s"], **json.loads(told), "steps_run": len(commits)},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, metavar="TRACE")
    parser.add_argument("--losses", type=int, default=12, help="that the replay meets at least")
    parser.add_argument("--span-s", type=float, default=3600.0, help="the hour, in seconds of the trace")
    parser.add_argument("--speed", type=float, default=24.0, help="seconds of the trace that pass in one")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--off", action="store_true", help="also with `redundancy: off`")
    parser.add_argument("--warm-up-s", type=float, default=25.0, help="for the first processes to start; not counted")
    arguments = parser.parse_args()
    try:
        trace = load_trace(arguments.trace)
    except CloudError as error:
        parser.error(error.message)
    sky, num_losses = weather(
        trace,
        arguments.trace,
        num_losses=arguments.losses,
        span_s=arguments.span_s,
        num_nodes=arguments.nodes,
        speed=arguments.speed,
        warm_up_s=arguments.warm_up_s,
    )
    num_taken = sum(change.num_taken for change in sky.losses())
    from_s = sky.start_s + sky.first_s * sky.speed
    print(
        f"from {from_s:.0f} s on the trace loses {num_losses} nodes; the replay {num_taken} of {arguments.nodes} at "
        f"{len(sky.losses())} moments, in {sky.end_s - sky.first_s:.0f} s that count",
        file=sys.stderr,
    )
    outcomes = {"bamboo": ours(sky), "restart": restarted(sky)}
    if arguments.off:
        outcomes["redundancy off"] = ours(sky, redundancy="off")
    outcomes["restart with recorded costs"] = restarted(
        sky, checkpoint_s=RECORDED_CHECKPOINT_S / sky.speed, load_s=RECORDED_LOAD_S / sky.speed
    )
    for name, one in outcomes.items():
        print(
            f"{name}: {one.samples} samples, step of all nodes {one.step_s * 1e3:.0f} ms; {one.summary}",
            file=sys.stderr,
        )
    bamboo, restart, slow = (outcomes[name] for name in ("bamboo", "restart", "restart with recorded costs"))
    rate = BATCH / bamboo.step_s / arguments.nodes
    claims = [
        claim("committed / oracle", bamboo.samples / (bamboo.node_seconds * rate), 0.9, at_most=False),
        claim("samples / samples of checkpoint and restart", bamboo.samples / max(1, slow.samples), 3.7, at_most=False),
        claim("samples / samples of a restart all in its favour", bamboo.samples / restart.samples, 1.0, at_most=False),
    ]
    figures = {
        name: {"samples": one.samples, "step_s": one.step_s, "summary": one.summary} for name, one in outcomes.items()
    } | {
        "node_seconds": bamboo.node_seconds,
        "committed / a pipeline that is always cut perfectly": bamboo.samples
        / BATCH
        / perfect_steps(bamboo.spans, arguments.nodes, bamboo.step_s, num_microbatches=MICROBATCHES, num_layers=DEPTH),
        "samples_per_node_second": rate,
        "committed / all that the trace gives": bamboo.samples / (sky.node_seconds() * rate),
        "losses_of_trace": num_losses,
        "losses_of_replay": num_taken,
        "node_seconds_of_trace": sky.node_seconds(),
    }
    return finish("trace_replay", claims, figures=figures)


if __name__ == "__main__":
    sys.exit(main())
