"""Where the next node is asked for: zones that were short, quotas, regions, on demand."""

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.settings import ClusterConfig
from bamboo_cli.coordinator.zones import QUOTA_MEMORY_S, region_of
from tests.coordinator.small_world import World

EAST = ("us-east-1a", "us-east-1b")
WEST = ("us-west-2a",)


def world(num_nodes: int = 1, zones: tuple[str, ...] = EAST + WEST, *, on_demand: bool = False) -> World:
    made = World(ClusterConfig(cluster_id="c", num_nodes=num_nodes, zones=zones, on_demand_fallback=on_demand))
    made.handle(ev.Started())
    return made


def asked(world: World) -> list[ev.CreateInstance]:
    """Taken off the list of what the cloud has been asked for."""
    found = [one for one in world.asked if isinstance(one, ev.CreateInstance)]
    world.asked.clear()
    return found


def refuse(world: World, create: ev.CreateInstance, fault: ev.CreateFault) -> None:
    world.handle(ev.CreateFailed(node_id=create.node_id, token=create.token, fault=fault, detail="no"))


def give(world: World, create: ev.CreateInstance) -> None:
    world.asked.append(create)
    world.answer_one()
    world.hear_cloud()


def test_regions_are_read_off_zones() -> None:
    assert [region_of(zone) for zone in ("us-east-1a", "ap-southeast-2c", "local-a", "a")] == [
        "us-east-1",
        "ap-southeast-2",
        "",
        "",
    ]


def test_after_a_shortage_the_next_zone_of_the_region_is_asked_at_once() -> None:
    cluster = world()
    (first,) = asked(cluster)
    refuse(cluster, first, ev.CreateFault.CAPACITY)

    (second,) = asked(cluster)

    assert (first.zone, second.zone) == EAST
    assert second.token != first.token


def test_when_the_whole_region_is_short_the_next_region_is_asked() -> None:
    cluster = world()
    for zone in EAST:
        (create,) = asked(cluster)
        assert create.zone == zone
        refuse(cluster, create, ev.CreateFault.CAPACITY)
    cluster.pass_time(1.0)

    (create,) = asked(cluster)

    assert create.zone == WEST[0]


def test_a_quota_stops_the_region_at_once_and_not_for_ever() -> None:
    cluster = world()
    (first,) = asked(cluster)
    refuse(cluster, first, ev.CreateFault.QUOTA)
    cluster.pass_time(1.0)
    (second,) = asked(cluster)
    assert (first.zone, second.zone) == (EAST[0], WEST[0])
    refuse(cluster, second, ev.CreateFault.QUOTA)
    assert asked(cluster) == []

    cluster.pass_time(QUOTA_MEMORY_S)

    (third,) = asked(cluster)
    assert third.zone in EAST


def test_a_cluster_stays_in_the_region_in_which_it_lives() -> None:
    """Its workers talk over private addresses, which end at the region's border."""
    cluster = world(num_nodes=2)
    first, second = asked(cluster)
    give(cluster, first)
    refuse(cluster, second, ev.CreateFault.CAPACITY)

    zones = set()
    for _ in range(4):
        cluster.pass_time(60.0)
        for create in asked(cluster):
            zones.add(create.zone)
            refuse(cluster, create, ev.CreateFault.CAPACITY)

    assert zones == set(EAST)


def test_nodes_that_are_refused_one_after_the_other_meet_again_in_the_next_region() -> None:
    cluster = world(num_nodes=3)
    creates = asked(cluster)
    for create in creates:
        refuse(cluster, create, ev.CreateFault.QUOTA)
    cluster.pass_time(2.0)

    assert [create.zone for create in asked(cluster)] == [WEST[0]] * 3


def test_what_may_yet_exist_in_a_region_keeps_the_cluster_there() -> None:
    cluster = world(num_nodes=2)
    unsure, other = asked(cluster)
    refuse(cluster, unsure, ev.CreateFault.CLOUD)
    refuse(cluster, other, ev.CreateFault.QUOTA)
    cluster.pass_time(2.0)

    for create in asked(cluster):
        assert create.zone in EAST
        if create.node_id == unsure.node_id:
            assert create.token == unsure.token


def test_on_demand_is_the_last_resort_and_only_if_the_job_allows() -> None:
    cluster = world(zones=EAST, on_demand=True)
    for _ in EAST:
        (create,) = asked(cluster)
        assert not create.on_demand
        refuse(cluster, create, ev.CreateFault.CAPACITY)

    (create,) = asked(cluster)
    assert create.on_demand
    give(cluster, create)
    assert not asked(cluster)

    without = world(zones=EAST)
    for _ in EAST:
        (create,) = asked(without)
        refuse(without, create, ev.CreateFault.CAPACITY)
    assert not asked(without)
    without.pass_time(60.0)
    assert not any(create.on_demand for create in asked(without))


def test_a_refused_request_is_asked_again_in_a_minute_with_another_token() -> None:
    cluster = world()
    (first,) = asked(cluster)
    refuse(cluster, first, ev.CreateFault.REFUSED)
    cluster.pass_time(50.0)
    assert asked(cluster) == []

    cluster.pass_time(20.0)

    (second,) = asked(cluster)
    assert second.token != first.token


def test_a_restarted_coordinator_asks_again_as_before() -> None:
    cluster = world(zones=EAST, on_demand=True)
    for _ in EAST:
        (create,) = asked(cluster)
        refuse(cluster, create, ev.CreateFault.CAPACITY)
    (create,) = asked(cluster)

    cluster.restart()

    assert asked(cluster) == [create] and create.on_demand
