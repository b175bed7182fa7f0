"""Stories as text: commands at the start of a line, what the machine did indented below each.

``cluster nodes=3 zones=a,b lease=10`` begins, with ``accelerators=2`` over nodes with two workers each; ``train steps=8
stages=3`` asks for a run. ``steps 3`` lets three steps be committed, ``part-step 1`` one that only one member gets to
apply, ``finish`` all that are left. ``kill``, ``preempt``, ``freeze``, ``drop`` strike a node; ``kill-worker``,
``freeze-worker``, ``hang-worker`` (it beats on without working) and ``cut`` its worker, or ``n2/1`` of several;
``notice n2 10`` warns; ``thaw`` ends all that. ``wait 5`` lets time pass; ``hold`` and ``go`` stop and resume what
happens by itself. ``show`` prints where the run stands.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bamboo_trainer.control import DigestMismatch, TrainingSpec
from bamboo_trainer.plan import Mode, NodeId, WorkerId

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.settings import ClusterConfig, Drill, RunSpec
from bamboo_cli.providers.base import EndReason
from tests.coordinator.small_world import FakeNode, FakeWorker, World

INDENT = "    "


@dataclass
class Block:
    """A command (or a comment, or an empty line) and the trace recorded for it."""

    line: str
    trace: list[str]

    @property
    def is_command(self) -> bool:
        return bool(self.line.strip()) and not self.line.startswith("#")


def parse(text: str) -> list[Block]:
    blocks: list[Block] = []
    for line in text.splitlines():
        if line.startswith(INDENT):
            blocks[-1].trace.append(line[len(INDENT) :])
        else:
            blocks.append(Block(line, []))
    return blocks


def render(blocks: list[Block]) -> str:
    lines = []
    for block in blocks:
        lines += [block.line, *(INDENT + line for line in block.trace)]
    return "\n".join(lines) + "\n"


def play(text: str, prepare: Callable[[World], None] = lambda world: None) -> tuple[str, World]:
    """The same text with the trace as it is now, and the world at its end."""
    player = Player(prepare)
    blocks = parse(text)
    for block in blocks:
        if block.is_command:
            block.trace = player.perform(block.line)
    assert player.world is not None
    return render(blocks), player.world


class Player:
    def __init__(self, prepare: Callable[[World], None]) -> None:
        self._prepare = prepare
        self.world: World | None = None
        self._request_id = 0
        self._holding = False

    def perform(self, line: str) -> list[str]:
        verb, *words = line.split()
        if verb == "cluster":
            self._cluster(words)
        world = self._world()
        if verb != "cluster":
            start = len(world.trace)
            getattr(self, "_" + verb.replace("-", "_"))(*words)
        else:
            start = 0
        if not self._holding:
            world.pump(training=False)
        return world.trace[start:]

    def _world(self) -> World:
        assert self.world is not None, "a scenario begins with `cluster`"
        return self.world

    def _node(self, name: str) -> FakeNode:
        return self._world().nodes[NodeId(name)]

    def _worker(self, name: str) -> FakeWorker:
        """Of a node with a single one, by the node's name."""
        found = self._world().worker(WorkerId(name))
        if found is None:
            (found,) = self._node(name).workers.values()
        return found

    def _request(self, request: ev.Request) -> None:
        self._request_id += 1
        self._world().handle(ev.RequestMade(request_id=self._request_id, request=request))

    # --- the beginning --------------------------------------------------------------------------------------------

    def _cluster(self, words: list[str]) -> None:
        options = _options(words)
        config = ClusterConfig(
            cluster_id="c",
            num_nodes=int(options.get("nodes", "2")),
            num_accelerators=int(options.get("accelerators", "1")),
            zones=tuple(options.get("zones", "a,b").split(",")),
            replace=options.get("replace", "yes") == "yes",
            lease_s=float(options.get("lease", "10")),
            patience_s=float(options.get("patience", "60")),
        )
        self.world = World(config, int(options.get("layers", "6")))
        self._prepare(self.world)
        self.world.handle(ev.Started())

    def _train(self, *words: str) -> None:
        options = _options(list(words))
        training = TrainingSpec(
            run_id=options.get("run", "r1"),
            recipe="mlp",
            recipe_options={},
            num_steps=int(options.get("steps", "8")),
            num_microbatches=4,
            microbatch_size=2,
            seed=0,
            checkpoint_url="file:///c",
            checkpoint_every=int(options.get("every", "4")),
        )
        drills = tuple(_drill(text) for text in options.get("drill", "").split(",") if text)
        spec = RunSpec(
            training=training,
            num_pipelines=_or_auto(options.get("pipelines", "1"), int),
            num_stages=_or_auto(options.get("stages", "2"), int),
            min_nodes=int(options.get("min_nodes", "1")),
            mode=_or_auto(options.get("mode", "bubble"), Mode),
            level=_or_auto(options.get("level", "1"), int),
            drills=drills,
        )
        self._request(ev.StartRun(spec=spec))

    # --- what goes well -------------------------------------------------------------------------------------------

    def _steps(self, count: str) -> None:
        for _ in range(int(count)):
            assert self._world().step(), "no step can be done now"
            self._world().now += 0.5
            self._world().pump(training=False)

    def _part_step(self, appliers: str) -> None:
        assert self._world().step(appliers=int(appliers)), "no step can be done now"

    def _finish(self) -> None:
        self._world().pump()

    def _wait(self, seconds: str) -> None:
        self._world().pass_time(float(seconds))

    def _hold(self) -> None:
        self._holding = True

    def _go(self) -> None:
        self._holding = False

    def _thaw(self) -> None:
        self._world().thaw()

    def _restart(self) -> None:
        self._world().restart()

    # --- misfortune -----------------------------------------------------------------------------------------------

    def _kill(self, *names: str) -> None:
        for name in names:
            self._world().kill_node(NodeId(name))

    def _preempt(self, name: str) -> None:
        self._world().kill_node(NodeId(name), EndReason.PREEMPTED)

    def _kill_worker(self, name: str) -> None:
        worker = self._worker(name)
        self._world().end_worker(self._node(worker.node_id), worker.worker_id, -9)

    def _freeze(self, name: str) -> None:
        self._node(name).frozen = True

    def _freeze_worker(self, name: str) -> None:
        self._world().freeze_worker(self._worker(name))

    def _hang_worker(self, name: str) -> None:
        self._world().hang_worker(self._worker(name))

    def _cut(self, name: str) -> None:
        self._world().cut_worker(self._worker(name))

    def _drop(self, name: str) -> None:
        self._world().drop_link(self._node(name))

    def _notice(self, name: str, seconds: str) -> None:
        self._world().notice(NodeId(name), float(seconds))

    def _mismatch(self, name: str, layer: str) -> None:
        worker = self._worker(name)
        self._world().report(
            worker, DigestMismatch(generation=worker.generation, step=worker.committed_step, layer=int(layer))
        )

    def _short(self, *zones: str) -> None:
        self._world().short_zones = set(zones)

    def _full_disk(self) -> None:
        self._world().full_disk = True

    def _free_disk(self) -> None:
        self._world().full_disk = False

    def _break_checkpoint(self, step: str) -> None:
        self._world().broken_checkpoints.add(int(step))

    # --- requests and questions ----------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._request(ev.StopRun(run_id="r1"))

    def _drain(self, name: str) -> None:
        self._request(ev.Drain(node_id=NodeId(name)))

    def _close(self) -> None:
        self._request(ev.CloseCluster())

    def _show(self) -> None:
        self._world().trace += standing(self._world())


