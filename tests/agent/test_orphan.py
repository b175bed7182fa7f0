"""The dead-man's switch: who is alone for too long saves what there is and ends the machine; nobody else does."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bamboo_agent import farewell
from bamboo_agent import orphan as module
from bamboo_agent.config import AgentConfig
from bamboo_agent.farewell import Farewell
from bamboo_agent.messages import Envelope, WorkerExited, WorkerSaid
from bamboo_agent.orphan import Orphan
from bamboo_trainer.control import Adopt, LayerSaved, Prepare, Quiesce, Save, Stopped, ToWorker, TrainingSpec
from bamboo_trainer.plan import Member, Mode, NodeId, Pipeline, Plan, PlanKind, StagePlan, WorkerId

from tests.agent.coordinator_double import CoordinatorDouble
from tests.agent.node import start_node, write_config
from tests.waiting import until, wait_until

ONE, TWO = WorkerId("n1/1"), WorkerId("n2/1")
PLAN = Plan(
    generation=5,
    kind=PlanKind.BOUNDARY,
    first_step=0,
    pipelines=(
        Pipeline(
            first_microbatch=0,
            end_microbatch=4,
            stages=(
                StagePlan(pipeline_index=0, stage_index=0, first_layer=0, end_layer=2, host=ONE, mode=Mode.OFF),
                StagePlan(pipeline_index=0, stage_index=1, first_layer=2, end_layer=3, host=TWO, mode=Mode.OFF),
            ),
        ),
    ),
    members=tuple(
        Member(worker_id=w, node_id=NodeId(w.partition("/")[0]), address="127.0.0.1", port=1) for w in (ONE, TWO)
    ),
)


@dataclass
class Scene:
    """An agent with the worker of stage 0; the coordinator's absence is in our hand."""

    url: str
    shutdown: Path
    alone_s: float = 0.0
    told: list[ToWorker] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    save_s: float = 20.0
    obedient: bool = True

    def __post_init__(self) -> None:
        self.orphan = Orphan(
            config=self._config,
            alone_s=lambda: self.alone_s,
            tell=self._tell,
            kept=lambda: Farewell(
                node_id=NodeId("n1"), boot_id="b", envelopes=(Envelope(sequence=3, sent_at=1.0, message=saved(9, 1)),)
            ),
            save_s=self.save_s,
        )

    def _config(self) -> AgentConfig:
        facts: dict[str, Any] = {
            "cluster_id": "c",
            "node_id": "n1",
            "coordinator_address": "",
            "coordinator_port": 1,
            "secret": "",
            "instance_id": "i",
            "zone": "z",
            "address": "",
            "orphan_after_s": 0.2,
            "shutdown_command": ("touch", str(self.shutdown)),
        }
        return AgentConfig(**(facts | self.config))

    def _tell(self, worker_id: WorkerId, message: ToWorker) -> None:
        """The worker stops after step 9, and saves its two layers."""
        self.told.append(message)
        if not self.obedient:
            return
        match message:
            case Quiesce():
                stopped = Stopped(generation=5, committed_step=9, layers=(0, 1), summary=None)
                self.orphan.said(WorkerSaid(worker_id=worker_id, message=stopped))
            case Save(step=step):
                for layer in (0, 1):
                    self.orphan.said(saved(step, layer))

    def run_goes_on(self) -> None:
        spec = TrainingSpec(
            run_id="r1",
            recipe="mlp",
            recipe_options={},
            num_steps=100,
            num_microbatches=4,
            microbatch_size=1,
            seed=0,
            checkpoint_url=self.url,
            checkpoint_every=50,
        )
        self.orphan.told(ONE, Prepare(spec=spec))
        self.orphan.told(ONE, Adopt(plan=PLAN))


def saved(step: int, layer: int) -> WorkerSaid:
    message = LayerSaved(
        checkpoint_step=step,
        layer=layer,
        name="l",
        file="f",
        num_bytes=1,
        file_sha256="",
        parameters_sha256="",
    )
    return WorkerSaid(worker_id=ONE, message=message)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(url=str(tmp_path / "checkpoints"), shutdown=tmp_path / "ended")


