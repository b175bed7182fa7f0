"""The local cloud for real: its daemon, its instances (real agents), its state file, and what can go wrong."""

import http.client
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from bamboo_agent.messages import Hint, Notice, StartWorker
from bamboo_trainer.control import WorkerReady
from bamboo_trainer.plan import WorkerId

from bamboo_cli.errors import CloudError
from bamboo_cli.providers.base import EndReason, InstanceState, Offer, Provider
from bamboo_cli.providers.local import LocalProvider
from bamboo_cli.providers.local_cloud import store
from bamboo_cli.providers.local_cloud.calls import ADDRESS, API_FILE
from bamboo_cli.providers.local_cloud.model import draw_lifetime_s
from tests.agent.coordinator_double import SECRET, CoordinatorDouble
from tests.providers.conftest import CloudUnderTest, is_gone
from tests.providers.contract import CLUSTER, OTHER_CLUSTER, ProviderContract, found, node_config, wait_for
from tests.waiting import wait_until


def offer_in(provider: LocalProvider, zone: str) -> Offer:
    return next(offer for offer in provider.offers() if offer.zone == zone)


class TestContract(ProviderContract):
    @pytest.fixture
    def provider(self, cloud: CloudUnderTest) -> Provider:
        return cloud.provider()

    @pytest.fixture
    def offer(self, provider: LocalProvider) -> Offer:
        return offer_in(provider, "here")

    @pytest.fixture
    def full_offer(self, provider: LocalProvider) -> Offer:
        return offer_in(provider, "full")


# --- renting -----------------------------------------------------------------------------------------------------


def test_capacity_counts_the_instances_that_live_in_the_zone(cloud: CloudUnderTest) -> None:
    provider = cloud.provider(boot_delay_s=60.0)
    here = offer_in(provider, "here")
    first = provider.create(here, node_config("n1"), "t1")
    provider.create(here, node_config("n2", cluster_id=OTHER_CLUSTER), "t2")
    with pytest.raises(CloudError, match="2 of 2 taken"):
        provider.create(here, node_config("n3"), "t3")
    provider.create(offer_in(provider, "there"), node_config("n3"), "t3")
    provider.terminate((first.instance_id,))
    provider.create(here, node_config("n4"), "t4")


def test_an_instance_is_pending_without_a_process_until_it_has_booted(cloud: CloudUnderTest) -> None:
    provider = cloud.provider(boot_delay_s=1.5)
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    assert created.state is InstanceState.PENDING
    assert cloud.rented(created).pid is None
    wait_for(provider, created, InstanceState.RUNNING)
    agent = psutil.Process(cloud.pid(created))
    assert time.time() >= created.launched_at + 1.5
    assert os.getpgid(agent.pid) == agent.pid == os.getsid(agent.pid)
    assert Path(agent.cwd()) == cloud.home(created)


def test_an_instance_that_is_ended_before_it_boots_never_does(cloud: CloudUnderTest) -> None:
    provider = cloud.provider(boot_delay_s=1.5)
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    provider.preempt(created.instance_id, notice_s=None)
    other = provider.create(offer_in(provider, "here"), node_config("n2"), "t2")
    wait_for(provider, other, InstanceState.RUNNING)
    assert found(provider, created).end_reason is EndReason.PREEMPTED
    assert cloud.rented(created).pid is None


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is there on Linux only")
def test_each_instance_has_its_own_address_and_gives_it_back(cloud: CloudUnderTest) -> None:
    provider = cloud.provider(boot_delay_s=60.0)
    there = offer_in(provider, "there")
    first, second = (provider.create(there, node_config(f"n{n}"), f"t{n}") for n in (1, 2))
    assert (first.address, second.address) == ("127.0.0.2", "127.0.0.3")
    provider.terminate((first.instance_id,))
    assert provider.create(there, node_config("n3"), "t3").address == "127.0.0.2"


def test_a_zone_that_the_job_does_not_have_is_refused_with_those_it_has(cloud: CloudUnderTest) -> None:
    provider = cloud.provider()
    with pytest.raises(CloudError, match="no zone nowhere") as raised:
        provider.create(replace(offer_in(provider, "here"), zone="nowhere"), node_config(), "t1")
    assert "here, full, there" in raised.value.next_step


