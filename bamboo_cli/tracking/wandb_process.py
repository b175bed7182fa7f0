"""``python -m bamboo_cli.tracking.wandb_process``: a run's curves in Weights & Biases. See ``serving``."""

import sys
from typing import Any

from bamboo_cli.tracking.serving import serve

STORY = "story"


class Wandb:
    def __init__(self, curve: dict[str, Any], options: dict[str, Any]) -> None:
        import wandb

        offline = options["mode"] == "offline"
        self._run = wandb.init(
            project=options["project"],
            entity=options.get("entity"),
            id=curve["name"],
            name=curve["name"],
            config={**curve["job"], "bamboo_run": curve["run_id"]},
            dir=options["folder"],
            mode=options["mode"],
            resume=None if offline else "allow",  # without a server nobody knows of an earlier one
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.next_step: int = max(curve["first_step"], self._run.starting_step)

    def tell(self, points: list[dict[str, Any]], notes: list[dict[str, Any]]) -> None:
        """Steps in order, each once: it has no others. A line of the story goes with the step that it is told at."""
        told: dict[int, dict[str, Any]] = {point["step"]: dict(point["values"]) for point in points}
        for note in notes:
            values = told.setdefault(max(note["step"], self.next_step), {})
            values[STORY] = "\n".join(filter(None, [values.get(STORY), f"{note['kind']}: {note['text']}"]))
        for step, values in sorted(told.items()):
            self._run.log(values, step=step)
            self.next_step = step

    def end(self, state: str | None) -> None:
        self._run.finish(exit_code=1 if state == "failed" else 0)


if __name__ == "__main__":
    sys.exit(serve(Wandb))
