"""`bamboo plan` before anything is rented: what each protection costs, and what the planner would take."""

from typing import Any

import pytest
from bamboo_trainer.plan import Mode

from bamboo_cli.config import JobConfig
from bamboo_cli.drills.promise import Rung
from bamboo_cli.estimate import prices
from bamboo_cli.preview import Preview, preview
from bamboo_cli.recipe_check import LayerSize, Model
from bamboo_cli.settled import settled

MB = 10**6
MODEL = Model(
    layer_names=tuple(f"l{i}" for i in range(8)),
    num_parameters=16 * MB,
    num_samples=100,
    layer_sizes=(LayerSize(parameter_bytes=8 * MB, activation_bytes=MB, kept_bytes=10 * MB, optimizer_bytes=16 * MB),)
    * 8,
)


def job(**fields: Any) -> JobConfig:
    return JobConfig(name="j", steps=1, global_batch_size=16, microbatch_size=2, **fields)


def test_each_protection_has_its_price_in_time_and_memory_and_what_it_buys() -> None:
    found = {(p.mode, p.level): p for p in prices(job(stages=4), MODEL)}

    off, mirror, bubble, eager, full = (
        found[mode, 1] for mode in (Mode.OFF, Mode.MIRROR, Mode.BUBBLE, Mode.EAGER, Mode.FULL)
    )
    assert Mode.REROUTE not in {mode for mode, _ in found}, "there is no other pipeline"
    assert off.step_ratio == mirror.step_ratio == bubble.step_ratio == 1.0 < eager.step_ratio < full.step_ratio
    assert off.memory_bytes is not None and mirror.memory_bytes is not None and bubble.memory_bytes is not None
    assert off.memory_bytes < mirror.memory_bytes < bubble.memory_bytes
    assert (off.losses_survived, bubble.losses_survived, found[Mode.BUBBLE, 2].losses_survived) == (0, 1, 2)
    assert (off.survived_by, mirror.survived_by, bubble.survived_by) == (Rung.RESTORED, Rung.RUN_AGAIN, Rung.SHADOW)
    assert off.hours_between_fatal == pytest.approx(1 / (4 * 0.5))
    assert off.hours_between_fatal < bubble.hours_between_fatal < found[Mode.BUBBLE, 2].hours_between_fatal


def test_what_does_not_fit_is_said() -> None:
    by_mode = {p.mode: p for p in prices(job(stages=2, memory_gb=0.4), MODEL) if p.level == 1}
    assert by_mode[Mode.OFF].fits
    assert not by_mode[Mode.EAGER].fits


def test_without_the_recipe_memory_is_not_known() -> None:
    found = preview(job(stages=2))
    assert all(price.memory_bytes is None and price.fits for price in found.protections)
    assert any("memory is not known" in warning for warning in found.warnings)


def test_an_auto_job_is_shown_as_the_planner_would_begin_it() -> None:
    found = preview(job(stages="auto", pipelines="auto", nodes=7, redundancy="auto"), MODEL)
    assert found.num_stages == found.auto.pipelines
    workers = [worker for node in found.nodes for worker in node.workers]
    assert sum(worker.pipeline_index is not None for worker in workers) == sum(found.num_stages)
    assert found.auto.reason.count("more than") == 1
    assert any("`pipelines: auto`" in warning for warning in found.warnings)


def test_what_auto_would_choose_keeps_the_shape_that_the_job_fixes() -> None:
    found = preview(job(stages=3, pipelines=2, nodes=8), MODEL)
    assert found.auto.pipelines == (3, 3)
    assert found.auto.num_standbys == 2


def test_a_rehearsal_gets_numbers() -> None:
    asked = job(stages="auto", pipelines=2, nodes=5, redundancy="auto", redundancy_level="auto")
    fixed = settled(asked, MODEL)
    assert not fixed.is_auto
    assert fixed.fixed_shape == (2, 2)
    assert fixed.num_nodes == 5
    assert settled(fixed, MODEL) is fixed


def test_numbers_of_a_job_are_the_same_in_the_preview_as_before() -> None:
    found = preview(job(stages=3, nodes=4))
    assert (found.num_pipelines, found.num_stages, found.modes) == (1, (3,), (Mode.BUBBLE,))


# --- nodes with several accelerators ----------------------------------------------------------------------------


def placed(found: Preview) -> dict[str, list[tuple[int | None, int | None]]]:
    """What each node runs: pipeline and stage."""
    return {node.node_id: [(w.pipeline_index, w.stage_index) for w in node.workers] for node in found.nodes}


def test_nodes_with_two_accelerators_run_two_stages_each_and_are_priced_once() -> None:
    asked = job(pipelines=2, stages=2, local={"accelerators": 2})
    found = preview(asked, MODEL)
    assert (asked.num_nodes, asked.num_workers, asked.num_hosts) == (2, 4, 4)
    assert placed(found) == {"n1": [(0, 0), (1, 0)], "n2": [(0, 1), (1, 1)]}
    assert found.spot_usd_per_hour == pytest.approx(0.30 + 0.32)
    assert found.hours_between_fatal > 24
    assert not any("alone" in warning or "one node" in warning for warning in found.warnings)


def test_all_workers_on_one_node_is_said_beforehand() -> None:
    found = preview(job(stages=2, local={"accelerators": 2}), MODEL)
    assert found.hours_between_fatal == pytest.approx(1 / 0.5), "every loss of the node is fatal"
    assert {price.survived_by for price in found.protections} == {Rung.RESTORED}
    assert (
        "all workers are on one node: its loss goes back to the newest checkpoint; with another node it would not"
        in found.warnings
    )


def test_an_odd_ring_over_two_nodes_is_said_beforehand() -> None:
    lone = preview(job(stages=3, local={"accelerators": 2}), MODEL)
    assert any(warning.startswith("some layers are on one node alone") for warning in lone.warnings)
    doubled = preview(job(stages=3, pipelines=2, nodes=2, local={"accelerators": 3}), MODEL)
    assert any(warning.startswith("2 stages have no shadow") for warning in doubled.warnings)
    whole = preview(job(stages=3, nodes=3, local={"accelerators": 2}), MODEL)
    assert not any("shadow" in warning or "alone" in warning for warning in whole.warnings)


def test_the_planner_uses_all_accelerators_and_survives_the_loss_of_a_node() -> None:
    found = preview(job(stages="auto", pipelines="auto", nodes=3, redundancy="auto", local={"accelerators": 2}), MODEL)
    assert sum(found.num_stages) + found.auto.num_standbys == 6
    assert found.hours_between_fatal > 1 / 0.5