def test_files_with_secrets_are_for_their_owner_only(cloud: CloudUnderTest) -> None:
    provider = cloud.provider(boot_delay_s=60.0)
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    for path in (cloud.home(created) / "config.json", cloud.folder / "state.json", cloud.folder / API_FILE):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


# --- the node's life -----------------------------------------------------------------------------------------------


def test_a_notice_reaches_the_coordinator_and_the_machine_vanishes_at_its_deadline(cloud: CloudUnderTest) -> None:
    coordinator = CoordinatorDouble()
    try:
        provider = cloud.provider()
        config = replace(node_config(port=coordinator.port), secret=SECRET, beat_s=0.05)
        created = provider.create(offer_in(provider, "here"), config, "t1")
        wait_until(lambda: bool(coordinator.joins), "the agent to join")
        (join,) = coordinator.joins
        assert (join.instance_id, join.zone, join.address) == (created.instance_id, "here", created.address)
        coordinator.tell(StartWorker(worker_id=WorkerId("n1/1")))
        wait_until(lambda: bool(coordinator.said(WorkerReady)), "the worker")
        (worker,) = psutil.Process(join.pid).children()
        asked_at = time.time()
        provider.preempt(created.instance_id, notice_s=3.0)
        wait_until(lambda: bool(coordinator.said(Notice)) and bool(coordinator.said(Hint)), "the notice")
        (notice,), rented = coordinator.said(Notice), cloud.rented(created)
        assert rented.noticed_at is not None and rented.kill_at is not None
        assert asked_at <= rented.noticed_at == pytest.approx(rented.kill_at - 3.0, abs=0.01)
        assert (notice.action, notice.deadline) == ("terminate", int(rented.kill_at))  # told in whole seconds
        wait_until(is_gone(worker.pid), "the worker to vanish")
        assert time.time() >= rented.kill_at
        assert wait_for(provider, created, InstanceState.TERMINATED).end_reason is EndReason.PREEMPTED
        assert provider.left_behind(CLUSTER) == ()
    finally:
        coordinator.close()


def test_a_second_notice_does_not_put_the_end_off(cloud: CloudUnderTest) -> None:
    provider = cloud.provider()
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    wait_for(provider, created, InstanceState.RUNNING)
    provider.preempt(created.instance_id, notice_s=1.5)
    provider.preempt(created.instance_id, notice_s=3600.0)
    wait_for(provider, created, InstanceState.TERMINATED)


def test_an_instance_whose_agent_dies_has_failed_at_that_time_and_takes_its_processes_along(
    cloud: CloudUnderTest,
) -> None:
    provider = cloud.provider()
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    wait_for(provider, created, InstanceState.RUNNING)
    agent = cloud.pid(created)
    stray = start_marked(BAMBOO_INSTANCE=created.instance_id)
    try:
        died_at = time.time()
        os.kill(agent, signal.SIGKILL)
        assert stray.wait(10) == -signal.SIGKILL
        wait_until(lambda: not cloud.rented(created).live, "the cloud to see it")
        seen_at = time.time()
        ended = wait_for(provider, created, InstanceState.TERMINATED)
        assert ended.end_reason is EndReason.FAILED
        assert ended.ended_at is not None and died_at <= ended.ended_at <= seen_at, "not when somebody asked"
    finally:
        stray.kill()
        stray.wait()


def test_a_frozen_instance_can_be_terminated(cloud: CloudUnderTest) -> None:
    provider = cloud.provider()
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    wait_for(provider, created, InstanceState.RUNNING)
    agent = cloud.pid(created)
    os.killpg(agent, signal.SIGSTOP)
    provider.terminate((created.instance_id,))
    assert is_gone(agent)()
    assert found(provider, created).state is InstanceState.TERMINATED


def test_chance_takes_instances_at_the_moments_that_the_seed_gives(cloud: CloudUnderTest) -> None:
    provider = cloud.provider(preemptions_per_hour=3600.0, preemption_seed=5, notice_s=None)
    created = [provider.create(offer_in(provider, "there"), node_config(f"n{n}"), f"t{n}") for n in range(3)]
    for index, instance in enumerate(created):
        ended = wait_for(provider, instance, InstanceState.TERMINATED)
        rented = cloud.rented(instance)
        lifetime = draw_lifetime_s(rented.request, index)
        assert ended.end_reason is EndReason.PREEMPTED
        assert lifetime is not None and rented.preempt_at is not None and ended.ended_at is not None
        assert instance.launched_at + lifetime <= rented.preempt_at <= instance.launched_at + lifetime + 2.0
        assert rented.preempt_at <= ended.ended_at <= rented.preempt_at + 1.0


