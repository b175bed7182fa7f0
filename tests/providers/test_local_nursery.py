"""Torch is loaded once for all nodes of the local cloud, and each of them still vanishes as a whole."""

import os
import signal
import sys
from dataclasses import replace

import psutil
import pytest
from bamboo_agent.messages import StartWorker
from bamboo_trainer import births
from bamboo_trainer.control import WorkerReady
from bamboo_trainer.plan import WorkerId

from bamboo_cli.providers.base import EndReason, Instance, InstanceState
from bamboo_cli.providers.local import LocalProvider
from bamboo_cli.providers.local_cloud import processes
from tests.agent.coordinator_double import SECRET, CoordinatorDouble
from tests.providers.conftest import CloudUnderTest, is_gone
from tests.providers.contract import CLUSTER, node_config, wait_for
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


@pytest.fixture
def cloud(cloud: CloudUnderTest, monkeypatch: pytest.MonkeyPatch) -> CloudUnderTest:
    """With the trainer's own workers."""
    monkeypatch.delenv("BAMBOO_WORKER_COMMAND")
    return cloud


def create(cloud: CloudUnderTest, coordinator: CoordinatorDouble, number: int) -> Instance:
    provider = cloud.provider()
    (offer,) = (offer for offer in provider.offers() if offer.zone == "there")
    config = replace(node_config(f"n{number}", port=coordinator.port), secret=SECRET, beat_s=0.05)
    return provider.create(offer, config, f"t{number}")


def boot(cloud: CloudUnderTest, coordinator: CoordinatorDouble, number: int) -> Instance:
    """A node that runs, with a worker that is ready."""
    created, before = create(cloud, coordinator, number), len(coordinator.joins)
    wait_until(lambda: len(coordinator.joins) > before, "the agent to join")
    coordinator.tell(StartWorker(worker_id=WorkerId(f"n{number}/1")))
    wait_until(lambda: len(coordinator.said(WorkerReady)) > before, "the worker")
    return wait_for(cloud.provider(), created, InstanceState.RUNNING)


def nursery_of(cloud: CloudUnderTest) -> psutil.Process:
    def found() -> list[psutil.Process]:
        children = psutil.Process(cloud.daemon_pid).children()
        return [child for child in children if child.cmdline()[1:3] == list(births.COMMAND[1:])]

    wait_until(lambda: len(found()) == 1, "the agents to be agents")  # they are forked by it, then executed
    return found()[0]


def members(instance: Instance) -> list[psutil.Process]:
    """As the cloud finds them."""
    return list(processes.marked(processes.INSTANCE_VARIABLE, instance.instance_id))


def loads_of_torch(cloud: CloudUnderTest, *instances: Instance) -> int:
    """Processes that mapped it for themselves: a forked one has it where its parent has."""
    places = set()
    for process in (nursery_of(cloud), *(p for instance in instances for p in members(instance))):
        torch = [m for m in process.memory_maps(grouped=False) if "libtorch_cpu" in m.path]
        places |= {torch[0].addr} if torch else set()
    return len(places)


def test_nodes_share_one_load_of_torch_and_each_vanishes_as_a_whole(
    cloud: CloudUnderTest, coordinator: CoordinatorDouble
) -> None:
    first, second = boot(cloud, coordinator, 1), boot(cloud, coordinator, 2)
    provider: LocalProvider = cloud.provider()
    assert [len(members(first)), len(members(second))] == [3, 3]  # agent, nursery, worker
    assert loads_of_torch(cloud, first, second) == 1
    agent = cloud.pid(first)
    assert os.getpgid(agent) == agent == os.getsid(agent)
    assert {os.getpgid(process.pid) for process in members(first)} == {agent}

    os.killpg(agent, signal.SIGSTOP)
    vanished = members(first)
    provider.preempt(first.instance_id, notice_s=None)
    wait_until(lambda: all(is_gone(process.pid)() for process in vanished), "all of it to vanish")
    assert wait_for(provider, first, InstanceState.TERMINATED).end_reason is EndReason.PREEMPTED
    assert len(members(second)) == 3

    os.kill(cloud.pid(second), signal.SIGKILL)
    assert wait_for(provider, second, InstanceState.TERMINATED).end_reason is EndReason.FAILED
    assert members(second) == []
    nursery = nursery_of(cloud)
    assert provider.left_behind(CLUSTER) == ()
    assert provider.retire()
    assert is_gone(nursery.pid)()


def test_nodes_outlive_the_daemon_and_its_nursery_which_ends_with_it(
    cloud: CloudUnderTest, coordinator: CoordinatorDouble
) -> None:
    first = boot(cloud, coordinator, 1)
    nursery, before = nursery_of(cloud), [process.pid for process in members(first)]
    cloud.kill_daemon()
    wait_until(is_gone(nursery.pid), "the nursery to end")
    assert [process.pid for process in members(first)] == before
    second = boot(cloud, coordinator, 2)
    assert nursery_of(cloud).pid != nursery.pid
    assert len(members(second)) == 3
    cloud.provider().terminate((first.instance_id, second.instance_id))
    assert members(first) == members(second) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_boots_although_the_nursery_is_lost(
    cloud: CloudUnderTest, coordinator: CoordinatorDouble, number: signal.Signals
) -> None:
    pending = create(cloud, coordinator, 1)
    wait_for(cloud.provider(), pending, InstanceState.RUNNING)
    nursery_of(cloud).send_signal(number)
    created = create(cloud, coordinator, 2)
    wait_for(cloud.provider(), created, InstanceState.RUNNING)
    wait_until(lambda: len(coordinator.joins) == 2, "both agents to join")
    assert {join.instance_id for join in coordinator.joins} == {pending.instance_id, created.instance_id}
