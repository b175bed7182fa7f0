"""Machines that cannot be made nodes: given back, replaced with back-off, and not for ever."""

from dataclasses import dataclass, field, replace

from bamboo_agent.messages import PROTOCOL_VERSION, Hint, Join, Notice
from bamboo_trainer.control import TrainingSpec
from bamboo_trainer.plan import NodeId

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.machine import Machine
from bamboo_cli.coordinator.settings import ClusterConfig, RunSpec
from bamboo_cli.coordinator.states import NodeReason, NodeState, RunReason, RunState
from bamboo_cli.providers.base import EndReason, Instance, InstanceState
from tests.coordinator.invariants import check_invariants

CONFIG = ClusterConfig(cluster_id="c", num_nodes=2, zones=("a", "b"), boot_patience_s=600.0)


@dataclass
class Scene:
    """A coordinator and a cloud that gives a machine at once for every request."""

    config: ClusterConfig = CONFIG
    now: float = 1000.0
    told: list[str] = field(default_factory=list)
    rented: dict[str, Instance] = field(default_factory=dict)
    given_back: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = Machine(self.config)
        self.handle(ev.Started())

    def handle(self, event: ev.Event) -> None:
        instructions = self.machine.handle(event, self.now)
        check_invariants(self.machine)
        for instruction in instructions:
            match instruction:
                case ev.Tell():
                    self.told.append(instruction.text)
                case ev.CreateInstance(node_id=node_id, zone=zone, token=token):
                    self.rented[node_id] = Instance(
                        instance_id=f"i-{node_id}",
                        token=token,
                        node_id=node_id,
                        cluster_id="c",
                        instance_type="t",
                        zone=zone,
                        state=InstanceState.RUNNING,
                        address="10.0.0.1",
                        launched_at=self.now,
                    )
                    self.handle(ev.CreateSucceeded(instance=self.rented[node_id]))
                case ev.TerminateInstance(node_id=node_id):
                    self.given_back.append(node_id)
                    self.handle(ev.InstanceEnded(node_id=node_id, reason=EndReason.USER, at=self.now))

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            self.handle(ev.Tick())

    def begin(self, node_id: str, doing: str) -> None:
        self.handle(ev.StepBegun(node_id=NodeId(node_id), instance_id=f"i-{node_id}", doing=doing))

    def fail(self, node_id: str, step: str = "torch", detail: str = "no such torch") -> None:
        event = ev.PreparationFailed(node_id=NodeId(node_id), instance_id=f"i-{node_id}", step=step, detail=detail)
        self.handle(event)

    def join(self, node_id: str) -> None:
        instance = self.rented[node_id]
        join = Join(
            protocol_version=PROTOCOL_VERSION,
            node_id=NodeId(node_id),
            boot_id="b",
            instance_id=instance.instance_id,
            zone=instance.zone,
            address=instance.address,
            pid=1,
            workers=(),
        )
        self.handle(ev.AgentJoined(join=join))

    def train(self) -> None:
        training = TrainingSpec(
            run_id="r1",
            recipe="mlp",
            recipe_options={},
            num_steps=8,
            num_microbatches=4,
            microbatch_size=2,
            seed=0,
            checkpoint_url="file:///c",
            checkpoint_every=4,
        )
        spec = RunSpec(training=training, num_pipelines=1, num_stages=2)
        self.handle(ev.RequestMade(request_id=1, request=ev.StartRun(spec=spec)))
        self.handle(ev.CompleteCheckpoints(run_id="r1", steps=()))

    def node(self, node_id: str) -> tuple[NodeState, NodeReason, str]:
        node = self.machine.board.nodes[NodeId(node_id)]
        return node.state, node.reason, node.detail


def test_a_machine_that_cannot_be_made_a_node_is_given_back_and_another_is_tried_after_a_while() -> None:
    scene = Scene()
    scene.begin("n1", "installing torch")
    assert scene.node("n1") == (NodeState.BOOTING, NodeReason.NONE, "installing torch")

    scene.fail("n1", detail="installing torch failed (1): no such torch")

    assert scene.given_back == ["n1"]
    detail = "installing torch failed (1): no such torch"
    assert scene.node("n1") == (NodeState.ENDED, NodeReason.NOT_PREPARED, detail)
    assert f"n1 is given back: it could not be made a node: {detail}" in scene.told
    assert set(scene.rented) == {"n1", "n2"}
    scene.wait(11)
    assert set(scene.rented) == {"n1", "n2", "n3"}


def test_a_step_is_told_once_however_often_its_preparation_is_begun_again() -> None:
    scene = Scene()
    for _ in range(3):
        scene.begin("n1", "installing torch")
    assert scene.told.count("n1: installing torch") == 1


def test_a_machine_on_which_something_goes_on_is_waited_for_and_one_that_stands_still_is_not() -> None:
    scene = Scene()
    for doing in ("connecting", "installing torch"):
        scene.wait(500)
        scene.begin("n1", doing)
    scene.wait(500)

    assert scene.node("n1")[0] is NodeState.BOOTING
    assert scene.node("n2")[:2] == (NodeState.ENDED, NodeReason.NEVER_JOINED)
    scene.wait(200)
    assert scene.node("n1")[:2] == (NodeState.ENDED, NodeReason.NEVER_JOINED)


def test_when_all_machines_fail_in_the_same_step_no_further_one_is_rented_until_one_joins() -> None:
    scene = Scene()
    for node_id in ("n1", "n2", "n3"):
        scene.wait(30)
        scene.fail(node_id)
    scene.wait(1000)

    gave_up = "3 machines in a row could not be made nodes, all in the step `torch`: no such torch"
    assert scene.machine.board.cluster.gave_up == gave_up
    assert f"no further node is rented: {gave_up}" in scene.told
    assert scene.given_back == ["n1", "n2", "n3", "n4"], "n4 was rented meanwhile and never joined"
    assert set(scene.rented) == {"n1", "n2", "n3", "n4"}


