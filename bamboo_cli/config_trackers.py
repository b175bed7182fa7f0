"""Sections of the job file about experiment trackers."""

from typing import Annotated, Literal

from pydantic import Field

from bamboo_cli.config_section import Section

Trackers = Annotated[
    tuple[Literal["tensorboard", "wandb", "mlflow"], ...],
    Field(
        description="Where a run's curves and story are shown: TensorBoard's event files, Weights & Biases, MLflow. "
        "`[]`: nowhere but in Bamboo."
    ),
]


class WandbConfig(Section):
    """Weights & Biases. Needs `pip install 'bamboo-train[wandb]'` and, unless `offline`, an API key on this machine:
    see trackers.md.
    """

    project: str | None = Field(None, min_length=1, description="Project; by default the job's name.")
    entity: str | None = Field(None, min_length=1, description="User or team; by default that of the API key.")
    mode: Literal["online", "offline"] = Field(
        "online", description="`offline`: nothing leaves this machine; `wandb sync` carries the files over later."
    )


class MlflowConfig(Section):
    """MLflow. Needs `pip install 'bamboo-train[mlflow]'`: see trackers.md."""

    tracking_uri: str | None = Field(
        None,
        min_length=1,
        description="Server, database or folder of MLflow; by default a database in the cluster's state folder.",
    )
    experiment: str | None = Field(None, min_length=1, description="Experiment; by default the job's name.")
