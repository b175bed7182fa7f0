"""From a job, or the record of a cluster, to its provider. Nothing is asked of the cloud yet."""

from pathlib import Path

from bamboo_cli import jobs, paths
from bamboo_cli.config import JobConfig
from bamboo_cli.errors import StateError
from bamboo_cli.providers.aws import AwsProvider
from bamboo_cli.providers.aws_cloud.known import AwsSettings
from bamboo_cli.providers.base import Provider
from bamboo_cli.providers.local import LocalConfig, LocalProvider


def provider_of(job: JobConfig, cluster_dir: Path) -> Provider:
    """``cluster_dir``: where it stores what it needs to find again."""
    if job.cloud == "aws":
        return AwsProvider(cluster_dir, jobs.aws_settings(job))
    return LocalProvider(paths.local_cloud_dir(), jobs.local_config(job))


def provider_of_cloud(
    cloud: str, cluster_dir: Path | None = None, *, regions: tuple[str, ...] = (), profile: str | None = None
) -> Provider:
    """Enough to list and to terminate, not to rent. Raises StateError for a cloud that this Bamboo does not know."""
    if cloud == "aws":
        return AwsProvider(cluster_dir or paths.clusters_dir(), AwsSettings(regions=regions, profile=profile))
    if cloud != "local":
        raise StateError(f"this Bamboo knows no cloud {cloud}", next_step="Upgrade with `pip install -U bamboo-train`.")
    return LocalProvider(paths.local_cloud_dir(), LocalConfig(zones=()))
