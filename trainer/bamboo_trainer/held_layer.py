"""One layer that a worker holds: module, optimizer, gradients, and its state as named tensors."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from bamboo_trainer.host_memory import HostMemory
from bamboo_trainer.layout import LayerLayout

LayerState = dict[str, Tensor | float | int | bool | None]
"""``parameter/<name>``, ``buffer/<name>`` and ``optimizer/<parameter name>/<key>`` to tensors (or an optimizer's
plain numbers)."""

PARAMETER, BUFFER, OPTIMIZER = "parameter/", "buffer/", "optimizer/"
CPU = torch.device("cpu")


class FlatGradient:
    """A layer's gradient in one piece of memory, with a view of it for each parameter.

    Two buffers take turns: what was handed out in one step stays as it is through the whole next step, so it may
    still be read (by a peer in this process, by a socket that has not sent it yet) while the next one is computed.
    """

    def __init__(self, layout: LayerLayout, device: torch.device) -> None:
        self._layout = layout
        self._device = device
        self._buffers: list[Tensor] = []
        self._views: list[list[Tensor]] = []
        self._turn = -1
        self._epoch = -1

    def of(self, epoch: int) -> tuple[Tensor, list[Tensor]]:
        """Flat and per trained parameter; zeros when first asked for in this epoch (one ``begin_step``)."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._turn = (self._turn + 1) % 2
            if len(self._buffers) <= self._turn:
                flat = torch.zeros(self._layout.num_elements, dtype=self._layout.dtype, device=self._device)
                self._buffers.append(flat)
                pieces = enumerate(self._layout.pieces)
                views = [split(self._layout, flat[piece.first : piece.end], index) for index, piece in pieces]
                self._views.append(list(chain.from_iterable(views)))
            else:
                self._buffers[self._turn].zero_()
        return self._buffers[self._turn], self._views[self._turn]


