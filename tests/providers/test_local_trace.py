"""Recorded traces: what is read, how it is scaled, and that the local cloud follows one."""

from pathlib import Path

import pytest

from bamboo_cli.errors import CapacityError, CloudError
from bamboo_cli.providers.base import EndReason, Instance, InstanceState
from bamboo_cli.providers.local import LocalProvider, LocalTrace, LocalZone
from bamboo_cli.providers.local_cloud.trace import Change, Moment, Replay, TraceError, read_trace, scale
from tests.providers.conftest import CloudUnderTest
from tests.providers.contract import CLUSTER, OTHER_CLUSTER, node_config, wait_for
from tests.waiting import wait_until

TEXT = """0,add,a
0,add,b
60000,add,c
60000,add,d

120000,remove,a
180000,remove,b
180000,remove,c
240000,add,e
"""


def trace_with(counts: list[int]) -> tuple[Moment, ...]:
    """That many instances at 0 s, 10 s, 20 s, …"""
    steps = [now - before for before, now in zip([0, *counts], counts, strict=False)]
    return tuple(
        Moment(at_s=10.0 * i, num_added=max(0, step), num_removed=max(0, -step)) for i, step in enumerate(steps)
    )


def test_what_came_and_went_at_one_time_is_one_moment() -> None:
    assert read_trace(TEXT) == (
        Moment(at_s=0.0, num_added=2, num_removed=0),
        Moment(at_s=60.0, num_added=2, num_removed=0),
        Moment(at_s=120.0, num_added=0, num_removed=1),
        Moment(at_s=180.0, num_added=0, num_removed=2),
        Moment(at_s=240.0, num_added=1, num_removed=0),
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no line"),
        ("0,add,a\n1000,add\n", "line 2 is '1000,add'"),
        ("soon,add,a\n", "line 1: 'soon' is not a whole number"),
        ("-5,add,a\n", "line 1: '-5' is not a whole number"),
        ("0,lose,a\n", "line 1: 'lose' is neither"),
        ("0,add,a\n5000,add,b\n4000,remove,a\n", "line 3 goes back in time, from 5000 to 4000 ms"),
        ("0,add,a\n0,add,a\n", "line 2: 'a' is there already"),
        ("0,remove,a\n", "line 1: 'a' is not there"),
    ],
)
def test_a_bad_line_is_told_with_its_number(text: str, told: str) -> None:
    with pytest.raises(TraceError, match=told):
        read_trace(text)


def test_capacity_follows_the_trace_in_proportion_to_its_peak() -> None:
    changes = scale(trace_with([16, 32, 24, 32]), num_nodes=8)
    assert [(c.at_s, c.capacity) for c in changes[1:]] == [(10.0, 8), (20.0, 6), (30.0, 8)]
    assert changes[0] == Change(at_s=0.0, num_taken=0, capacity=4)


def test_a_loss_takes_as_many_as_the_capacity_falls_by_and_at_least_one() -> None:
    changes = scale(trace_with([32, 26, 25, 24, 25, 24, 32]), num_nodes=8)
    assert [(c.num_taken, c.capacity) for c in changes] == [(0, 8), (1, 7), (1, 6), (1, 6), (0, 6), (1, 6), (0, 8)]


def test_a_faster_replay_from_within_the_trace() -> None:
    changes = scale(trace_with([8, 4, 8, 2]), num_nodes=8, speed=5.0, start_s=10.0)
    assert changes == (
        Change(at_s=0.0, num_taken=0, capacity=4),
        Change(at_s=2.0, num_taken=0, capacity=8),
        Change(at_s=4.0, num_taken=6, capacity=2),
    )


def test_those_who_are_taken_together_share_a_zone_while_it_has_enough() -> None:
    zones = {"i-1": "a", "i-2": "b", "i-3": "a", "i-4": "b", "i-5": "b"}
    for seed in range(50):
        replay = Replay(changes=(), seed=seed, started_at=0.0)
        assert len({zones[i] for i in replay.victims(zones, 2)}) == 1
        assert len(set(replay.victims(zones, 4))) == 4
        assert replay.victims(zones, 2) == replay.victims(zones, 4)[:2]
    firsts = {Replay(changes=(), seed=seed, started_at=0.0).victims(zones, 1) for seed in range(50)}
    assert len(firsts) == len(zones)
    assert replay.victims({}, 1) == ()


