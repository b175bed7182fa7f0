"""What the worker's loop uses of an executor, and a base for what is put around one: drills, the flight recorder."""

from typing import Generic, Protocol, TypeVar

from bamboo_trainer import control
from bamboo_trainer.frames import Frame
from bamboo_trainer.plan import Plan, WorkerId
from bamboo_trainer.schedule import Action


class ExecutorLike(Protocol):
    @property
    def generation(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def learners(self) -> frozenset[WorkerId]: ...
    def adopt(self, plan: Plan) -> None: ...
    def learn(self, message: control.Learn) -> None: ...
    def quiesce(self, generation: int) -> None: ...
    def halt(self, generation: int) -> None: ...
    def save(self, generation: int, step: int) -> None: ...
    def next(self) -> Action | None: ...
    def perform(self, action: Action) -> None: ...
    def receive(self, sender: WorkerId, frame: Frame) -> None: ...
    def link_up(self, peer: WorkerId) -> None: ...


Inner = TypeVar("Inner", bound=ExecutorLike)


class Wrapped(Generic[Inner]):
    """Passes everything on."""

    def __init__(self, inner: Inner) -> None:
        self._inner = inner

    @property
    def generation(self) -> int:
        return self._inner.generation

    @property
    def step(self) -> int:
        return self._inner.step

    @property
    def learners(self) -> frozenset[WorkerId]:
        return self._inner.learners

    def adopt(self, plan: Plan) -> None:
        self._inner.adopt(plan)

    def learn(self, message: control.Learn) -> None:
        self._inner.learn(message)

    def quiesce(self, generation: int) -> None:
        self._inner.quiesce(generation)

    def halt(self, generation: int) -> None:
        self._inner.halt(generation)

    def save(self, generation: int, step: int) -> None:
        self._inner.save(generation, step)

    def next(self) -> Action | None:
        return self._inner.next()

    def perform(self, action: Action) -> None:
        self._inner.perform(action)

    def receive(self, sender: WorkerId, frame: Frame) -> None:
        self._inner.receive(sender, frame)

    def link_up(self, peer: WorkerId) -> None:
        self._inner.link_up(peer)
