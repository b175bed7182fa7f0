"""A job whose ``auto`` shape and protection are settled, for what needs them beforehand: a rehearsal. Pure."""

from bamboo_trainer.planner import choose

from bamboo_cli.config import JobConfig
from bamboo_cli.estimate import assumed_costs, wanted_of, weather_of
from bamboo_cli.recipe_check import Model


def settled(job: JobConfig, model: Model | None) -> JobConfig:
    """With the shape that the planner would begin with on all nodes, equal pipelines only, and for all stages the
    protection that most of them get. A job without ``auto`` is given back as it is."""
    if not job.is_auto:
        return job
    found = choose(job.num_workers, wanted_of(job, assumed_costs(job, model), weather_of(job))).arrangement
    modes = [mode for row in found.modes for mode in row]
    return job.model_copy(
        update={
            "nodes": job.num_nodes,
            "pipelines": found.num_pipelines,
            "stages": min(found.num_stages),
            "redundancy": max(dict.fromkeys(modes), key=modes.count),
            "redundancy_level": min(found.level, max(1, min(found.num_stages) - 1)),
        }
    )
