"""A run as a coordinator leaves it in the state file, written step by step."""

from dataclasses import replace
from pathlib import Path

from bamboo_trainer.control import TrainingSpec
from bamboo_trainer.plan import Mode
from sqlalchemy import insert

from bamboo_cli.coordinator import journal, schema, store
from bamboo_cli.coordinator.events import RecordStep, StoryKind, Tell, Tick
from bamboo_cli.coordinator.rows import encode_row
from bamboo_cli.coordinator.run_entities import Checkpoints, Progress, Run
from bamboo_cli.coordinator.settings import Resumes, RunSpec, TrackerWish
from bamboo_cli.coordinator.states import RunState
from bamboo_cli.costs.ledger import microusd
from bamboo_cli.tracking.following import Follower
from tests.trainer.world import grid_plan

BEGAN_AT = 1_700_000_000.0
STEP_S = 10.0
USD_PER_HOUR = 0.36
NOWHERE = "memory://nowhere"
TENSORBOARD = TrackerWish(kind="tensorboard")


class Recorded:
    """Two nodes, one pipeline of two stages; a step takes ten seconds, and its loss is 1 / (step + 1)."""

    def __init__(self, home: Path, run_id: str = "demo-1", resumes: Resumes | None = None, url: str = NOWHERE) -> None:
        self.cluster_dir = home / "clusters" / "demo"
        self.run_id = run_id
        spec = TrainingSpec(
            run_id=run_id,
            recipe="mlp",
            recipe_options={},
            num_steps=100,
            num_microbatches=4,
            microbatch_size=2,
            seed=0,
            checkpoint_url=url,
            checkpoint_every=5,
        )
        self.run = Run(
            spec=RunSpec(training=spec, num_pipelines=1, num_stages=2, resumes=resumes),
            since=BEGAN_AT,
            started_at=BEGAN_AT,
            plan=replace(grid_plan(1, 2, 4, 1, Mode.BUBBLE), generation=1),
        )
        self.progress = Progress(run_id=run_id, committed_step=self.run.spec.begins_at_step - 1)
        self.saved = Checkpoints(run_id=run_id)
        self.now = BEGAN_AT
        if not store.state_path(self.cluster_dir).exists():
            store.create_cluster(
                self.cluster_dir,
                name="demo",
                cloud="local",
                job_text="name: demo\nseed: 7\n",
                job={"name": "demo", "seed": 7, "checkpoint": {"keep": 3}},
                wanted_nodes=2,
            )
            self._rent()
        self._write()

    def steps(self, first: int, end: int, *, generation: int = 1, scale: float = 1.0) -> None:
        """Committed, and told of. ``scale``: of the loss."""
        for step in range(first, end):
            self.now += STEP_S
            told = RecordStep(
                run_id=self.run_id,
                step=step,
                generation=generation,
                loss=scale / (step + 1),
                gradient_norm=0.5,
                learning_rate=1e-3,
                step_s=2.0,
                num_samples=8,
                num_tokens=0,
                first_sample=0,
                losses=(1.0,),
                square_norms=(1.0,),
            )
            self.progress = replace(self.progress, committed_step=max(step, self.progress.committed_step))
            self._write(told)

    def untold(self, *spans: tuple[int, int]) -> None:
        self.progress = replace(self.progress, untold=spans)
        self._write()

    def tell(self, kind: StoryKind, text: str, *, node_id: str | None = None, **numbers: float) -> None:
        named = {"run_id": self.run_id, "numbers": tuple(numbers.items())}
        self._write(Tell(kind=kind, text=text, node_id=node_id, **named))  # type: ignore[arg-type]

    def restore(self, first_step: int) -> None:
        self.progress = replace(self.progress, committed_step=first_step - 1)
        self.tell(StoryKind.RESTORE, "restored", step=first_step)

    def checkpoints(self, *steps: int) -> None:
        self.saved = Checkpoints(run_id=self.run_id, complete=steps)
        self._write()

    def end(self, state: RunState = RunState.DONE) -> None:
        self.run = replace(self.run, state=state, ended_at=self.now)
        self._write()

    def _rent(self) -> None:
        engine = store.open_for_writing(store.state_path(self.cluster_dir))
        with store.writing(engine) as connection:
            for node_id in ("n1", "n2"):
                connection.execute(
                    insert(schema.instances).values(
                        token=node_id,
                        node_id=node_id,
                        instance_type="small",
                        zone="a",
                        intended_at=BEGAN_AT,
                        instance_id=node_id,
                        launched_at=BEGAN_AT,
                        end_reason="",
                        is_spot=True,
                    )
                )
            price = microusd(USD_PER_HOUR)
            connection.execute(
                insert(schema.prices).values(
                    zone="a",
                    instance_type="small",
                    from_at=BEGAN_AT,
                    spot_microusd_per_hour=price,
                    on_demand_microusd_per_hour=price,
                    price_source="test",
                )
            )
        engine.dispose()

    def _write(self, *instructions: RecordStep | Tell) -> None:
        rows = {
            f"run/{self.run_id}": encode_row("run", self.run),
            f"progress/{self.run_id}": encode_row("progress", self.progress),
            f"checkpoints/{self.run_id}": encode_row("checkpoints", self.saved),
        }
        engine = store.open_for_writing(store.state_path(self.cluster_dir))
        with store.writing(engine) as connection:
            journal.record(connection, Tick(), rows, instructions, self.now)
        engine.dispose()

    # --- a tracker that is told ---

    def follower(self, wish: TrackerWish = TENSORBOARD) -> Follower:
        self.warnings: list[str] = []
        return Follower(self.cluster_dir, self.run_id, wish, lambda run_id, text: self.warnings.append(text))

    @property
    def folder(self) -> Path:
        return self.cluster_dir / "tensorboard" / self.run_id