class HeldLayer:
    def __init__(
        self,
        module: nn.Module,
        layout: LayerLayout,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        device: torch.device = CPU,
    ) -> None:
        """The module is moved to the device."""
        self.module = module.train().to(device) if device != CPU else module.train()
        self._device = device
        self.layout = layout
        named = dict(module.named_parameters())
        self._trained = {p.name: named[p.name] for piece in layout.pieces for p in piece.parameters}
        """In the order of the flat gradient."""
        self._optimizer = optimizer(list(self._trained.values())) if self._trained else None
        self._gradients: dict[int, FlatGradient] = {}
        """By pipeline: a worker may run a layer for two of them."""
        self._apart: dict[tuple[int, int], FlatGradient] = {}
        """By pipeline and microbatch: not added up yet."""
        self._collecting: tuple[int, int, int | None] | None = None
        self._host: HostMemory | None = None
        self._parameters_aside = self._optimizer_aside = False

    def gradient(self, pipeline_index: int, epoch: int) -> Tensor:
        """Flat, as collected in this epoch."""
        return self._gradient(pipeline_index).of(epoch)[0]

    def collect(self, pipeline_index: int, epoch: int, apart: int | None = None) -> None:
        """From now on backward adds to this gradient. ``apart``: to that of this microbatch alone."""
        if self._collecting == (pipeline_index, epoch, apart):
            return
        if apart is None:
            gradient = self._gradient(pipeline_index)
        else:
            gradient = self._apart[pipeline_index, apart] = FlatGradient(self.layout, self._device)
        for parameter, view in zip(self._trained.values(), gradient.of(epoch)[1], strict=True):
            parameter.grad = view
        self._collecting = (pipeline_index, epoch, apart)

    def partial_sum(self, pipeline_index: int, epoch: int, microbatches: range, before: Tensor | None) -> Tensor:
        """See ``Compute``. What was kept apart stays until the step is committed: the part may grow."""
        if before is None:
            return self.gradient(pipeline_index, epoch).clone()
        total = before.clone()
        for microbatch in microbatches:
            total += self._apart[pipeline_index, microbatch].of(epoch)[0]
        return total

    def _gradient(self, pipeline_index: int) -> FlatGradient:
        if pipeline_index not in self._gradients:
            self._gradients[pipeline_index] = FlatGradient(self.layout, self._device)
        return self._gradients[pipeline_index]

    def update(self, reduced: Mapping[int, Sequence[Tensor]], scale: float, learning_rate: float) -> None:
        """One optimizer step with ``scale`` times the reduced gradients (chunks by unit), which are not changed."""
        if self._optimizer is None:
            return
        aside = self._parameters_aside, self._optimizer_aside
        self._move(parameters=False, optimizer=False)
        for index, piece in enumerate(self.layout.pieces):
            chunks = reduced[piece.unit_index]
            flat = chunks[0] if len(chunks) == 1 else torch.cat(list(chunks))
            if scale != 1.0:
                flat = flat * scale
            for shape, view in zip(piece.parameters, split(self.layout, flat, index), strict=True):
                self._trained[shape.name].grad = view
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        for parameter in self._trained.values():
            parameter.grad = None
        self._collecting = None
        self._apart.clear()
        self._move(parameters=aside[0], optimizer=aside[1])

    def keep_aside(self, host: HostMemory, *, parameters: bool, optimizer: bool) -> None:
        """Whether the parameters, and what the optimizer keeps, are in host memory between steps. A step itself is made
        on the device: another one's optimizer may give other bits."""
        self._host = host
        self._move(parameters=parameters, optimizer=optimizer)

    def _move(self, *, parameters: bool, optimizer: bool) -> None:
        if self._host is None:
            return
        if parameters != self._parameters_aside:
            move = self._host.to_host if parameters else self._host.to_device
            for parameter in self.module.parameters():
                parameter.data = move(parameter.data)
            self._parameters_aside = parameters
        if optimizer != self._optimizer_aside and self._optimizer is not None:
            move = self._host.to_host if optimizer else self._host.to_device
            for entry in self._optimizer.state.values():
                for key, value in entry.items():
                    if isinstance(value, Tensor) and value.dim() > 0:  # Adam's count of steps is on the host anyway
                        entry[key] = move(value)
        self._optimizer_aside = optimizer

    def state(self) -> LayerState:
        """The live tensors, not copies."""
        state: LayerState = {PARAMETER + name: p.detach() for name, p in self.module.named_parameters()}
        state |= {BUFFER + name: buffer for name, buffer in self.module.named_buffers()}
        if self._optimizer is not None:
            for name, parameter in self._trained.items():
                state |= {f"{OPTIMIZER}{name}/{key}": v for key, v in self._optimizer.state.get(parameter, {}).items()}
        return state

    def snapshot(self) -> LayerState:
        """A copy in host memory, that later steps do not change."""
        return {name: v.to(CPU, copy=True) if isinstance(v, Tensor) else v for name, v in self.state().items()}

    def load(self, state: LayerState) -> None:
        """Take over a state, bit for bit. Raises ValueError when it is not of such a layer."""
        targets: dict[str, Tensor] = {PARAMETER + name: p for name, p in self.module.named_parameters()}
        targets |= {BUFFER + name: buffer for name, buffer in self.module.named_buffers()}
        given = {name for name in state if not name.startswith(OPTIMIZER)}
        if given != set(targets):
            raise ValueError(f"layer {self.layout.name} has other tensors: {', '.join(sorted(given ^ set(targets)))}")
        with torch.no_grad():
            for name, target in targets.items():
                source = state[name]
                if not isinstance(source, Tensor) or source.shape != target.shape or source.dtype != target.dtype:
                    raise ValueError(
                        f"layer {self.layout.name}: {name} is not a {target.dtype} of {tuple(target.shape)}"
                    )
                target.copy_(source)
        self._load_optimizer(state)

    def _load_optimizer(self, state: LayerState) -> None:
        if self._optimizer is None:
            return
        self._optimizer.state.clear()
        for name, value in state.items():
            if name.startswith(OPTIMIZER):
                parameter_name, key = name.removeprefix(OPTIMIZER).rsplit("/", 1)
                if parameter_name not in self._trained:
                    raise ValueError(f"layer {self.layout.name} trains no parameter {parameter_name}")
                entry = self._optimizer.state[self._trained[parameter_name]]
                entry[key] = value.to(self._home(key), copy=True) if isinstance(value, Tensor) else value

    def _home(self, key: str) -> torch.device:
        """Where an optimizer has this of its state; as torch's own ``load_state_dict`` has it."""
        assert self._optimizer is not None
        on_device = any(group.get("capturable") or group.get("fused") for group in self._optimizer.param_groups)
        return CPU if key == "step" and not on_device else self._device


def split(layout: LayerLayout, flat: Tensor, piece_index: int) -> list[Tensor]:
    """Views of a unit's flat gradient in the shapes of the layer's parameters."""
    parameters = layout.pieces[piece_index].parameters
    parts = torch.split(flat, [p.num_elements for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]
