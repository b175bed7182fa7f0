"""What one transaction writes: the machine's rows, and what an event and its instructions leave for people and bills.

Every write can be repeated: an event may be given twice.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from bamboo_trainer.plan import NodeId, Plan
from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Connection, Row, delete, insert, or_, select, update
from sqlalchemy.dialects import sqlite

from bamboo_cli.coordinator import pages, schema
from bamboo_cli.coordinator.events import (
    CreateFailed,
    CreateFault,
    CreateSucceeded,
    Event,
    FinishRequest,
    InstanceEnded,
    InstanceSeen,
    Instruction,
    KeepPage,
    RecordStep,
    Tell,
)
from bamboo_cli.coordinator.rows import decode_row
from bamboo_cli.coordinator.run_entities import Run
from bamboo_cli.coordinator.settings import RunSpec
from bamboo_cli.coordinator.store import RequestState
from bamboo_cli.costs.ledger import microusd, usd
from bamboo_cli.providers.base import EndReason, Instance, InstanceState, Offer

DURABLE = (RecordStep, KeepPage, Tell, FinishRequest)
"""Instructions that are carried out by the transaction itself."""
NOTED = (CreateSucceeded, CreateFailed, InstanceSeen, InstanceEnded)
"""Events that the books want, whatever the machine makes of them."""

_PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)


def record(
    connection: Connection, event: Event, rows: Mapping[str, str], instructions: Iterable[Instruction], now: float
) -> None:
    """Everything that has to be known before the other instructions are carried out."""
    for name, body in rows.items():
        put_row(connection, name, body)
        if name.startswith("run/"):
            _record_plan(connection, decode_row(name, body), now)
    match event:
        case CreateSucceeded() | InstanceSeen():
            record_instance(connection, event.instance)
        case InstanceEnded():
            _record_end(connection, event)
        case CreateFailed() if event.fault is not CreateFault.CLOUD:
            forget_intent(connection, event.token)
    for instruction in instructions:
        match instruction:
            case Tell():
                tell(connection, instruction, now)
            case RecordStep():
                _record_step(connection, instruction, now)
            case KeepPage():
                pages.keep(connection, instruction.worker_id, instruction.page)
            case FinishRequest():
                finish(connection, instruction, now)


def rows_of(connection: Connection) -> dict[str, str]:
    """All of the machine's rows, by name."""
    return {row.name: row.body for row in connection.execute(select(schema.machine))}


def spec_of(connection: Connection, run_id: str) -> RunSpec:
    name = f"run/{run_id}"
    body = connection.execute(select(schema.machine.c.body).where(schema.machine.c.name == name)).scalar_one()
    run: Run = decode_row(name, body)
    return run.spec


def put_row(connection: Connection, name: str, body: str) -> None:
    statement = sqlite.insert(schema.machine).values(name=name, body=body)
    connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"body": body}))


def tell(connection: Connection, line: Tell, now: float) -> None:
    numbers = dict(line.numbers)
    step = numbers.get("step")
    connection.execute(
        insert(schema.events).values(
            at=now,
            kind=line.kind,
            node_id=line.node_id,
            run_id=line.run_id,
            step=None if step is None else int(step),
            text=line.text,
            numbers=numbers,
        )
    )


def finish(connection: Connection, answer: FinishRequest, now: float) -> None:
    """The first answer counts."""
    table = schema.requests
    connection.execute(
        update(table)
        .where(table.c.request_id == answer.request_id, table.c.state == RequestState.PENDING)
        .values(state=RequestState.DONE if answer.ok else RequestState.REFUSED, outcome=answer.text, answered_at=now)
    )


def record_heartbeat(connection: Connection, beats: Mapping[NodeId, float], now: float) -> None:
    """For people who look at the state: the coordinator is well, and has heard of these nodes."""
    connection.execute(update(schema.cluster).values(heartbeat_at=now))
    for node_id, at in beats.items():
        statement = sqlite.insert(schema.beats).values(node_id=node_id, last_beat_at=at)
        connection.execute(statement.on_conflict_do_update(index_elements=["node_id"], set_={"last_beat_at": at}))


# --- money ------------------------------------------------------------------------------------------------------


def token_of_try(token: str, index: int) -> str:
    """Of the offers that are tried for one create: the token itself, then ``TOKEN.2`` and so on."""
    return token if index == 0 else f"{token}.{index + 1}"


def open_intent(connection: Connection, token: str) -> tuple[int, Offer] | None:
    """Of the tries under ``token``, the one of which it is not known what came of it, and what was asked for."""
    table = schema.instances
    rows = connection.execute(select(table).where(_tries(token), table.c.launched_at.is_(None))).all()
    tries = {0 if row.token == token else int(row.token.rpartition(".")[2]) - 1: row for row in rows}
    if not tries:
        return None
    index, row = max(tries.items(), key=lambda found: found[0])
    price = _newest_price(connection, row.zone, row.instance_type)
    return index, Offer(
        instance_type=row.instance_type,
        zone=row.zone,
        spot_usd_per_hour=usd(price.spot_microusd_per_hour) if price else 0.0,
        on_demand_usd_per_hour=usd(price.on_demand_microusd_per_hour) if price else 0.0,
        price_source=price.price_source if price else "unknown",
        is_spot=row.is_spot,
    )