def test_it_is_remembered_through_a_restart_that_it_was_given_up() -> None:
    scene = Scene()
    for node_id in ("n1", "n2", "n3"):
        scene.wait(30)
        scene.fail(node_id)
    rows = scene.machine.dump()
    scene.machine = Machine(CONFIG)
    scene.machine.load(rows)
    scene.handle(ev.Started())
    rented = set(scene.rented)
    scene.wait(100)

    assert scene.machine.board.cluster.gave_up and set(scene.rented) == rented


def test_a_machine_that_joins_after_all_proves_that_they_can() -> None:
    scene = Scene()
    for node_id in ("n1", "n2", "n3"):
        scene.wait(30)
        scene.fail(node_id)
    scene.join("n4")
    scene.wait(1)

    assert scene.machine.board.cluster.gave_up == ""
    assert "n5" in scene.rented, "the other wanted node is rented again"


def test_failures_in_different_steps_are_no_rule() -> None:
    scene = Scene()
    for node_id, step in (("n1", "torch"), ("n2", "connect"), ("n3", "torch"), ("n4", "boot")):
        scene.wait(60)
        scene.fail(node_id, step)
    assert scene.machine.board.cluster.gave_up == ""


def test_a_run_that_waits_for_nodes_that_cannot_be_made_fails_with_the_step_and_what_it_said() -> None:
    scene = Scene()
    scene.train()
    for node_id in ("n1", "n2", "n3", "n4"):
        scene.wait(60)
        scene.fail(node_id)
    scene.wait(1)

    run = scene.machine.board.run
    assert run is not None and (run.state, run.reason) == (RunState.FAILED, RunReason.NO_NODES)
    assert "all in the step `torch`: no such torch" in run.detail


def test_of_a_node_that_has_joined_it_is_only_told_and_once() -> None:
    scene = Scene()
    scene.join("n1")
    for _ in range(3):
        scene.fail("n1", step="connect", detail="nothing answers")

    assert scene.node("n1")[0] is NodeState.JOINED and scene.given_back == []
    assert scene.told.count("n1 cannot be reached: nothing answers") == 1


def test_a_failure_of_an_earlier_machine_of_the_node_is_nothing() -> None:
    scene = Scene()
    before = scene.machine.dump()
    scene.handle(ev.PreparationFailed(node_id=NodeId("n1"), instance_id="i-old", step="torch", detail="x"))
    scene.handle(ev.StepBegun(node_id=NodeId("n9"), instance_id="i-n9", doing="x"))
    assert scene.machine.dump() == before


def test_many_nodes_that_are_wanted_make_a_rule_only_together() -> None:
    scene = Scene(config=replace(CONFIG, num_nodes=8))
    for number in range(1, 8):
        scene.fail(f"n{number}")
    assert scene.machine.board.cluster.gave_up == ""
    scene.fail("n8")
    assert scene.machine.board.cluster.gave_up
    scene.wait(600)
    assert len(scene.rented) == 8, "none was rented in the meantime"


# --- hints and clocks -------------------------------------------------------------------------------------------


def test_a_zone_that_hinted_is_asked_late_for_a_while_and_nothing_else_follows() -> None:
    scene = Scene()
    scene.join("n1")
    scene.join("n2")
    assert (scene.rented["n1"].zone, scene.rented["n2"].zone) == ("a", "b")
    hint = Hint(detail="rebalance recommendation: soon")
    scene.handle(ev.AgentSaid(node_id=NodeId("n1"), message=hint))
    assert scene.node("n1")[0] is NodeState.JOINED and scene.given_back == []

    scene.handle(ev.InstanceEnded(node_id=NodeId("n2"), reason=EndReason.USER, at=scene.now))
    assert scene.rented["n3"].zone == "b"
    scene.handle(ev.InstanceEnded(node_id=NodeId("n1"), reason=EndReason.USER, at=scene.now))
    assert scene.rented["n4"].zone == "b", "though most of our nodes are there"


def test_the_deadline_of_a_notice_is_understood_whatever_the_agents_clock_says() -> None:
    scene = Scene()
    scene.join("n1")
    ahead_s = 3600.0
    for late_s in (0.1, 7.0, 0.2):  # a beat that was long on its way says nothing about the clock
        sent_at = scene.now + ahead_s - late_s
        scene.handle(ev.AgentBeat(node_id=NodeId("n1"), silence_s={}, sent_at=sent_at))
    notice = Notice(action="terminate", deadline=scene.now + ahead_s + 100.0)
    scene.handle(ev.AgentSaid(node_id=NodeId("n1"), message=notice))

    deadline = scene.machine.board.nodes[NodeId("n1")].deadline
    assert deadline is not None and abs(deadline - scene.now - 100.0) < 0.5
    assert any("n1 is noticed (terminate): 100 s left" in text for text in scene.told)


def test_a_clock_that_is_right_is_not_corrected_by_the_way_of_its_beats() -> None:
    scene = Scene()
    scene.join("n1")
    scene.handle(ev.AgentBeat(node_id=NodeId("n1"), silence_s={}, sent_at=scene.now - 1.5))
    scene.handle(ev.AgentSaid(node_id=NodeId("n1"), message=Notice(action="terminate", deadline=scene.now + 90.0)))
    assert scene.machine.board.nodes[NodeId("n1")].deadline == scene.now + 90.0
