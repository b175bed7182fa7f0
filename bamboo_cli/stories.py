"""Stories from state files: of a node, and of losses."""

from pathlib import Path
from typing import TYPE_CHECKING

from bamboo_cli import incidents, records
from bamboo_cli.coordinator.reader import read_commits, read_events
from bamboo_cli.errors import StateError, UsageError

if TYPE_CHECKING:
    from bamboo_cli.coordinator.status import StoryEvent


def read_node(path: Path, node: str, run: str | None, limit: int | None = None) -> tuple["StoryEvent", ...]:
    """What is about the node or names it, and what was done about its loss; the newest ``limit``. Raises StateError."""
    story = read_events(path, run=run)
    answers = incidents.of_node(story, node)
    wanted = {event.event_id for event in read_events(path, node=node, run=run)} | answers
    found = tuple(event for event in story if event.event_id in wanted)
    return found if limit is None else found[-limit:]


def read_losses(path: Path, which: str, run: str | None) -> tuple[incidents.Told, ...]:
    """Raises StateError, and UsageError for a node that was never lost."""
    losses = incidents.losses(read_events(path, run=run))
    found = incidents.chosen(losses, which)
    if not found and which not in ("all", "latest"):
        names = ", ".join(dict.fromkeys(loss.node_id for loss in losses))
        raise UsageError(
            f"no loss of {which} is on record",
            next_step=f"Lost were: {names}." if names else earlier_loss(path, which, run) or "No node was lost so far.",
        )
    return tuple(_told(path, loss) for loss in found)


def earlier_loss(path: Path, which: str, but: str | None = None) -> str:
    """In words: which other run of the cluster's name had such a loss last, such as the one that was gone on with, and
    how to look at it. Nothing where none had.
    """
    for found in records.state_files(path.parent.name):
        try:
            losses = incidents.chosen(incidents.losses(read_events(found)), which)
        except StateError:
            continue  # damaged, or of a newer Bamboo
        for loss in reversed(losses):
            if loss.run_id not in (None, but):
                command = f"bamboo events --loss {which} --run {loss.run_id} --cluster {path.parent.name}"
                return f"Run {loss.run_id} had one: `{command}`."
    return ""


def _told(path: Path, loss: incidents.Loss) -> incidents.Told:
    if loss.run_id is None:
        return incidents.told(loss, ())
    num_before = incidents.USUAL_STEPS + 1
    rows = read_commits(path, loss.run_id, loss.begins_at, loss.ends_at, num_before=num_before)
    return incidents.told(loss, [incidents.Commit(step=step, at=at) for step, at in rows])
