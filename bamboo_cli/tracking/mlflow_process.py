"""``python -m bamboo_cli.tracking.mlflow_process``: a run's curves in MLflow. See ``serving``."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bamboo_cli.tracking.serving import serve

TAG = "bamboo.curve"
ENDS = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
MOST_METRICS = 1000
MOST_PARAMETERS = 100
PARAMETER_LENGTH = 500
"""Of a request: MLflow's limits."""


class Mlflow:
    def __init__(self, curve: dict[str, Any], options: dict[str, Any]) -> None:
        from mlflow import MlflowClient

        uri = options.get("tracking_uri") or f"sqlite:///{Path(options['folder']) / 'mlflow.db'}"
        self._client = MlflowClient(tracking_uri=uri)
        experiment_id = self._experiment(options["experiment"])
        found = self._client.search_runs([experiment_id], f"tags.`{TAG}` = '{curve['name']}'")
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            run = self._client.create_run(experiment_id, tags={TAG: curve["name"]}, run_name=curve["name"])
            self._id = run.info.run_id
        if curve["is_new"]:
            self._note_job(curve)
        told = [metric.step for metric in self._client.get_metric_history(self._id, "train/loss")]
        self.next_step: int = max(curve["first_step"], *(step + 1 for step in told), 0)

    def tell(self, points: list[dict[str, Any]], notes: list[dict[str, Any]]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, round(1000 * point["at"]), point["step"])
            for point in points
            for name, value in point["values"].items()
        ]
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + MOST_METRICS])
        for note in notes:  # a tag is replaced by the next; all of them are in Bamboo's own story
            self._client.set_tag(self._id, f"bamboo.story.{note['kind']}", f"step {note['step']}: {note['text']}")

    def end(self, state: str | None) -> None:
        if state is not None:
            self._client.set_terminated(self._id, status=ENDS[state])

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:  # another run was faster
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)

    def _note_job(self, curve: dict[str, Any]) -> None:
        """A run that goes on from another one has its job, but for what may change."""
        from mlflow.entities import Param

        known = self._client.get_run(self._id).data.params
        flat = {name: str(value)[:PARAMETER_LENGTH] for name, value in flattened(curve["job"])}
        parameters = [Param(name, value) for name, value in flat.items() if name not in known]
        for first in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(self._id, params=parameters[first : first + MOST_PARAMETERS])
        self._client.set_tag(self._id, "bamboo.run", curve["run_id"])
        self._client.set_tag(self._id, "mlflow.note.content", f"```yaml\n{curve['job_text']}\n```")


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value) if isinstance(value, (list, tuple)) else value


if __name__ == "__main__":
    sys.exit(serve(Mlflow))
