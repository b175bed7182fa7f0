"""The coordinator's part in checkpoints: it makes them visible, finds them, and deletes old ones. In a thread."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from bamboo_agent import farewell
from bamboo_trainer import manifest
from bamboo_trainer.manifest import Origin

from bamboo_cli.coordinator.events import (
    AgentSaid,
    CheckpointMarked,
    CompleteCheckpoints,
    ListCheckpoints,
    ListingFailed,
    MarkCheckpoint,
    MarkFailed,
    PruneCheckpoints,
)
from bamboo_cli.coordinator.settings import RunSpec

RETRY_S = 2.0
FAREWELLS_S = 30.0

log = logging.getLogger(__name__)


def origin_of(spec: RunSpec) -> Origin:
    return Origin(
        recipe=spec.training.recipe,
        recipe_sha256=spec.recipe_sha256,
        recipe_options=spec.training.recipe_options,
        num_microbatches=spec.training.num_microbatches,
        microbatch_size=spec.training.microbatch_size,
    )


async def mark(wanted: MarkCheckpoint, spec: RunSpec, clock: Callable[[], float]) -> CheckpointMarked | MarkFailed:
    """``spec``: of the run."""
    marker = manifest.make_manifest(
        run_id=wanted.run_id,
        step=wanted.step,
        seed=spec.training.seed,
        layers=wanted.entries,
        created_at=datetime.fromtimestamp(clock(), UTC).isoformat(timespec="seconds"),
        origin=origin_of(spec),
    )
    try:
        await asyncio.to_thread(manifest.write_manifest, wanted.url, marker)
    except manifest.CheckpointError as error:
        return MarkFailed(run_id=wanted.run_id, step=wanted.step, detail=str(error))
    return CheckpointMarked(run_id=wanted.run_id, step=wanted.step)


async def find(wanted: ListCheckpoints, failed: Callable[[ListingFailed], None]) -> CompleteCheckpoints:
    """Goes on trying: "cannot look" must not be taken for "there is none". ``failed`` hears of each try that did.

    What the run goes on from is copied first. That is tried once, and a failure is told.
    """
    not_copied = ""
    if found := wanted.resumes:
        copying = (found.url, found.step, found.run_id, wanted.url, wanted.run_id)
        try:
            await asyncio.to_thread(manifest.copy_checkpoint, *copying)
        except (manifest.CheckpointError, OSError) as error:
            not_copied = str(error)
    while True:
        try:
            steps = await asyncio.to_thread(manifest.complete_steps, wanted.url, wanted.run_id)
        except OSError as error:
            failed(ListingFailed(run_id=wanted.run_id, detail=f"{wanted.url}: {error}"))
            await asyncio.sleep(RETRY_S)
        else:
            return CompleteCheckpoints(run_id=wanted.run_id, steps=tuple(sorted(steps)), not_copied=not_copied)


async def farewells(url: str) -> tuple[AgentSaid, ...]:
    """What agents whose machines ended without a coordinator have left beside the checkpoints. Best effort."""
    try:
        async with asyncio.timeout(FAREWELLS_S):
            left = await asyncio.to_thread(lambda: tuple(farewell.left(url)))
    except OSError as error:  # TimeoutError is one
        log.warning("cannot look for farewells in %s: %s", url, error)
        return ()
    return tuple(
        AgentSaid(node_id=one.node_id, message=e.message, boot_id=one.boot_id, sequence=e.sequence)
        for one in left
        for e in one.envelopes
    )


async def prune(wanted: PruneCheckpoints) -> None:
    """Best effort: what could not be deleted now is deleted after the next checkpoint."""
    try:
        await asyncio.to_thread(manifest.prune, wanted.url, len(wanted.kept), wanted.run_id)
    except OSError as error:
        log.warning("cannot delete old checkpoints in %s: %s", wanted.url, error)
