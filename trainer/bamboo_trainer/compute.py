"""What the step protocol needs from the arithmetic; no torch here, so the protocol can be tested on integers.

A value (activation, gradient) is opaque to the protocol: it is stored, sent, and handed back. ``TorchCompute`` is the
real one. Everything it computes is a function of (parameters, step, microbatch, layer) alone, so it has the same bits
on whichever worker it is computed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bamboo_trainer.plan import StagePlan

Value = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is summed at once: the untied parameters of one layer, or one parameter tied across several layers.

    ``layers``: whose gradients are summed, in this order (inside each pipeline, pipelines in order).
    """

    index: int
    layers: tuple[int, ...]


class Compute(Protocol):
    """Held layers are at the parameters of ``version`` (the last step applied; -1: initial)."""

    num_layers: int
    units: tuple[Unit, ...]

    # --- within a step: forward and backward ---

    def begin_step(self, step: int) -> None:
        """Forget everything of the previous step but the held layers."""
        ...

    def forward(self, stage: StagePlan, microbatch: int, inputs: Value | None) -> Value | None:
        """FNC. ``inputs`` None: the first stage, which reads its data itself. Returns the stage's output, detached;
        None at the last stage, which computes the loss instead. Uses the FRC result of this microbatch if there is one.
        """
        ...

    def loss(self, microbatch: int) -> float:
        """Mean over the microbatch's samples, after ``forward`` of a last stage."""
        ...

    def backward(
        self, stage: StagePlan, microbatch: int, gradient: Value | None, *, apart: bool = False
    ) -> Value | None:
        """BNC; microbatches in order. ``gradient``: of the stage's output (None: last stage, starts from its loss,
        divided by the number of microbatches of the global batch). Adds to the stage's gradients; returns that of its
        input (None: first stage). ``apart``: the microbatch's gradients are not added to those of the ones before, but
        kept for ``partial_sum``.
        """
        ...

    def redundant_forward(self, stage: StagePlan, microbatch: int, inputs: Value | None) -> bool:
        """FRC, one layer further. True: the microbatch is complete."""
        ...

    def redundant_output(self, stage: StagePlan, microbatch: int) -> Value:
        """Of a complete FRC: the stage's output, detached."""
        ...

    def redundant_forwards_done(self, stage: StagePlan) -> int:
        """Microbatches of the stage whose FRC is complete."""
        ...

    # --- reduction and commit ---

    def partial_sum(self, layer: int, pipeline_index: int, microbatches: range, before: Value | None) -> Value:
        """After the backward of the last of ``microbatches``: the layer's flat gradient, added up to there in the order
        of the pipeline. ``before``: the sum up to their start, where they were kept apart."""
        ...

    def contribution(
        self, unit: Unit, layer: int, pipeline_index: int, chunk: int, num_chunks: int, whole: Value | None = None
    ) -> Value:
        """After the last backward: a piece of the flat gradient of ``unit`` that this pipeline's ``layer`` made.
        ``whole``: that flat gradient, where it was made in parts."""
        ...

    def add(self, values: Sequence[Value]) -> Value:
        """``((v0 + v1) + v2) + …`` in exactly this order, in a new value."""
        ...

    def square_norm(self, unit: Unit, chunks: Sequence[Value]) -> float:
        """Sum of squares of a reduced gradient, in float64."""
        ...

    def apply(self, step: int, reduced: Mapping[int, Sequence[Value]], square_norms: Sequence[float]) -> None:
        """Clip and run the optimizer on every held layer. ``reduced``: chunks by unit index."""
        ...

    # --- holding layers ---

    def held_layers(self) -> tuple[int, ...]: ...

    def initialise(self, layer: int) -> None:
        """Hold the layer with the parameters that the seed gives it."""
        ...

    def restore(self, layer: int, checkpoint_step: int) -> None:
        """Hold the layer as the checkpoint has it. Raises CheckpointError."""
        ...

    def export_layer(self, layer: int) -> Value:
        """Parameters, buffers, optimizer state, for a worker that lacks the layer. Not changed by later steps."""
        ...

    def import_layer(self, layer: int, state: Value) -> None:
        """Hold the layer as another worker has it."""
        ...

    def drop_layer(self, layer: int) -> None: ...

    def keep_near(self, hosted: Collection[int], read: Collection[int]) -> None:
        """Of the held layers, what is computed with from now on: ``hosted`` ones whole, of ``read`` ones (by FRC) the
        parameters. All else may live in host memory."""
        ...

    # --- learning layers: beside those that are held, and none of the step's business ---

    def learn(self, layer: int, state: Value) -> int:
        """Keep a copy of a layer that another worker holds. Returns its bytes."""
        ...

    def follow(
        self, layer: int, step: int, reduced: Mapping[int, Sequence[Value]], square_norms: Sequence[float]
    ) -> None:
        """The optimizer step of ``apply``, on a learned layer."""
        ...

    def hold_learned(self, layer: int) -> None:
        """It is held from now on."""
        ...

    def forget_learned(self, layer: int) -> None: ...

    def digest(self, layer: int) -> str:
        """Of parameters and optimizer state, bit for bit."""
        ...

    def save(self, step: int, layers: Sequence[int]) -> None:
        """Copy the layers now and write their files in the background."""
        ...