def standing(world: World) -> list[str]:
    """Where the run and the nodes stand, without anything that depends on how often things were said."""
    board = world.machine.board
    run, progress = board.run, board.progress
    lines = []
    if run is not None and progress is not None:
        lines.append(f"run is {run.state}{f' ({run.reason})' if run.reason else ''}: {run.detail or 'no detail'}")
        lines.append(
            f"step {progress.committed_step}, samples {progress.num_samples}, preemptions {progress.preemptions}, "
            f"failovers {progress.failovers}, reconfigurations {progress.reconfigurations}, "
            f"restores {progress.restores}, steps rerun {progress.steps_rerun}"
        )
    by_state: dict[str, list[str]] = {}
    for node in board.in_order():
        by_state.setdefault(node.state, []).append(node.node_id)
    lines.append("; ".join(f"{state}: {' '.join(names)}" for state, names in sorted(by_state.items())))
    return lines


def _or_auto(text: str, read: Callable[[str], Any]) -> Any:
    return None if text == "auto" else read(text)


def _options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def _drill(text: str) -> Drill:
    """``3:n2`` or ``3:n2!`` (without notice); ``3:1`` names the host of a stage."""
    step, victim = text.rstrip("!").split(":")
    fields: dict[str, Any] = {"node_id": NodeId(victim)} if victim.startswith("n") else {"stage_index": int(victim)}
    return Drill(step=int(step), notice=not text.endswith("!"), **fields)
