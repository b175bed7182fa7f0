"""What a verification found."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli import output
from bamboo_cli.verification.certificate import Certificate
from bamboo_cli.verification.findings import LayersVerdict, StepVerdict, Verdict

MAX_LINES = 40
"""Problems, and steps, beyond so many are counted; ``--json`` has all."""
STYLE = {Verdict.EQUAL: "green", Verdict.DIFFERS: "bold red", Verdict.UNCHECKED: "yellow"}


def certificate(found: Certificate) -> RenderableType:
    """What was chosen, a verdict per step, problems, and the summary as the last line."""
    parts: list[RenderableType] = [Text(f"computed again: {found.chosen}")]
    if found.steps:
        parts.append(_verdicts(found))
        took = f"in {output.seconds(found.replay_s)}; the run took {output.seconds(found.run_s)} for them"
        parts.append(Text(f"{len(found.steps)} steps {took}"))
    parts += [Text(f"note: {note}") for note in found.notes]
    for problem in found.problems[:MAX_LINES]:
        step = "" if problem.step is None else f" of step {problem.step}"
        parts.append(Text(f"problem: {problem.about}{step}: {problem.text}", style="red"))
    if len(found.problems) > MAX_LINES:
        parts.append(Text(f"… and {len(found.problems) - MAX_LINES} more problems"))
    parts.append(Text(found.summary, style="bold green" if found.ok else "bold red"))
    return Group(*parts)


def _verdicts(found: Certificate) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("step", justify="right")
    table.add_column("pipelines", justify="right")
    table.add_column("verdict")
    table.add_column("where", overflow="fold")
    shown = found.steps
    if len(shown) > MAX_LINES:
        shown = tuple(v for v in found.steps if v.verdict is not Verdict.EQUAL)[:MAX_LINES]
    for step in shown:
        table.add_row(str(step.step), str(step.num_pipelines), _verdict(step), step.detail)
    if len(shown) < len(found.steps):
        table.add_row("…", "", f"{len(found.steps) - len(shown)} more", "--json has all")
    for layers in found.layers:
        table.add_row(str(layers.step), "", _verdict(layers), ": ".join(filter(None, (layers.what, layers.detail))))
    return table


def _verdict(found: StepVerdict | LayersVerdict) -> Text:
    return Text(str(found.verdict), style=STYLE[found.verdict])
