"""The picture of one step."""

from xml.etree import ElementTree

import pytest
from bamboo_trainer.plan import WorkerId

from bamboo_cli.tracing.names import SlotKind
from bamboo_cli.tracing.picture import FILLS, MAX_PX, MIN_PX, picture
from bamboo_cli.tracing.timeline import timeline
from tests.tracing.example import BEGAN_AT, CALM, FIRST, STORY, TAKEN_OVER, event, page

SVG = "{http://www.w3.org/2000/svg}"


def parsed(drawing: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawing)


def texts(drawing: str) -> list[str]:
    return [element.text or "" for element in parsed(drawing).iter(f"{SVG}text")]


def slots(drawing: str) -> dict[str, ElementTree.Element]:
    """By what hovering over one tells, without its duration."""
    found = {}
    for rectangle in parsed(drawing).iter(f"{SVG}rect"):
        title = rectangle.find(f"{SVG}title")
        if title is not None and title.text is not None:
            found[title.text.partition(":")[0]] = rectangle
    return found


def test_every_slot_is_drawn_to_scale_labelled_and_in_the_colour_of_its_kind() -> None:
    drawing = picture(timeline("r1", CALM, ()))

    drawn = slots(drawing)
    assert set(drawn) == {"0F0", "1FRC0", "0B0", "1F0", "1B0", "HELD", "COMMIT"}
    assert float(drawn["0B0"].attrib["width"]) == pytest.approx(2 * float(drawn["0F0"].attrib["width"]), rel=0.01)
    assert drawn["0F0"].attrib["fill"] == FILLS[SlotKind.FORWARD]
    assert drawn["1FRC0"].attrib["fill"] == "url(#hatched)"
    assert {"0F0", "1f0", "0B0", "1F0", "1B0", "n1/1", "n2/1", "stage 0", "stage 1"} <= set(texts(drawing))
    assert "r1, step 0 under plan 1: 78.0 ms" in texts(drawing)


def test_a_takeover_is_marked_with_the_stage_that_was_taken_and_the_worker_that_is_lost() -> None:
    drawing = picture(timeline("r1", TAKEN_OVER, STORY))

    drawn = slots(drawing)
    assert drawn["1B0"].attrib["class"] == drawn["1F0"].attrib["class"] == "slot over"
    assert drawn["0B0"].attrib["class"] == drawn["1FRC0"].attrib["class"] == "slot"
    told = texts(drawing)
    assert "failover" in told
    assert "stage 0, then 0 and 1" in told
    assert "29.0 ms  lost n2/1: n1/1 hosts stage 1" in told
    assert "lost: worker n2/1 is <lost>" in told
    assert "only what it sent" in told
    assert told.count("1F0") == 1, "where it arrived; the slot of that name is too narrow for a label"


def test_a_loss_is_drawn_on_the_worker_that_is_named_and_on_all_of_a_node_that_is() -> None:
    pages = tuple(page(WorkerId(worker_id), ("0F0", 0, 100)) for worker_id in ("n1/1", "n1/2", "n2/1", "n2/2"))
    story = (
        event(BEGAN_AT + 0.02, "loss", "worker n1/2 is lost: its process ended", "n1"),
        event(BEGAN_AT + 0.03, "loss", "node n2 is lost: its agent was silent", "n2"),
    )

    told = texts(picture(timeline("r1", pages, story)))

    assert told.count("lost: worker n1/2 is lost: its process ended") == 1
    assert told.count("lost: node n2 is lost: its agent was silent") == 2


def test_rows_are_in_the_order_of_pipelines_and_stages() -> None:
    """Nodes that came late run early stages. What was lost stands where it sent from."""
    pages = (
        page(WorkerId("n1/1"), ("0F4", 0, 10), pipeline_index=1),
        page(WorkerId("n2/1"), ("2B0", 0, 10), arrivals=(("1F0", WorkerId("n4/1"), 5),)),
        page(WorkerId("n9/1"), ("0F0", 0, 10)),
    )

    drawing = picture(timeline("r1", pages, ()))

    assert [text for text in texts(drawing) if text.startswith("n")] == ["n9/1", "n4/1", "n2/1", "n1/1"]
    assert texts(drawing).count("pipeline 1") == 1


@pytest.mark.parametrize("num_microbatches", [1, 64, 4096])
def test_a_picture_is_as_wide_as_its_labels_need_within_bounds(num_microbatches: int) -> None:
    forwards = [(f"0F{m}", 10 * m, 10 * m + 10) for m in range(num_microbatches)]

    drawing = parsed(picture(timeline("r1", (page(FIRST, *forwards),), ())))

    assert MIN_PX <= float(drawing.attrib["width"]) <= MAX_PX + 200


def test_a_step_given_up_and_run_again_is_drawn_with_both_tries() -> None:
    tries = (
        page(FIRST, ("0F0", 0, 10), committed=False),
        page(FIRST, ("PLAN2", 0, 2), ("0F0", 2, 12), generation=2, began_at=1_000_000.5),
    )

    drawing = picture(timeline("r1", tries, ()))

    assert "r1, step 0 under plan 1 and 2: 512.0 ms, given up by some and run again" in texts(drawing)
    assert "PLAN2" in slots(drawing)
