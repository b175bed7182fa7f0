"""Pages and story on one line of time."""

import pytest
from bamboo_trainer.plan import Mode, WorkerId
from bamboo_trainer.redundancy import fail_over

from bamboo_cli.tracing.files import ranges
from bamboo_cli.tracing.names import SlotKind, consumers, kind_of
from bamboo_cli.tracing.timeline import around_step, telling_step, timeline
from tests.tracing.example import BEGAN_AT, CALM, FIRST, SECOND, STORY, TAKEN_OVER, page
from tests.trainer.world import grid_plan, worker_name


def test_gaps_are_bubbles_that_say_what_ended_them() -> None:
    found = timeline("r1", CALM, ())

    waits = {
        (slot.worker_id, round((slot.start - BEGAN_AT) * 1e3), round((slot.end - BEGAN_AT) * 1e3), slot.waits_for)
        for step in found.steps
        for slot in step.slots
        if slot.kind is SlotKind.WAIT
    }
    assert waits == {
        (FIRST, 18, 50, "1B0 of n2/1"),
        (SECOND, 0, 12, "0F0 of n1/1"),
        (SECOND, 43, 73, "HELD of n1/1"),
    }


def test_a_transfer_leads_from_the_slot_that_made_the_datum_to_the_one_that_used_it() -> None:
    found = timeline("r1", CALM, ())

    (forward,) = [transfer for transfer in found.transfers if transfer.name == "0F0"]
    assert (forward.sender, forward.receiver) == (FIRST, SECOND)
    assert forward.producer is not None and forward.consumer is not None
    assert (forward.producer.name, forward.consumer.name) == ("0F0", "1F0")
    assert forward.producer.end < forward.arrived_at < forward.consumer.start


def test_a_datum_that_is_sent_again_arrived_when_it_came_first() -> None:
    twice = page(SECOND, ("1F0", 30, 40), arrivals=(("0F0", FIRST, 11), ("0F0", FIRST, 25)))

    found = timeline("r1", (CALM[0], twice), ())

    assert [round((t.arrived_at - BEGAN_AT) * 1e3) for t in found.transfers if t.name == "0F0"] == [11]


def test_a_lost_worker_is_known_by_what_it_sent() -> None:
    found = timeline("r1", TAKEN_OVER, STORY)

    assert found.workers == (FIRST, SECOND)
    assert [(t.sender, t.producer) for t in found.transfers] == [(SECOND, None)]
    assert [event.kind for event in found.story] == ["loss", "failover"]


def test_of_two_tries_at_a_step_each_is_tied_to_its_own_slots() -> None:
    again = [
        page(
            each.worker_id,
            *[(s.action, s.start_us // 1000, s.end_us // 1000) for s in each.recorded.slots],
            arrivals=tuple((a.datum, a.sender, a.at_us // 1000) for a in each.recorded.arrivals),
            generation=2,
            began_at=BEGAN_AT + 5.0,
        )
        for each in CALM
    ]

    found = timeline("r1", (*CALM, *again), ())

    forwards = [transfer for transfer in found.transfers if transfer.name == "0F0"]
    assert [t.producer is not None and t.arrived_at - t.producer.end < 0.1 for t in forwards] == [True, True]


def test_a_page_whose_clock_was_read_a_little_too_late_does_not_overlap_the_one_before() -> None:
    pages = (page(FIRST, ("0F0", 0, 10)), page(FIRST, ("0F0", 0, 10), step=1, began_at=BEGAN_AT + 0.010 - 3e-6))

    first, second = timeline("r1", pages, ()).steps

    assert first.end == second.start == second.slots[0].start


def test_workers_are_in_the_order_of_their_numbers() -> None:
    pages = [page(WorkerId(name), ("0F0", 0, 1)) for name in ("n10/1", "n2/1", "n2/10", "n2/2")]

    assert timeline("r1", pages, ()).workers == ("n2/1", "n2/2", "n2/10", "n10/1")


def test_a_step_with_a_failover_comes_with_its_neighbours_and_another_alone() -> None:
    calm = [page(FIRST, ("0F0", 0, 1), step=step, began_at=BEGAN_AT + step) for step in (5, 6, 8, 9)]
    pages = (*calm, *TAKEN_OVER)

    assert {p.recorded.step for p in around_step(pages, 7)} == {6, 7, 8}
    assert {p.recorded.step for p in around_step(pages, 8)} == {8}


def test_the_step_to_look_at_is_the_newest_with_a_failover_else_the_newest() -> None:
    later = page(FIRST, ("0F0", 0, 1), step=9)

    assert telling_step((*TAKEN_OVER, later)) == 7
    assert telling_step((*CALM, later)) == 9


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("1F0", SlotKind.FORWARD),
        ("12B3", SlotKind.BACKWARD),
        ("1FRC0", SlotKind.REDUNDANT),
        ("2C", SlotKind.REDUCE),
        ("R4.0", SlotKind.REDUCE),
        ("HELD", SlotKind.COMMIT),
        ("FAILOVER2", SlotKind.PLAN),
        ("LOAD3", SlotKind.FETCH),
        ("1XYZ0", SlotKind.OTHER),
        ("?", SlotKind.OTHER),
    ],
)
def test_every_action_has_a_kind_and_an_unknown_one_is_no_mistake(name: str, kind: SlotKind) -> None:
    assert kind_of(name) is kind


@pytest.mark.parametrize(
    ("datum", "used_by"),
    [
        ("0F3", ("1F3", "1FRC3")),
        ("2B1", ("1B1",)),
        ("C4.0", ("R4.0",)),
        ("R4.0", ("HELD",)),
        ("LAYER7", ("LOAD7",)),
        ("HELD", ("COMMIT",)),
        ("?", ()),
    ],
)
def test_what_uses_a_datum(datum: str, used_by: tuple[str, ...]) -> None:
    assert consumers(datum) == used_by


def test_ranges_are_spelt_for_people() -> None:
    assert ranges([0, 1, 2, 50, 97, 98]) == "0-2, 50, 97-98"


def test_what_a_shadow_computes_beside_the_host_is_redundant_until_it_is_the_host() -> None:
    """In ``full`` mode a shadow spells what it does like the host."""
    first, second = worker_name(0, 0), worker_name(0, 1)
    plan = grid_plan(1, 2, 2, 1, Mode.FULL)
    after = fail_over(plan, {second}, generation=2)
    assert after is not None
    pages = (
        page(
            first,
            *(("0F0", 0, 10), ("1F0", 10, 20), ("1B0", 20, 30)),
            ("FAILOVER2", 30, 31),
            *(("1F1", 31, 40), ("0B0", 40, 50)),
            generation=2,
        ),
    )

    (step,) = timeline("r1", pages, (), (plan, after)).steps

    assert [slot.kind for slot in step.slots] == [
        *(SlotKind.FORWARD, SlotKind.REDUNDANT, SlotKind.REDUNDANT),
        SlotKind.PLAN,
        *(SlotKind.FORWARD, SlotKind.BACKWARD),
    ]


def test_a_contribution_comes_from_the_slot_that_made_all_of_a_stage() -> None:
    pages = (
        page(FIRST, ("0C", 0, 10)),
        page(SECOND, ("R4.0", 20, 30), arrivals=(("C4.0", FIRST, 12),)),
    )

    (transfer,) = timeline("r1", pages, ()).transfers

    assert transfer.producer is not None and transfer.consumer is not None
    assert (transfer.producer.name, transfer.consumer.name) == ("0C", "R4.0")
