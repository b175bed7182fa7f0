"""A preemption with a warning: the node is taken out at a step boundary, and nothing is computed twice."""

from collections.abc import Callable

from bamboo_cli.coordinator.status import StoryEvent
from tests.cluster import PLAIN, WITHOUT_REPLACEMENT, Bamboo

NOTICE_S = 20.0


def test_a_noticed_node_leaves_at_a_boundary_before_its_deadline(
    bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    job = bamboo.paced(
        drill=[{"step": 5, "node": "n2", "notice": True}],
        nodes=4,
        local=WITHOUT_REPLACEMENT | {"notice_s": NOTICE_S},
    )
    command = bamboo.begin("run", job, "--yes", "--json")

    bamboo.until(lambda: _given_back(bamboo), "n2 to be given back")
    bamboo.open_gate()
    summary = bamboo.finish(command)

    (notice,) = bamboo.events("notice")
    (given_back,) = _given_back(bamboo)
    assert given_back.at - notice.at < notice.numbers["left_s"] <= NOTICE_S
    assert bamboo.events("failover") == bamboo.events("loss") == []
    told = [event.text for event in bamboo.events("handover")]
    assert "training goes on meanwhile" in told[0]
    assert any("n4/1 has learned" in text for text in told), "the standby had its layers before the others stopped"
    counts = {key: summary[key] for key in ("failovers", "preemptions", "restores", "steps_rerun")}
    assert counts == {"failovers": 0, "preemptions": 1, "restores": 0, "steps_rerun": 0}, bamboo.story()
    assert summary["weights_sha256"] == undisturbed(**PLAIN)


def _given_back(bamboo: Bamboo) -> list[StoryEvent]:
    if bamboo.active_run() is None:
        return []
    return [event for event in bamboo.events("node") if event.text.startswith("n2 is given back")]
