"""A test here starts up to a dozen workers; on two cores that others use too, this alone may take a minute."""

from pathlib import Path

import pytest

TIMEOUT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
