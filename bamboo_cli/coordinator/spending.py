"""Looks at the ledger while a run goes on whose job limits what it may cost."""

import asyncio
from collections.abc import Callable

from sqlalchemy import Engine

from bamboo_cli.coordinator import money
from bamboo_cli.coordinator.events import Event, SpentSoFar
from bamboo_cli.coordinator.run_entities import Run
from bamboo_cli.coordinator.store import reading

LOOK_S = 2.0


async def watch(
    active_run: Callable[[], Run | None], readers: Engine, clock: Callable[[], float], hear: Callable[[Event], None]
) -> None:
    """For ever. Raises StateError."""
    while True:
        await asyncio.sleep(LOOK_S)
        run = active_run()
        if run is not None and run.spec.budget.max_microusd is not None:
            with reading(readers) as connection:
                spent = money.spent_on(connection, run.run_id, run.started_at, clock())
            hear(SpentSoFar(run_id=run.run_id, microusd=spent))
