"""What is up under a cluster's name, and whose it is."""

from bamboo_cli import clusters, paths
from bamboo_cli.coordinator.lock import is_locked
from bamboo_cli.coordinator.reader import read_active_spec
from bamboo_cli.coordinator.store import state_path
from bamboo_cli.cron.deciding import Seen
from bamboo_cli.errors import StateError


def look(cluster: str) -> Seen:
    """Raises StateError when its state file cannot be read and nothing says that a night made it."""
    cluster_dir = paths.cluster_dir(cluster)
    is_marked = (cluster_dir / clusters.IDENTITY_FILE).exists()
    try:
        if not clusters.is_up(cluster_dir):
            return Seen(is_up=False, made_by=None, is_marked=is_marked, trains=False)
        trains = is_locked(cluster_dir) and read_active_spec(state_path(cluster_dir)) is not None
    except StateError:
        if not is_marked:
            raise
        trains = False  # damaged: it may be up, and `down` sweeps it by its mark
    identity = clusters.read_identity(cluster_dir)
    return Seen(is_up=True, made_by=identity.cron, is_marked=is_marked, trains=trains)
