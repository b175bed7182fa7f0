"""What is said besides the result hinders nothing when nobody can read it."""

from pathlib import Path

import pytest

from bamboo_cli import output


def test_a_note_that_cannot_be_written_is_no_reason_to_stop_giving_things_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w", buffering=1, encoding="utf-8") as full:
        monkeypatch.setattr("sys.stderr", full)
        with pytest.raises(OSError, match="No space left"):
            print("directly", file=full, flush=True)

        output.note("the cluster is given back")
        with output.waiting("the nodes to be given back") as saw:
            saw("two left")

        monkeypatch.undo()
        with pytest.raises(OSError, match="No space left"):
            full.close()