def record_intent(connection: Connection, token: str, node_id: NodeId, offer: Offer, now: float) -> Offer:
    """Before the cloud is asked to create: what is about to be rented, and at which price.

    Returns what the token stands for: an intent that is already there is repeated, whatever is on offer now.
    """
    table = schema.instances
    statement = sqlite.insert(table).values(
        token=token,
        node_id=node_id,
        instance_type=offer.instance_type,
        zone=offer.zone,
        intended_at=now,
        is_spot=offer.is_spot,
    )
    connection.execute(statement.on_conflict_do_nothing())
    record_prices(connection, (offer,), now)
    row = connection.execute(select(table).where(table.c.token == token)).one()
    return Offer(
        instance_type=row.instance_type,
        zone=row.zone,
        spot_usd_per_hour=offer.spot_usd_per_hour,
        on_demand_usd_per_hour=offer.on_demand_usd_per_hour,
        price_source=offer.price_source,
        is_spot=row.is_spot,
    )


def record_prices(connection: Connection, offers: Iterable[Offer], now: float) -> None:
    """A row for each price that differs from the newest one of its zone and type. Those of spot tell both."""
    table = schema.prices
    for offer in offers:
        if not offer.is_spot:
            continue
        spot, on_demand = microusd(offer.spot_usd_per_hour), microusd(offer.on_demand_usd_per_hour)
        newest = _newest_price(connection, offer.zone, offer.instance_type)
        if newest is not None and (newest.spot_microusd_per_hour, newest.on_demand_microusd_per_hour) == (
            spot,
            on_demand,
        ):
            continue
        statement = sqlite.insert(table).values(
            zone=offer.zone,
            instance_type=offer.instance_type,
            # A clock that was set back must not put the new price before the old one.
            from_at=now if newest is None else max(now, newest.from_at + 1e-3),
            spot_microusd_per_hour=spot,
            on_demand_microusd_per_hour=on_demand,
            price_source=offer.price_source,
        )
        connection.execute(statement)


def _newest_price(connection: Connection, zone: str, instance_type: str) -> Row[Any] | None:
    table = schema.prices
    mine = (table.c.zone == zone, table.c.instance_type == instance_type)
    return connection.execute(select(table).where(*mine).order_by(table.c.from_at.desc()).limit(1)).one_or_none()


def record_instance(connection: Connection, instance: Instance) -> None:
    """Also one that we do not remember to have asked for, or that was taken for gone: it costs money all the same."""
    facts: dict[str, Any] = {
        "node_id": instance.node_id,
        "instance_type": instance.instance_type,
        "zone": instance.zone,
        "instance_id": instance.instance_id,
        "address": instance.address,
        "launched_at": instance.launched_at,
        "is_spot": instance.is_spot,
    }
    if instance.state is not InstanceState.TERMINATED:
        facts |= {"ended_at": None, "end_reason": EndReason.NONE}
    statement = sqlite.insert(schema.instances).values(token=instance.token, intended_at=instance.launched_at, **facts)
    connection.execute(statement.on_conflict_do_update(index_elements=["token"], set_=facts))


def forget_intent(connection: Connection, token: str) -> None:
    """The cloud said no, so nothing came of it for sure, nor of further tries."""
    table = schema.instances
    connection.execute(delete(table).where(_tries(token), table.c.launched_at.is_(None)))


def _tries(token: str) -> ColumnElement[bool]:
    """Tokens hold neither % nor _, which would stand for anything."""
    return or_(schema.instances.c.token == token, schema.instances.c.token.like(f"{token}.%"))


def _record_end(connection: Connection, ended: InstanceEnded) -> None:
    table = schema.instances
    connection.execute(
        update(table)
        .where(table.c.node_id == ended.node_id, table.c.launched_at.is_not(None), table.c.ended_at.is_(None))
        .values(ended_at=ended.at, end_reason=ended.reason)
    )


# --- training ---------------------------------------------------------------------------------------------------


def _record_plan(connection: Connection, run: Run, now: float) -> None:
    if run.plan is None:
        return
    statement = sqlite.insert(schema.plans).values(
        generation=run.plan.generation,
        run_id=run.run_id,
        plan=_PLAN.dump_python(run.plan, mode="json"),
        reason=run.plan.reason,
        made_at=now,
    )
    connection.execute(statement.on_conflict_do_nothing())


def _record_step(connection: Connection, step: RecordStep, now: float) -> None:
    """NaN becomes NULL in SQLite."""
    values = {
        "generation": step.generation,
        "loss": step.loss,
        "gradient_norm": step.gradient_norm,
        "learning_rate": step.learning_rate,
        "step_s": step.step_s,
        "num_samples": step.num_samples,
        "num_tokens": step.num_tokens,
        "committed_at": now,
        "first_sample": step.first_sample,
        "losses": schema.pack(step.losses),
        "square_norms": schema.pack(step.square_norms),
    }
    statement = sqlite.insert(schema.steps).values(run_id=step.run_id, step=step.step, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["run_id", "step"], set_=values))