def test_chance_gives_notice_where_the_cloud_does(cloud: CloudUnderTest) -> None:
    provider = cloud.provider(preemptions_per_hour=1e9, notice_s=3600.0)
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    wait_for(provider, created, InstanceState.ENDING)
    rented = cloud.rented(created)
    assert rented.noticed_at is not None and rented.kill_at == pytest.approx(rented.noticed_at + 3600.0, abs=0.01)


# --- the daemon's life ---------------------------------------------------------------------------------------------


def test_nodes_outlive_a_killed_daemon_and_are_taken_up_again(cloud: CloudUnderTest) -> None:
    provider = cloud.provider()
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    wait_for(provider, created, InstanceState.RUNNING)
    first_daemon, agent, before = cloud.daemon_pid, cloud.pid(created), cloud.rented(created)
    cloud.kill_daemon()
    assert not is_gone(agent)()
    assert found(provider, created).state is InstanceState.RUNNING
    assert cloud.daemon_pid != first_daemon
    assert cloud.rented(created) == before
    config = json.loads((cloud.home(created) / "config.json").read_text())
    assert token_status(config["metadata_endpoint"]) == 200
    os.kill(agent, signal.SIGKILL)
    assert wait_for(provider, created, InstanceState.TERMINATED).end_reason is EndReason.FAILED


def test_a_deadline_holds_across_a_killed_daemon(cloud: CloudUnderTest) -> None:
    provider = cloud.provider()
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    wait_for(provider, created, InstanceState.RUNNING)
    agent = cloud.pid(created)
    provider.preempt(created.instance_id, notice_s=1.0)
    cloud.kill_daemon()
    assert wait_for(provider, created, InstanceState.TERMINATED).end_reason is EndReason.PREEMPTED
    assert is_gone(agent)()


def test_a_create_whose_answer_was_lost_gives_the_same_instance_again(cloud: CloudUnderTest) -> None:
    provider = cloud.provider()
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    cloud.kill_daemon()
    assert provider.create(offer_in(provider, "here"), node_config(), "t1").instance_id == created.instance_id
    assert len(provider.instances(CLUSTER)) == 1


def test_an_agent_that_was_started_but_not_noted_is_found_and_not_started_twice(cloud: CloudUnderTest) -> None:
    provider = cloud.provider()
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    wait_for(provider, created, InstanceState.RUNNING)
    agent = cloud.pid(created)
    cloud.kill_daemon()
    state = store.load(cloud.folder / "state.json")
    (rented,) = state.rented
    unnoted = replace(rented, state=InstanceState.PENDING, pid=None, pid_created_at=None)
    store.save(cloud.folder / "state.json", replace(state, rented=(unnoted,)))
    wait_for(provider, created, InstanceState.RUNNING)
    assert cloud.pid(created) == agent
    (_, process) = provider.left_behind(CLUSTER)
    assert f"process {agent} (" in process


def test_clients_that_start_the_cloud_at_once_share_one(cloud: CloudUnderTest) -> None:
    provider, problems = cloud.provider(boot_delay_s=60.0), []

    def create(number: int) -> None:
        try:
            provider.create(offer_in(provider, "there"), node_config(f"n{number}"), f"t{number}")
        except CloudError as error:
            problems.append(error)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(provider.instances(CLUSTER)) == 3
    assert cloud.daemons() == [cloud.daemon_pid]


def test_the_daemon_ends_on_request_but_not_under_an_instance(cloud: CloudUnderTest) -> None:
    provider = cloud.provider(boot_delay_s=60.0)
    assert provider.retire()
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    daemon = cloud.daemon_pid
    assert not provider.retire()
    provider.terminate((created.instance_id,))
    assert provider.retire()
    assert is_gone(daemon)()
    assert found(provider, created).end_reason is EndReason.USER


