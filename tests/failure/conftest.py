"""Whatever a test started ends with it; a test that went well must have left nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.failure.cluster import Bamboo

TIMEOUT_S = 300
"""A test here starts up to a dozen workers; on two cores that others use too, this alone may take a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture
def bamboo(tmp_path: Path) -> Iterator[Bamboo]:
    yield from _ended_with(Bamboo(folder=tmp_path))


def _ended_with(bamboo: Bamboo) -> Iterator[Bamboo]:
    try:
        yield bamboo
        left = bamboo.left()
    finally:
        bamboo.end_everything()
    assert not left, f"still running: {left}\n{bamboo.story()}"


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The weights of a job that nothing happens to. Each job is run once."""
    known: dict[str, str] = {}

    def weights(**changes: Any) -> str:
        key = repr(sorted(changes.items()))
        if key not in known:
            for bamboo in _ended_with(Bamboo(folder=tmp_path_factory.mktemp("undisturbed"))):
                summary = bamboo.run(**changes)
                assert (summary["failovers"], summary["preemptions"], summary["steps_rerun"]) == (0, 0, 0)
                known[key] = summary["weights_sha256"]
        return known[key]

    return weights
