"""Claim: with redundancy off, a step takes no more than 1.02 times one of torch's own Schedule1F1B, and of DeepSpeed's
pipeline.

Same layers, cut, data, optimizer and machine. The engines are started once and take turns of a few steps, the others
resting while one runs, in rotating order; each round gives the ratios of its median steps, and the claim is of the
median ratio. Twice: real compute on two stages (two cores cannot show more), and four stages of emulated device time
(layers that sleep for their forward and backward, the GIL released), where only the schedule and the transport count.

DeepSpeed gets an environment of its own at the first call; where it cannot be installed, nothing is claimed of it.

    python -m benchmarks.pipeline_vs_torch [--rounds 20] [--steps 4]
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bamboo_trainer.plan import Mode

from benchmarks.fleet import Stepper, claim, finish, stepper
from benchmarks.peers import NotInstalled, python_with

PLAIN_GPT = str(Path(__file__).with_name("plain_gpt.py"))
WARM_UP = 1
"""Steps of a turn that do not count: caches are cold, and a plan's first step fetches its layers."""
CASES: dict[str, dict[str, Any]] = {
    "real_p2": {"recipe": PLAIN_GPT, "recipe_options": {}, "stages": 2, "microbatch_size": 4},
    "emulated_p4": {
        "recipe": "mlp",
        "recipe_options": {
            "depth": 8,
            "width": 64,
            "dropout": 0.0,
            "clip_norm": None,
            "sleep_forward_s": 0.005,
            "sleep_backward_s": 0.010,
        },
        "stages": 4,
        "microbatch_size": 16,
    },
}
NUM_MICROBATCHES = 8
LIMIT = 1.02
TORCH, DEEPSPEED = "Schedule1F1B", "DeepSpeed"
DEEPSPEED_PACKAGES = ("deepspeed==0.19.8", "pydantic", "fsspec", "safetensors")
"""The last three: what our recipes import."""
ROOT = Path(__file__).parents[1]


@contextmanager
def peer(module: str, python: Path, case: dict[str, Any], cut: list[tuple[int, int]]) -> Iterator[Stepper]:
    """Gives the seconds of each step; the processes rest between calls."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    job = case | {"cut": cut, "num_microbatches": NUM_MICROBATCHES, "port": port}
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "trainer"))),
        "DS_ACCELERATOR": "cpu",
    }
    processes = [
        subprocess.Popen(
            [str(python), "-m", f"benchmarks.{module}", str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("BAMBOO_BENCH_LOG") else subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        for rank in range(case["stages"])
    ]

    def say(line: str) -> None:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def steps(count: int) -> list[float]:
        say(str(count))
        assert processes[0].stdout is not None
        for line in processes[0].stdout:
            if line.startswith("["):
                seconds: list[float] = json.loads(line)
                return seconds
        raise RuntimeError(f"{module} ended; BAMBOO_BENCH_LOG=1 shows why")

    try:
        say(json.dumps(job))
        yield steps
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def rounds(case: dict[str, Any], num_rounds: int, num_steps: int) -> dict[str, list[float]]:
    """Median seconds of a step of each engine, round by round."""
    with ExitStack() as stack:
        ours, plan = stack.enter_context(stepper(case, NUM_MICROBATCHES, Mode.OFF))
        cut = [(stage.first_layer, stage.end_layer) for stage in plan.pipelines[0].stages]
        engines = {"bamboo": ours, TORCH: stack.enter_context(peer("torch_1f1b", Path(sys.executable), case, cut))}
        try:
            python = python_with("deepspeed", DEEPSPEED_PACKAGES, {"DS_BUILD_OPS": "0"})
            engines[DEEPSPEED] = stack.enter_context(peer("deepspeed_1f1b", python, case, cut))
        except NotInstalled as error:
            print(error, file=sys.stderr)
        for engine in engines.values():
            engine(WARM_UP)
        found: dict[str, list[float]] = {name: [] for name in engines}
        names = list(engines)
        for index in range(num_rounds):
            first = index % len(names)
            for name in names[first:] + names[:first]:
                found[name].append(statistics.median(engines[name](WARM_UP + num_steps)[WARM_UP:]))
            print(", ".join(f"{name} {found[name][-1] * 1e3:.1f} ms" for name in names), file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--case", choices=CASES, action="append", help="only this one")
    arguments = parser.parse_args()
    claims: list[dict[str, Any]] = []
    figures: dict[str, dict[str, Any]] = {}
    for name in arguments.case or CASES:
        found = rounds(CASES[name], arguments.rounds, arguments.steps)
        figures[name] = {f"{engine}_ms": round(statistics.median(times) * 1e3, 1) for engine, times in found.items()}
        for engine in (TORCH, DEEPSPEED):
            if engine in found:
                ratios = [ours / theirs for ours, theirs in zip(found["bamboo"], found[engine], strict=True)]
                claims.append(claim(f"{name}: step time / {engine} step time", statistics.median(ratios), LIMIT))
                figures[name][f"{engine}_ratio_quartiles"] = [round(x, 3) for x in statistics.quantiles(ratios, n=4)]
    return finish("pipeline_vs_torch", claims, figures=figures)


if __name__ == "__main__":
    sys.exit(main())
