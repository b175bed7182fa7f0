"""Two workers and one step of one microbatch in round numbers; with a failover, if wanted."""

from bamboo_trainer.control import Arrival, Recorded, RecordedWhy, Slot
from bamboo_trainer.plan import NodeId, WorkerId

from bamboo_cli.coordinator.pages import Page
from bamboo_cli.coordinator.status import StoryEvent

FIRST, SECOND = WorkerId("n1/1"), WorkerId("n2/1")
BEGAN_AT = 1_000_000.0
MS = 1000


def page(
    worker_id: WorkerId,
    *slots: tuple[str, int, int],
    arrivals: tuple[tuple[str, WorkerId, int], ...] = (),
    step: int = 0,
    generation: int = 1,
    began_at: float = BEGAN_AT,
    committed: bool = True,
    pipeline_index: int = 0,
) -> Page:
    """Times in milliseconds since ``began_at``."""
    return Page(
        worker_id=worker_id,
        recorded=Recorded(
            run_id="r1",
            generation=generation,
            step=step,
            began_at=began_at,
            committed=committed,
            why=RecordedWhy.FIRST,
            slots=tuple(Slot(action, pipeline_index, start * MS, end * MS) for action, start, end in slots),
            arrivals=tuple(Arrival(datum, 0, sender, at * MS) for datum, sender, at in arrivals),
        ),
    )


CALM = (
    page(
        FIRST,
        ("0F0", 0, 10),
        ("1FRC0", 10, 18),
        ("0B0", 50, 70),
        ("COMMIT", 70, 75),
        arrivals=(("1B0", SECOND, 45), ("HELD", SECOND, 55)),
    ),
    page(
        SECOND,
        ("1F0", 12, 22),
        ("1B0", 22, 42),
        ("HELD", 42, 43),
        ("COMMIT", 73, 78),
        arrivals=(("0F0", FIRST, 11), ("HELD", FIRST, 72)),
    ),
)

TAKEN_OVER = (
    page(
        FIRST,
        ("0F0", 0, 10),
        ("1FRC0", 10, 18),
        ("FAILOVER2", 30, 32),
        ("1F0", 32, 33),
        ("1B0", 33, 53),
        ("0B0", 53, 73),
        ("COMMIT", 73, 75),
        arrivals=(("1F0", SECOND, 20),),
        step=7,
        generation=2,
    ),
)
"""The second is lost after its forward; a two-stage pipeline has no 1F0 to send, but what it sent is drawn."""


def event(at: float, kind: str, text: str, node_id: str | None = None) -> StoryEvent:
    return StoryEvent(
        event_id=1,
        at=at,
        kind=kind,
        node_id=NodeId(node_id) if node_id else None,
        run_id="r1",
        step=None,
        text=text,
        numbers={},
    )


STORY = (
    event(BEGAN_AT - 60, "run", "long before"),
    event(BEGAN_AT + 0.028, "loss", "worker n2/1 is <lost>", "n2"),
    event(BEGAN_AT + 0.029, "failover", "lost n2/1: n1/1 hosts stage 1"),
)
