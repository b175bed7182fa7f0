"""Computes on the device that is written in Python; prints JSON. With names of trainings: those."""

import json
import sys

import torch
from bamboo_trainer.models import mlp
from bamboo_trainer.recipe import RecipeError
from bamboo_trainer.torch_compute import TorchCompute

from tests.device import cases
from tests.device.other import OtherDevice
from tests.trainer.torch_world import make_spec, make_stage


def mixed_memories() -> str:
    """What is said when an input of the second layer is left in host memory."""
    compute = TorchCompute(make_spec(), mlp.recipe(), print, device=OtherDevice())
    cases.hold_all(compute, mlp.recipe())
    try:
        compute.forward(make_stage(1, 1, 3), 0, torch.zeros(4, 32))
    except RecipeError as error:
        return str(error)
    return "nothing"


def poisoned() -> bool:
    """Whether bytes that nobody waited for are."""
    device = OtherDevice()
    return bool(device.start_to_host(device.to_device(torch.ones(3))).value.isnan().all())


if sys.argv[1:]:
    print(json.dumps([cases.trained(OtherDevice, name) for name in sys.argv[1:]]))
else:
    sent, received = cases.late_bytes(OtherDevice())
    answer = {
        "changed hands": cases.changed_hands(OtherDevice),
        "measured": cases.measured(OtherDevice),
        "late bytes": torch.equal(sent, received),
        "poisoned": poisoned(),
        "mixed memories": mixed_memories(),
    }
    print(json.dumps(answer))
