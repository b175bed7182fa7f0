"""Computes on the device that is written in Python, as the command line says; prints JSON. ``training NAME``,
``changed-hands``, ``measured``, ``late-bytes``, ``mixed-memories``."""

import json
import sys
from typing import Any

import torch
from bamboo_trainer.models import mlp
from bamboo_trainer.torch_compute import TorchCompute

from tests.device import cases
from tests.device.other import OtherDevice
from tests.trainer.torch_world import make_spec, make_stage


def late_bytes() -> list[bool]:
    """Of gradients that were sent in one step and whose bytes were taken in a later one: are they poison before, and
    as they were after?"""
    device, recipe = OtherDevice(), mlp.recipe()
    compute = TorchCompute(make_spec(), recipe, print, device=device)
    cases.hold_all(compute, recipe)
    found, copy, sent = [], None, None
    for step in range(3):
        reduced, _ = cases.step_of(compute, recipe, step)
        if copy is None:
            sent = reduced[0][0].cpu()
            copy = device.start_to_host(reduced[0][0])
            found.append(bool(copy.value.isnan().all()))
    copy.wait()
    return [*found, torch.equal(copy.value, sent)]


def mixed_memories() -> list[str]:
    """What is said when an input of the second layer is left in host memory."""
    compute = TorchCompute(make_spec(), mlp.recipe(), print, device=OtherDevice())
    cases.hold_all(compute, mlp.recipe())
    try:
        compute.forward(make_stage(1, 1, 3), 0, torch.zeros(4, 32))
    except Exception as error:  # noqa: BLE001 - what it is, is what is asked
        return [type(error).__name__, str(error)]
    return []


def answer(what: str, *names: str) -> Any:
    match what:
        case "training":
            return [cases.trained(OtherDevice, name) for name in names]
        case "changed-hands":
            return cases.changed_hands(OtherDevice)
        case "measured":
            return cases.measured(OtherDevice)
        case "late-bytes":
            return late_bytes()
        case "mixed-memories":
            return mixed_memories()


print(json.dumps(answer(*sys.argv[1:])))
