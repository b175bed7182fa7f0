"""The worker's loop beside its transport."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from bamboo_trainer import control
from bamboo_trainer.link import LinkDown
from bamboo_trainer.loop import Inbox, WorkerLoop
from bamboo_trainer.plan import WorkerId
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


class NoTransport:
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
