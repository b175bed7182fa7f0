"""What a coordinator's machine knows, in a state file."""

from pathlib import Path

from bamboo_cli.coordinator import journal, store
from tests.coordinator.small_world import World


def stored(world: World, home: Path) -> Path:
    """The state file of its cluster."""
    cluster_dir = home / "clusters" / "tiny"
    store.create_cluster(cluster_dir, name="tiny", cloud="local", job_text="", job={}, wanted_nodes=2)
    path = store.state_path(cluster_dir)
    engine = store.open_for_writing(path)
    with store.writing(engine) as connection:
        rows = world.machine.dump()
        del rows["pulse"]  # signs of life are never stored
        for name, body in rows.items():
            journal.put_row(connection, name, body)
    engine.dispose()
    return path