def test_the_daemon_ends_by_itself_when_it_has_been_empty_for_a_while(cloud: CloudUnderTest) -> None:
    provider = cloud.provider(idle_s=0.3, boot_delay_s=0.5)
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    daemon = cloud.daemon_pid
    wait_for(provider, created, InstanceState.RUNNING)
    provider.terminate((created.instance_id,))
    wait_until(is_gone(daemon), "the daemon to end")
    assert not (cloud.folder / API_FILE).exists()


def test_the_daemon_and_its_nodes_belong_to_no_other_cluster(
    cloud: CloudUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_CLUSTER", "c-9")
    provider = cloud.provider()
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    wait_for(provider, created, InstanceState.RUNNING)
    assert "BAMBOO_CLUSTER" not in psutil.Process(cloud.daemon_pid).environ()
    assert psutil.Process(cloud.pid(created)).environ()["BAMBOO_CLUSTER"] == CLUSTER


# --- what goes wrong -----------------------------------------------------------------------------------------------


def test_a_leftover_process_is_found_whoever_started_it(cloud: CloudUnderTest) -> None:
    provider = cloud.provider()
    leftover = start_marked(BAMBOO_CLUSTER=CLUSTER)
    try:
        (line,) = provider.left_behind(CLUSTER)
        assert f"process {leftover.pid} (" in line
        assert provider.left_behind(OTHER_CLUSTER) == ()
    finally:
        leftover.kill()
        leftover.wait()
    assert provider.left_behind(CLUSTER) == ()


def test_a_process_that_left_the_group_ends_with_the_instance(cloud: CloudUnderTest) -> None:
    provider = cloud.provider()
    created = provider.create(offer_in(provider, "here"), node_config(), "t1")
    wait_for(provider, created, InstanceState.RUNNING)
    stray = start_marked(BAMBOO_CLUSTER=CLUSTER, BAMBOO_INSTANCE=created.instance_id)
    try:
        provider.terminate((created.instance_id,))
        assert stray.wait(10) == -signal.SIGKILL
        assert provider.left_behind(CLUSTER) == ()
    finally:
        stray.kill()
        stray.wait()


@pytest.mark.parametrize("content", ["not json", '{"version": 99}', '{"rented": [{"instance_id": 3}]}'])
def test_a_foreign_state_file_is_refused_and_kept(cloud: CloudUnderTest, content: str) -> None:
    cloud.folder.mkdir()
    (cloud.folder / "state.json").write_text(content)
    with pytest.raises(CloudError, match=r"could not be started: .*state\.json") as raised:
        cloud.provider().instances(CLUSTER)
    assert raised.value.next_step
    assert (cloud.folder / "state.json").read_text() == content


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_rents_nothing_and_still_lets_go(cloud: CloudUnderTest) -> None:
    provider = cloud.provider()
    created = provider.create(offer_in(provider, "there"), node_config(), "t1")
    wait_for(provider, created, InstanceState.RUNNING)
    agent = cloud.pid(created)
    (cloud.folder / "state.json.new").symlink_to("/dev/full")
    with pytest.raises(CloudError, match="No space left on device"):
        provider.create(offer_in(provider, "there"), node_config("n2"), "t2")
    provider.terminate((created.instance_id,))
    assert is_gone(agent)()
    (cloud.folder / "state.json.new").unlink()
    wait_until(lambda: not cloud.rented(created).live, "the state to be saved after all")
    assert [i.token for i in provider.instances(CLUSTER)] == ["t1"]


def test_a_client_without_the_token_is_refused(cloud: CloudUnderTest) -> None:
    cloud.provider().create(offer_in(cloud.provider(), "here"), node_config(), "t1")
    address = ADDRESS.validate_json((cloud.folder / API_FILE).read_bytes())
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=10)
    connection.request("POST", "/terminate", b'{"instance_ids": []}', {"Authorization": "Bearer guess"})
    assert connection.getresponse().status == 403
    connection.close()


def start_marked(**environment: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-S", "-E", "-c", "import signal; print(flush=True); signal.pause()"]
    process = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, start_new_session=True)
    with process.stdout or open(os.devnull, "rb") as output:
        output.readline()
    return process


def token_status(endpoint: str) -> int:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=10)
    connection.request("PUT", "/latest/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    status = connection.getresponse().status
    connection.close()
    return status
