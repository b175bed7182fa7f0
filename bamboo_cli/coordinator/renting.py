"""Renting one instance: the intent is stored before the cloud is asked, and asked again where no answer came.

Provider calls block, so each runs in a thread.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from bamboo_trainer.plan import NodeId
from sqlalchemy import Engine

from bamboo_cli.coordinator import journal
from bamboo_cli.coordinator.events import CreateInstance
from bamboo_cli.coordinator.store import reading, writing
from bamboo_cli.errors import CapacityError, CloudError, QuotaError
from bamboo_cli.providers.base import Instance, NodeConfig, Offer, Provider

CALL_TIMEOUT_S = 120.0
MAX_THREADS = 64
"""Calls at a time. Threads that wait cost next to nothing, and a look must not queue behind many creates."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Renting:
    def __init__(
        self,
        provider: Provider,
        engine: Engine,
        node_config: Callable[[NodeId], NodeConfig],
        clock: Callable[[], float],
    ) -> None:
        self._provider = provider
        self._engine = engine
        self._node_config = node_config
        self._clock = clock
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="cloud")

    async def rent(self, wanted: CreateInstance) -> Instance:
        """What the zone has on offer in turn, until one can be had. Each has a token of its own, since a token stands
        for one request; one of which it is not known what came of it is repeated first, whatever is on offer by now.
        Raises BambooError.
        """
        with reading(self._engine) as connection:
            sent = journal.open_intent(connection, wanted.token)
        refusals: list[CapacityError | QuotaError] = []
        if sent is not None:
            try:
                return await self._ask(wanted, *sent)
            except (CapacityError, QuotaError) as error:
                refusals.append(error)
        offers = [offer for offer in await self.offers() if offer.zone == wanted.zone]
        offers = [offer for offer in offers if offer.is_spot or wanted.on_demand]
        if not offers and not refusals:
            raise CapacityError(f"nothing is on offer in zone {wanted.zone}")
        for index in range(0 if sent is None else sent[0] + 1, len(offers)):
            try:
                return await self._ask(wanted, index, offers[index])
            except (CapacityError, QuotaError) as error:
                refusals.append(error)
        shortages = [refusal for refusal in refusals if isinstance(refusal, CapacityError)]
        raise (shortages or refusals)[-1]

    async def _ask(self, wanted: CreateInstance, index: int, offer: Offer) -> Instance:
        """Raises BambooError; CapacityError and QuotaError leave no intent."""
        token = journal.token_of_try(wanted.token, index)
        with writing(self._engine) as connection:
            offer = journal.record_intent(connection, token, wanted.node_id, offer, self._clock())
        try:
            return await self.call(self._provider.create, offer, self._node_config(wanted.node_id), token)
        except (CapacityError, QuotaError):
            with writing(self._engine) as connection:
                journal.forget_intent(connection, token)
            raise

    async def offers(self) -> tuple[Offer, ...]:
        """Their prices are written down. Raises BambooError."""
        offers = await self.call(self._provider.offers)
        with writing(self._engine) as connection:
            journal.record_prices(connection, offers, self._clock())
        return offers

    async def call(self, function: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        """In a thread. Raises what the function raises; CloudError when it takes too long (it may take effect yet)."""
        work = partial(function, *arguments, **named)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError as error:
            name = getattr(function, "__name__", "the call")
            raise CloudError(f"the cloud did not answer {name} within {CALL_TIMEOUT_S:.0f} s") from error