def play(scene: Scene, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def both() -> None:
        watch = asyncio.create_task(scene.orphan.run())
        await story()
        watch.cancel()
        await asyncio.wait({watch})

    asyncio.run(both())


def test_who_is_alone_for_too_long_has_the_run_saved_and_then_ends_the_machine(scene: Scene) -> None:
    scene.run_goes_on()
    scene.alone_s = 0.5

    async def story() -> None:
        await until(scene.shutdown.exists, "the end of the machine")

    play(scene, story)
    assert scene.told == [Quiesce(generation=5), Save(generation=5, step=9)]
    (left,) = farewell.left(scene.url)
    assert (left.node_id, [e.sequence for e in left.envelopes]) == ("n1", [3])


def test_a_machine_without_a_run_is_ended_at_once(scene: Scene) -> None:
    scene.alone_s = 0.5

    async def story() -> None:
        await until(scene.shutdown.exists, "the end of the machine")

    play(scene, story)
    assert scene.told == []


def test_a_worker_that_does_not_answer_does_not_keep_the_machine_alive(tmp_path: Path) -> None:
    scene = Scene(url=str(tmp_path / "c"), shutdown=tmp_path / "ended", save_s=0.2, obedient=False, alone_s=0.5)
    scene.run_goes_on()

    async def story() -> None:
        await until(scene.shutdown.exists, "the end of the machine")

    play(scene, story)
    assert scene.told == [Quiesce(generation=5)]


def test_a_worker_that_dies_meanwhile_is_not_waited_for(scene: Scene) -> None:
    scene.run_goes_on()
    scene.obedient = False
    scene.alone_s = 0.5

    async def story() -> None:
        await until(lambda: bool(scene.told), "the wish to stop")
        scene.orphan.said(WorkerExited(worker_id=ONE, exit_code=-9, log_tail=""))
        await until(scene.shutdown.exists, "the end of the machine")

    play(scene, story)


def test_a_coordinator_that_comes_back_while_the_run_is_saved_keeps_the_machine(scene: Scene) -> None:
    scene.run_goes_on()
    scene.obedient = False
    scene.alone_s = 0.5

    async def story() -> None:
        await until(lambda: bool(scene.told), "the wish to stop")
        scene.alone_s = 0.0
        scene.orphan.said(WorkerExited(worker_id=ONE, exit_code=0, log_tail=""))
        began = time.monotonic()
        await until(lambda: time.monotonic() - began > 0.5, "some looks")

    play(scene, story)
    assert not scene.shutdown.exists()


@pytest.mark.parametrize(("orphan_after_s", "alone_s"), [(0.0, 1e9), (0.2, 0.1)])
def test_nothing_is_ended_by_default_nor_before_its_time(scene: Scene, orphan_after_s: float, alone_s: float) -> None:
    scene.config = {"orphan_after_s": orphan_after_s}
    scene.alone_s = alone_s

    async def story() -> None:
        began = time.monotonic()
        await until(lambda: time.monotonic() - began > 0.5, "some looks")

    play(scene, story)
    assert not scene.shutdown.exists()


def test_a_machine_that_could_not_be_ended_is_tried_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    scene.config = {"shutdown_command": ("no-such-command",)}
    scene.alone_s = 0.5

    async def story() -> None:
        began = time.monotonic()
        await until(lambda: time.monotonic() - began > 0.5, "some tries")
        scene.config = {"shutdown_command": ("sh", "-c", f"test -e {scene.shutdown}.once || touch {scene.shutdown}")}
        await until(scene.shutdown.exists, "the end of the machine")

    play(scene, story)


def test_an_agent_that_ends_while_the_command_runs_is_not_held_up(scene: Scene, tmp_path: Path) -> None:
    begun, over = tmp_path / "begun", tmp_path / "over"
    scene.config = {"shutdown_command": ("sh", "-c", f"touch {begun}; while ! test -e {over}; do sleep 0.01; done")}
    scene.alone_s = 0.5

    async def story() -> None:
        watch = asyncio.create_task(scene.orphan.run())
        try:
            await until(begun.exists, "the command")
            watch.cancel()
            async with asyncio.timeout(30):
                await asyncio.wait({watch})
            assert watch.cancelled()
        finally:
            over.touch()

    asyncio.run(story())


def test_farewells_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    url = str(tmp_path / "c")
    assert list(farewell.left(url)) == []
    farewell.leave(url, Farewell(node_id=NodeId("n1"), boot_id="b", envelopes=()))
    (tmp_path / "c" / "farewell" / "n2-b").mkdir()
    (tmp_path / "c" / "farewell" / "n3-b").mkdir()
    (tmp_path / "c" / "farewell" / "n3-b" / "envelopes.json").write_text("{")
    assert [left.node_id for left in farewell.left(url)] == ["n1"]


# --- the whole agent --------------------------------------------------------------------------------------------


@pytest.fixture
def coordinator() -> Iterator[CoordinatorDouble]:
    double = CoordinatorDouble()
    yield double
    double.close()


def test_an_agent_ends_its_machine_when_its_coordinator_stays_away_and_not_before(
    tmp_path: Path, coordinator: CoordinatorDouble
) -> None:
    ended = tmp_path / "ended"
    write_config(tmp_path, coordinator, orphan_after_s=1.5, shutdown_command=["touch", str(ended)])
    node = start_node(tmp_path)
    try:
        wait_until(lambda: bool(coordinator.joins), "the agent to join")
        beats = len(coordinator.beats)
        wait_until(lambda: len(coordinator.beats) > beats + 50, "longer than it may be alone")
        assert not ended.exists()
        coordinator.close()
        wait_until(ended.exists, "the end of the machine")
    finally:
        node.vanish()
    assert "this machine saves its work and ends" in node.log
