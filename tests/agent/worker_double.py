"""A worker process without torch. It does what the ``recipe_options`` of ``Prepare`` say, and starts in 20 ms.

It writes its messages by hand, so that it also checks the format that ``bamboo_trainer.control`` has to keep.
"""

import json
import os
import signal
import socket
import sys
import time

control = socket.socket(fileno=int(os.environ["BAMBOO_CONTROL_FD"]))
lines = control.makefile("rwb")


def say(kind: str, **fields: object) -> None:
    lines.write(json.dumps({"kind": kind} | fields).encode() + b"\n")
    lines.flush()


def step_committed(step: int) -> None:
    summary = {"step": step, "losses": [1.0], "square_norms": [1.0]}
    say(
        "step_committed", generation=1, plan_generation=1, summary=summary, learning_rate=0.1, step_s=0.1, num_samples=1
    )


def await_reaped(worker: int) -> None:
    """Until the agent has seen the death: a process that nobody has reaped still has its number."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        os.sched_yield()


print("the worker double runs", flush=True)
say("worker_ready", address=os.environ["BAMBOO_LISTEN_ADDRESS"], port=7, pid=os.getpid())
for line in lines:
    message = json.loads(line)
    if message["kind"] == "exit":
        sys.exit(0)
    if message["kind"] != "prepare":
        continue
    say("prepared", run_id=message["spec"]["run_id"], layer_names=[])
    for deed, argument in message["spec"]["recipe_options"].items():
        match deed:
            case "beat":
                say("worker_beat")
            case "commit":
                for step in range(*argument):
                    step_committed(step)
            case "garble":
                lines.write(b"}{\n")
                lines.flush()
            case "print":
                print(argument, flush=True)
            case "fail":
                say("worker_failed", fault="recipe", detail=argument)
            case "fail_late":
                worker = os.getpid()
                if os.fork() == 0:
                    await_reaped(worker)
                    say("worker_failed", fault="recipe", detail=argument)
                    os._exit(0)
            case "exit":
                sys.stdout.flush()
                os._exit(argument)  # at once: what it said may still be on its way
            case "crash":
                raise RuntimeError(argument)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
