"""A cluster's folder with a new state file."""

from pathlib import Path

import pytest

from bamboo_cli.coordinator import store


@pytest.fixture
def cluster_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "clusters" / "demo"
    store.create_cluster(
        folder, name="demo", cloud="local", job_text="name: demo\n", job={"name": "demo"}, wanted_nodes=4
    )
    return folder
