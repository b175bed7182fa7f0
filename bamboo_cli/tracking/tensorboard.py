"""A run as TensorBoard reads it: a folder of event files, one more for each time that it is taken up again."""

import time
from pathlib import Path
from typing import BinaryIO

from bamboo_cli.tracking import event_file
from bamboo_cli.tracking.points import Curve, Note, Point

FOLDER = "tensorboard"
PREFIX = "events.out.tfevents."


class TensorBoard:
    rewinds = True

    def __init__(self, cluster_dir: Path) -> None:
        self._cluster_dir = cluster_dir
        self._file: BinaryIO | None = None

    def begin(self, curve: Curve) -> int:
        """A new file, in which whatever may have been written behind the curve's first step is taken back first."""
        self.close()
        folder = self._cluster_dir / FOLDER / curve.name
        folder.mkdir(parents=True, exist_ok=True)
        # unbuffered: what an error left in a buffer would come later, behind a record that was cut short
        path = _next_file(folder)
        self._file = path.open("xb", buffering=0)
        now = time.time()
        records = [event_file.header(now), event_file.session_start(now, curve.first_step)]
        if curve.is_new:
            job = "\n".join(f"    {line}" for line in curve.job_text.splitlines())  # four spaces: code, in markdown
            records.append(event_file.text(now, curve.first_step, "job", f"run {curve.run_id}\n\n{job}"))
        try:
            self._write(b"".join(records))
        except OSError:  # it is tried again and again, each time with a file of its own
            path.unlink()
            raise
        return curve.first_step

    def tell(self, points: tuple[Point, ...], notes: tuple[Note, ...], rewind_to: int | None) -> None:
        records = [] if rewind_to is None else [event_file.session_start(time.time(), rewind_to)]
        records += [event_file.text(note.at, note.step, f"story/{note.kind}", note.text) for note in notes]
        records += [event_file.scalars(point.at, point.step, point.values) for point in points]
        self._write(b"".join(records))

    def end(self, state: str) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, data: bytes) -> None:
        """Raises OSError."""
        assert self._file is not None
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]


def _next_file(folder: Path) -> Path:
    """TensorBoard reads them in the order of their names, whatever the clock does."""
    numbers = [int(path.name.removeprefix(PREFIX).split(".")[0]) for path in folder.glob(f"{PREFIX}[0-9]*")]
    return folder / f"{PREFIX}{max([int(time.time()), *(number + 1 for number in numbers)]):010d}.bamboo"
