"""This machine's accelerators: how many workers the node has, and which device each of them sees."""

from collections.abc import Mapping
from pathlib import Path

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
DRIVER = Path("/proc/driver/nvidia/gpus")
"""A folder for each GPU that NVIDIA's driver has found; in a container, for each that it was given."""


def devices(environment: Mapping[str, str], driver: Path = DRIVER) -> tuple[str, ...]:
    """As CUDA calls them: those that this process may see, else all of the driver's. Empty: the CPU is all there is."""
    if VISIBLE_VARIABLE in environment:
        return tuple(name.strip() for name in environment[VISIBLE_VARIABLE].split(",") if name.strip())
    return tuple(str(index) for index in range(len(list(driver.glob("*")))))


def environment_of(accelerator: int, found: tuple[str, ...]) -> dict[str, str]:
    """What the worker on this accelerator is started with, so that it sees one device: its own. Nodes that the local
    cloud gives more accelerators than the machine has share them in turn."""
    return {VISIBLE_VARIABLE: found[accelerator % len(found)]} if found else {}