# --- for real ----------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


def following(cloud: CloudUnderTest, path: Path, speed: float = 1.0, start_s: float = 0.0) -> LocalProvider:
    zones = tuple(LocalZone(name=name, spot_usd_per_hour=0.3, on_demand_usd_per_hour=1.0) for name in ("a", "b"))
    trace = LocalTrace(path=str(path), num_nodes=4, speed=speed, start_s=start_s)
    return cloud.provider(zones=zones, trace=trace, notice_s=None, boot_delay_s=60.0)


def rent(provider: LocalProvider, name: str, zone: int = 0) -> Instance:
    return provider.create(provider.offers()[zone], node_config(name), f"token-{name}")


def can_rent(provider: LocalProvider, name: str) -> bool:
    try:
        rent(provider, name)
    except CapacityError:
        return False
    return True


def test_there_is_room_for_as_many_as_the_trace_has_in_all_zones_together(cloud: CloudUnderTest, path: Path) -> None:
    path.write_text(TEXT)
    provider = following(cloud, path)
    rent(provider, "n1", zone=0)
    rent(provider, "n2", zone=1)
    with pytest.raises(CapacityError, match="room for 2"):
        rent(provider, "n3")
    assert rent(provider, "n1").node_id == "n1"


def test_nodes_are_taken_and_given_as_the_trace_says(cloud: CloudUnderTest, path: Path) -> None:
    path.write_text("0,add,a\n0,add,b\n0,add,c\n0,add,d\n4000,remove,a\n6000,add,e\n")
    provider = following(cloud, path, speed=2.0)
    instances = [rent(provider, f"n{n}", zone=n % 2) for n in range(4)]
    wait_until(lambda: sum(i.state is InstanceState.TERMINATED for i in provider.instances(CLUSTER)) == 1, "a loss")
    (taken,) = [i for i in provider.instances(CLUSTER) if i.state is InstanceState.TERMINATED]
    assert taken.end_reason is EndReason.PREEMPTED
    assert taken.ended_at is not None and taken.ended_at >= instances[0].launched_at + 2.0 - 0.2
    assert not can_rent(provider, "n5")
    wait_until(lambda: can_rent(provider, "n6"), "the trace to give one again")
    assert not can_rent(provider, "n7")


def test_a_daemon_that_is_killed_follows_on_and_takes_nobody_twice(cloud: CloudUnderTest, path: Path) -> None:
    path.write_text("0,add,a\n0,add,b\n0,add,c\n0,add,d\n500,remove,a\n3600000,remove,b\n")
    provider = following(cloud, path)
    first = [rent(provider, f"n{n}") for n in range(4)]
    wait_until(lambda: sum(i.state is InstanceState.TERMINATED for i in provider.instances(CLUSTER)) == 1, "a loss")
    cloud.kill_daemon()
    again = following(cloud, path)
    assert not can_rent(again, "n5")
    live = [i for i in again.instances(CLUSTER) if i.state is not InstanceState.TERMINATED]
    assert len(live) == len(first) - 1


def test_the_trace_of_one_cluster_is_no_matter_to_another(cloud: CloudUnderTest, path: Path) -> None:
    path.write_text("0,add,a\n500,remove,a\n")
    rent(following(cloud, path), "n1")
    other = cloud.provider()
    mine = other.create(other.offers()[2], node_config("n1", cluster_id=OTHER_CLUSTER), "token-x")
    theirs = following(cloud, path)
    wait_until(lambda: all(i.state is InstanceState.TERMINATED for i in theirs.instances(CLUSTER)), "the loss")
    wait_for(other, mine, InstanceState.RUNNING)


def test_a_trace_that_cannot_be_used_rents_nothing(cloud: CloudUnderTest, path: Path) -> None:
    with pytest.raises(CloudError, match=r"trace\.csv cannot be read"):
        rent(following(cloud, path), "n1")
    path.write_text("0,add\n")
    with pytest.raises(CloudError, match=r"trace\.csv: line 1 is"):
        rent(following(cloud, path), "n1")
    assert following(cloud, path).instances(CLUSTER) == ()
