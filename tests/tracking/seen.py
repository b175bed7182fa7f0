"""What TensorBoard itself reads from a folder of event files."""

from pathlib import Path
from typing import Any, NamedTuple


class Seen(NamedTuple):
    step: int
    value: Any
    """A number, or a text."""


def seen_in(folder: Path) -> dict[str, list[Seen]]:
    """By tag."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    found.Reload()
    seen = {}
    for tag in found.Tags()["tensors"]:
        numbers = found.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"
        arrays = [(event.step, make_ndarray(event.tensor_proto)) for event in found.Tensors(tag)]
        seen[tag] = [Seen(step, float(array) if numbers else array[0].decode()) for step, array in arrays]
    return seen


def values(folder: Path, tag: str) -> dict[int, float]:
    """By step; each has to be there once."""
    listed = seen_in(folder).get(tag, [])
    assert len({at.step for at in listed}) == len(listed), f"{tag}: a step is there twice"
    return {at.step: at.value for at in listed}
