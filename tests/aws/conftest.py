"""``cloud``: AWS with real machines behind its instances. Needs ``python -m tests.aws.isolated``; see README.md."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.aws import isolated
from tests.aws.double import AwsDouble
from tests.aws.product import AwsBamboo
from tests.aws.vm.virtual import Rack, VirtualMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    aws: AwsDouble
    rack: Rack

    def machine(self, instance_id: str) -> VirtualMachine:
        return next(m for m in self.rack.machines if m.boot.instance_id == instance_id)


@pytest.fixture(scope="session")
def _cloud_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    if not os.environ.get(isolated.MARK):
        (pytest.fail if os.environ.get(isolated.REQUIRED) else pytest.skip)("run it with `make vms`")
    rack = Rack(folder=tmp_path_factory.mktemp("machines"))
    rack.open()
    aws = AwsDouble(machines=rack)
    yield Cloud(aws=aws, rack=rack)
    aws.close()
    rack.dispose()


@pytest.fixture
def cloud(_cloud_server: Cloud) -> Iterator[Cloud]:
    _cloud_server.aws.reset()
    yield _cloud_server
    unsupported = _cloud_server.aws.account.unsupported
    _cloud_server.aws.reset()
    assert not unsupported, "\n".join(unsupported)


@pytest.fixture
def bamboo(cloud: Cloud, tmp_path: Path) -> Iterator[AwsBamboo]:
    """The product on ``cloud``. Whatever it started ends with the test; one that went well must have left nothing."""
    found = AwsBamboo(folder=tmp_path, aws=cloud.aws, environment=cloud.aws.environment)
    try:
        yield found
        left = found.left()
    finally:
        found.end_everything()
    assert not left, f"still running: {left}\n{found.story()}"


@pytest.fixture
def nothing_boots(cloud: Cloud, bamboo: AwsBamboo) -> None:
    """For tests that wait for nothing on machines."""
    cloud.rack.order = ()
    bamboo.hide_torch()
