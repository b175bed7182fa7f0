"""A recipe that writes down what a worker process is like, and ends it or lives on."""

import json
import logging
import os
import random
import signal
import sys
import threading
from pathlib import Path

import numpy
import torch
from bamboo_trainer.models import mlp
from bamboo_trainer.recipe import Recipe

OWN = ("BAMBOO_CONTROL_FD", "BAMBOO_WORKER_COMMAND", "BAMBOO_WORKER_ID", "PYTEST_CURRENT_TEST")
"""Variables that may differ."""


def recipe(*, facts: str = "", say: str = "", exit_code: int | None = None) -> Recipe:
    if facts:
        Path(facts).write_text(json.dumps({"settled": _settled(), "drawn": _drawn()}))
    if say:
        print(say, flush=True)
    if exit_code is not None:
        os._exit(exit_code)
    return mlp.recipe()


def _settled() -> dict[str, object]:
    """The same however the worker was started."""
    return {
        "environment": {name: value for name, value in os.environ.items() if name not in OWN},
        "shown": sorted(entry for entry in _shown() if entry.partition("=")[0] not in OWN),
        "folder": os.getcwd(),
        "search_path": sys.path,
        "arguments": sys.argv,
        "command": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode(),
        "signals": {number.name: str(signal.getsignal(number)) for number in signal.valid_signals() if number < 32},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "group": os.getpgid(0) == os.getppid() == os.getsid(0),
        "files": sorted(_kind(name) for name in os.listdir("/proc/self/fd")),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "torch_threads": torch.get_num_threads(),
        "log": [type(each).__name__ for each in logging.getLogger().handlers],
    }


def _drawn() -> list[float]:
    """Of the streams that no seed of ours governs."""
    return [random.random(), float(numpy.random.random()), float(torch.rand(1))]


def _shown() -> list[str]:
    return Path("/proc/self/environ").read_text().rstrip("\0").split("\0")


def _kind(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}").partition(":")[0]
    except FileNotFoundError:  # that of the listing itself
        return "/proc"
