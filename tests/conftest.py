"""For tests of the whole product: whatever they started ends with them; one that went well must have left nothing."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bamboo_trainer import births
from hypothesis import HealthCheck, settings

from tests.cluster import Bamboo
from tests.waiting import wait_until

LOAD_S = 100.0

if TYPE_CHECKING:
    from tests.aws.double import AwsDouble

# How long an example takes says more about the machine than about us; and what is tried changes with the code alone:
# examples that nobody has tried yet are for `make soak`.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("shared")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of the whole product first: they take longest, and would be waited for alone at the end."""
    items.sort(key=lambda item: not {"bamboo", "undisturbed", "finished"} & {*getattr(item, "fixturenames", ())})


def pytest_collection_finish() -> None:
    """What is loaded by now (torch alone has a million objects) is visited by no collection of garbage any more."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What commands find in their environment so that they share one load of torch: docs/nursery.md."""
    if sys.platform != "linux":
        yield {}
        return
    listens = tmp_path_factory.mktemp("nursery") / "socket"
    with subprocess.Popen([*births.COMMAND, str(listens)]) as process:
        wait_until(listens.exists, "the nursery to load", deadline_s=LOAD_S)
        yield {births.SHARED_VARIABLE: str(listens)}
        process.kill()


@pytest.fixture
def bamboo(tmp_path: Path, nursery: dict[str, str]) -> Iterator[Bamboo]:
    yield from _ended_with(Bamboo(folder=tmp_path, environment=dict(nursery)))


def _ended_with(bamboo: Bamboo) -> Iterator[Bamboo]:
    try:
        yield bamboo
        left = bamboo.left()
    finally:
        bamboo.end_everything()
    assert not left, f"still running: {left}\n{bamboo.story()}"


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, nursery: dict[str, str]) -> Callable[..., str]:
    """The weights of a job that nothing happens to. Each job is run once."""
    known: dict[str, str] = {}

    def weights(**changes: Any) -> str:
        key = repr(sorted(changes.items()))
        if key not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            for bamboo in _ended_with(Bamboo(folder=folder, environment=dict(nursery))):
                summary = bamboo.run(**changes)
                assert (summary["failovers"], summary["preemptions"], summary["steps_rerun"]) == (0, 0, 0)
                known[key] = summary["weights_sha256"]
        return known[key]

    return weights


@pytest.fixture(scope="session")
def _aws_server() -> "Iterator[AwsDouble]":
    from tests.aws.double import AwsDouble  # loads moto, which takes seconds

    double = AwsDouble()
    yield double
    double.close()


@pytest.fixture
def aws(_aws_server: "AwsDouble") -> "Iterator[AwsDouble]":
    """AWS, new for each test: instances are entries in a list. With machines: ``cloud`` in tests/aws/conftest.py."""
    _aws_server.reset()
    yield _aws_server
    assert not _aws_server.account.unsupported, "\n".join(_aws_server.account.unsupported)


@pytest.fixture
def aws_here(aws: "AwsDouble", monkeypatch: pytest.MonkeyPatch) -> "AwsDouble":
    """This process meets that AWS and no other, whatever the shell says that the tests were started from."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in aws.environment.items():
        monkeypatch.setenv(name, value)
    return aws
