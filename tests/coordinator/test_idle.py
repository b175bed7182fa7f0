"""Where nothing runs, all nodes are given back after a while, whoever is restarted meanwhile."""

from dataclasses import replace

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.machine import Machine
from bamboo_cli.coordinator.settings import Budget
from tests.coordinator.test_budget import begun
from tests.coordinator.test_planning import train_on
from tests.coordinator.test_preparation import CONFIG, Scene

IDLE_S = 7200.0
TOLD = "nothing has run for 120 min: all nodes are given back"


def scene(idle_s: float = IDLE_S) -> Scene:
    made = Scene(config=replace(CONFIG, idle_s=idle_s))
    for node_id in ("n1", "n2"):
        made.join(node_id)
    made.handle(ev.Tick())
    return made


def pass_time(scene: Scene, seconds: float) -> None:
    """While the agents are heard."""
    scene.now += seconds
    scene.handle(ev.Tick())


def test_a_cluster_that_never_gets_a_run_is_given_back_and_closed() -> None:
    s = scene()
    pass_time(s, IDLE_S - 1)
    assert (s.given_back, s.machine.board.cluster.closing) == ([], False)

    pass_time(s, 1)
    s.handle(ev.Tick())

    assert sorted(s.given_back) == ["n1", "n2"] and TOLD in s.told
    assert s.machine.board.cluster.closed
    assert set(s.rented) == {"n1", "n2"}, "nobody is rented in their place"


def test_the_time_goes_on_while_no_coordinator_lives() -> None:
    s = scene()
    rows = s.machine.changed_rows()
    pass_time(s, IDLE_S / 2)
    s.machine = Machine(s.config)
    s.machine.load(rows)
    s.handle(ev.Started())
    assert not s.machine.board.cluster.closing

    pass_time(s, IDLE_S / 2)
    assert s.machine.board.cluster.closing


def test_it_is_never_done_where_it_is_not_wanted() -> None:
    s = scene(idle_s=0.0)
    pass_time(s, 1e7)
    assert not s.machine.board.cluster.closing


def test_a_run_is_not_idle_however_long_and_its_end_begins_the_time_anew() -> None:
    world = begun(Budget(max_microusd=1_000_000))
    board = world.machine.board
    board.config = replace(board.config, idle_s=30.0)
    train_on(world, 3)
    world.now += 100.0
    world.handle(ev.Tick())
    assert board.active_run is not None and not board.cluster.closing

    world.handle(ev.SpentSoFar(run_id="r1", microusd=1_000_001))
    world.pump(training=False)
    train_on(world, 2)
    assert board.run is not None and board.run.ended_at is not None and not board.cluster.closing
    ended_at = board.run.ended_at
    world.now = ended_at + 29.0
    world.handle(ev.Tick())
    assert not board.cluster.closing

    world.now = ended_at + 31.0
    world.handle(ev.Tick())
    assert board.cluster.closing
