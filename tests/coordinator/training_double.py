"""A worker without torch that "trains" alone or in a pipeline: keeps the worker's protocol, computes nothing.

The reporter commits a step every ``step_s``; what is committed is written to a file that all workers of the run share,
so that a plan's ``first_step`` can be checked against it.
"""

import os
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import urlparse

from bamboo_trainer.control import (
    Adopt,
    Adopted,
    Exit,
    Halt,
    LayerCost,
    LayerSaved,
    ModelWritten,
    Prepare,
    Prepared,
    Quiesce,
    RunComplete,
    Save,
    StepCommitted,
    Stopped,
    TrainingSpec,
    WorkerBeat,
    WorkerReady,
    WriteModel,
    decode_to_worker,
    encode,
)
from bamboo_trainer.manifest import layer_file, step_folder
from bamboo_trainer.plan import Plan, StepSummary, WorkerId

LAYERS = ("first", "second")
WORKER_ID = WorkerId(os.environ["BAMBOO_WORKER_ID"])
control = socket.socket(fileno=int(os.environ["BAMBOO_CONTROL_FD"]))
lines = control.makefile("rb")
lock = threading.RLock()


def say(message: object) -> None:
    with lock:
        control.sendall(encode(message) + b"\n")


def loss_of(step: int) -> float:
    return 1.0 / (1 + step)


class Training(threading.Thread):
    """Under one plan, until it is stopped or the last step is committed."""

    def __init__(self, spec: TrainingSpec, plan: Plan) -> None:
        super().__init__(daemon=True)
        self.spec, self.plan = spec, plan
        self.stopping = threading.Event()
        self.folder = Path(urlparse(spec.checkpoint_url).path)
        self.record = self.folder / "committed"
        self.step_s = float(spec.recipe_options.get("step_s", 0.01))

    def committed(self) -> int:
        return len(self.record.read_text()) - 1 if self.record.exists() else -1

    def run(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        while self.committed() < self.spec.num_steps - 1:
            if self.stopping.wait(self.step_s):
                return
            if self.plan.reporter == WORKER_ID:
                self.commit(self.committed() + 1)
        self.save(self.spec.num_steps - 1)
        say(RunComplete(generation=self.plan.generation, step=self.spec.num_steps - 1))

    def commit(self, step: int) -> None:
        with self.record.open("a") as record:
            record.write(".")
        say(
            StepCommitted(
                generation=self.plan.generation,
                plan_generation=self.plan.generation,
                summary=StepSummary(step=step, losses=(loss_of(step),), square_norms=(1.0,)),
                learning_rate=0.1,
                step_s=self.step_s,
                num_samples=self.spec.num_microbatches * self.spec.microbatch_size,
            )
        )

    def save(self, step: int) -> None:
        for stage in self.plan.hosted_by(WORKER_ID):
            for layer in stage.layers:
                file = self.folder / step_folder(step) / layer_file(layer)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(b"weights")
                say(
                    LayerSaved(
                        checkpoint_step=step,
                        layer=layer,
                        name=LAYERS[layer],
                        file=file.name,
                        num_bytes=7,
                        file_sha256="0" * 64,
                        parameters_sha256="1" * 64,
                    )
                )

    def stopped(self, generation: int) -> Stopped:
        self.stopping.set()
        self.join()
        step = self.committed()
        layers = tuple(layer for layer in range(len(LAYERS)) if layer in self.plan.layers_of(WORKER_ID))
        summary = StepSummary(step=step, losses=(loss_of(step),), square_norms=(1.0,)) if step >= 0 else None
        return Stopped(generation=generation, committed_step=step, layers=layers, summary=summary)


def beat() -> None:
    over = threading.Event()
    say(WorkerBeat())
    while not over.wait(float(os.environ.get("BAMBOO_BEAT_S", "1"))):
        say(WorkerBeat())


def main() -> None:
    spec: TrainingSpec | None = None
    training: Training | None = None
    say(WorkerReady(address=os.environ["BAMBOO_LISTEN_ADDRESS"], port=7, pid=os.getpid()))
    threading.Thread(target=beat, daemon=True).start()
    for line in lines:
        message = decode_to_worker(line)
        match message:
            case Prepare():
                spec = message.spec
                costs = tuple(
                    LayerCost(name=name, forward_s=0.001, backward_s=0.002, parameter_bytes=8, activation_bytes=8)
                    for name in LAYERS
                )
                say(Prepared(run_id=spec.run_id, layer_names=LAYERS, costs=costs if message.profile else ()))
            case Adopt() if spec and (training is None or message.plan.generation > training.plan.generation):
                if training is not None:
                    training.stopping.set()
                    training.join()
                training = Training(spec, message.plan)
                say(Adopted(generation=message.plan.generation))
                training.start()
            case Quiesce() | Halt() if training is not None:
                say(training.stopped(message.generation))
            case Save() if training is not None and training.stopping.is_set():
                training.save(message.step)
            case WriteModel():
                say(
                    ModelWritten(
                        checkpoint_step=message.checkpoint_step,
                        url=message.url,
                        num_parameters=4,
                        weights_sha256="2" * 64,
                    )
                )
            case Exit():
                sys.exit(0)


main()
