"""How a stage is: from the plan in force, the nodes' rows and their signs of life."""

from dataclasses import replace
from pathlib import Path

import pytest

from bamboo_cli import health
from bamboo_cli.coordinator.looking import Look
from bamboo_cli.health import Health
from bamboo_cli.views import grid
from tests.cli import scenes
from tests.cli import status_example as example


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Look:
    return scenes.storm(tmp_path_factory.mktemp("storm"))


def test_each_stage_is_as_bad_as_the_worst_that_is_known_of_it(storm: Look) -> None:
    (first, second) = health.pipelines(storm.cluster, scenes.NOW)

    assert [(place.node_id, place.health) for place in first] == [
        ("n1", Health.WELL),
        ("n2", Health.GOING),
        ("n3", Health.WELL),
        ("n4", Health.SILENT),
    ]
    assert [(place.node_id, place.health) for place in second] == [
        ("n5", Health.DOUBLED),
        ("n5", Health.DOUBLED),
        ("n7", Health.BARE),  # n6 was its shadow
        ("n8", Health.LOST),
    ]
    assert [place.left_s for place in first] == [None, 17.0, None, None]


def test_a_dead_coordinator_makes_no_node_silent(storm: Look) -> None:
    dead = replace(storm.cluster.coordinator, alive=False)

    assert health.silences(storm.cluster) == {"n4": pytest.approx(7.2)}
    assert health.silences(replace(storm.cluster, coordinator=dead)) == {}


def test_a_run_that_has_ended_has_no_pipelines(storm: Look) -> None:
    assert storm.cluster.run is not None
    ended = replace(storm.cluster.run, ended_at=scenes.NOW)

    assert health.pipelines(replace(storm.cluster, run=ended), scenes.NOW) == ()


def test_the_soonest_to_go_comes_first_and_a_drained_one_last() -> None:
    nodes = (
        example.node(1, state="draining"),
        example.node(2, state="draining", deadline=example.NOW + 20),
        example.node(3, state="draining", deadline=example.NOW + 4),
        example.node(4),
    )

    assert [node.node_id for node in health.going(example.cluster(nodes=nodes))] == ["n3", "n2", "n1"]


def test_a_deadline_that_has_passed_leaves_nothing() -> None:
    assert health.seconds_left(example.node(1, deadline=example.NOW - 3), example.NOW) == 0.0


def test_that_the_node_is_gone_is_known_from_its_state_alone(tmp_path: Path) -> None:
    look = scenes.storm(tmp_path)
    nodes = tuple(replace(n, state="ended") if n.node_id == "n1" else n for n in look.cluster.nodes)

    (first, _) = health.pipelines(replace(look.cluster, nodes=nodes), scenes.NOW)

    assert first[0].health is Health.LOST


def test_a_legend_that_is_too_long_says_the_worst(storm: Look) -> None:
    legend = grid.legend(health.pipelines(storm.cluster, scenes.NOW), 40).plain

    assert legend.startswith("✕ lost   ▲ will be taken") and "runs two" not in legend
