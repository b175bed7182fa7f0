"""The worker's loop beside its transport."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
from bamboo_trainer import control
from bamboo_trainer.frames import Frame, Held, LearnLayer
from bamboo_trainer.link import FrameArrived, LinkDown
from bamboo_trainer.loop import Inbox, WorkerLoop
from bamboo_trainer.plan import Plan, PlanKind, WorkerId
from bamboo_trainer.schedule import Action, Kind

SPEC = control.TrainingSpec(
    run_id="run",
    recipe="mlp",
    recipe_options={"depth": 2},
    num_steps=1,
    num_microbatches=1,
    microbatch_size=1,
    seed=0,
    checkpoint_url="/nowhere",
    checkpoint_every=1,
)
DEADLINE_S = 30.0


class BusyExecutor:
    """Has one action to do, which lasts until ``release`` is set."""

    generation = 7
    step = 0

    def __init__(self, begun: threading.Event, release: threading.Event) -> None:
        self._begun, self._release, self._done = begun, release, False

    def next(self) -> Action | None:
        return None if self._done else Action(Kind.FORWARD)

    def perform(self, action: Action) -> None:
        self._begun.set()
        assert self._release.wait(DEADLINE_S)
        self._done = True

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class DutifulExecutor:
    """Has this to do, one action after the other; keeps a diary of it and of the frames that it got."""

    generation = 7
    step = 0
    learners = frozenset[WorkerId]()

    def __init__(self, actions: list[Action], diary: list[str]) -> None:
        self._actions, self._diary = actions, diary

    def next(self) -> Action | None:
        return self._actions[0] if self._actions else None

    def perform(self, action: Action) -> None:
        self._actions.remove(action)
        self._diary.append(str(action))

    def receive(self, _: WorkerId, frame: Frame) -> None:
        self._diary.append(type(frame).__name__)

    def adopt(self, _: Plan) -> None:
        self._diary.append("plan")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class NoTransport:
    def learn_from(self, *_: Any) -> None: ...
    def send(self, *_: Any) -> None: ...
    def set_peers(self, *_: Any) -> None: ...


def test_the_end_of_a_link_is_told_while_an_action_is_under_way() -> None:
    # given a worker in the middle of a long action
    begun, release = threading.Event(), threading.Event()
    inbox: Inbox = SimpleQueue()
    told: list[control.FromWorker] = []
    loop = WorkerLoop(WorkerId("n1/1"), inbox, told.append, lambda *_: BusyExecutor(begun, release))
    inbox.put(control.Prepare(spec=SPEC))
    thread = threading.Thread(target=loop.run, args=(NoTransport(),))
    thread.start()
    try:
        assert begun.wait(DEADLINE_S)
        # when a peer's link ends
        loop.post(LinkDown(WorkerId("n2/1"), "reset"))
        # then the agent knows before the action is done
        assert told[-1] == control.PeerBroken(generation=7, peer=WorkerId("n2/1"), detail="reset")
    finally:
        release.set()
        inbox.put(control.Exit())
        thread.join(DEADLINE_S)
    assert not thread.is_alive()


class InboxThatEnds(SimpleQueue[Any]):
    """Where others wait, the worker is told to exit."""

    def get(self, *_: Any, **__: Any) -> Any:
        return control.Exit() if self.empty() else super().get()


FORWARD, COMMIT = Action(Kind.FORWARD), Action(Kind.COMMIT)
LESSON = FrameArrived(WorkerId("n2/1"), LearnLayer(generation=7, layer=0))
HELD = FrameArrived(WorkerId("n2/1"), Held(generation=7, step=0, losses={}, square_norms={}, stop=False, digests={}))
PLAN, FAILOVER = (
    control.Adopt(plan=Plan(generation=8, kind=kind, first_step=0, pipelines=(), members=()))
    for kind in (PlanKind.BOUNDARY, PlanKind.FAILOVER)
)


@pytest.mark.parametrize(
    ("actions", "messages", "diary"),
    [
        ([], [LESSON, HELD], ["Held", "LearnLayer"]),
        ([FORWARD], [LESSON, HELD], ["Held", "0F0", "LearnLayer"]),
        ([FORWARD, COMMIT, FORWARD], [LESSON], ["0F0", "COMMIT", "LearnLayer", "0F0"]),
        ([COMMIT, FORWARD], [LESSON, LESSON], ["COMMIT", "LearnLayer", "0F0", "LearnLayer"]),
        ([COMMIT, COMMIT, FORWARD], [LESSON] * 3, ["COMMIT", *["LearnLayer"] * 2, "COMMIT", "LearnLayer", "0F0"]),
        ([FORWARD], [LESSON, LESSON, PLAN], ["LearnLayer", "LearnLayer", "plan", "0F0"]),
        ([FORWARD], [LESSON, FAILOVER], ["plan", "0F0", "LearnLayer"]),
    ],
    ids=[
        "peers first",
        "the step first",
        "after a commit",
        "half after a commit",
        "the rest after the next one",
        "before a plan",
        "after a takeover",
    ],
)
def test_layers_that_are_taught_wait_for_the_step_in_flight(
    actions: list[Action], messages: list[Any], diary: list[str]
) -> None:
    told: list[str] = []
    inbox = InboxThatEnds()
    loop = WorkerLoop(WorkerId("n1/1"), inbox, lambda _: None, lambda *_: DutifulExecutor(list(actions), told))
    for message in [control.Prepare(spec=SPEC), *messages]:
        inbox.put(message)

    loop.run(NoTransport())

    assert told == diary
