"""Commands that share a nursery load no torch of their own, and do without it when it is not there."""

import sys
from pathlib import Path

import psutil
import pytest
from bamboo_trainer import births

from bamboo_cli import check_process
from tests.cluster import Bamboo
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")

BROKEN = "def recipe():\n    raise ValueError('no such data')\n"


def places_of_torch(process: psutil.Process) -> set[str]:
    """Where it is mapped: a forked process has it where the one has it that loaded it."""
    try:
        return {m.addr.partition("-")[0] for m in process.memory_maps(grouped=False) if "libtorch_cpu" in m.path}
    except psutil.Error:  # gone
        return set()


def test_all_workers_of_a_run_have_the_one_load_of_torch(bamboo: Bamboo, nursery: dict[str, str]) -> None:
    (shared,) = (p for p in psutil.process_iter() if nursery[births.SHARED_VARIABLE] in _arguments(p))
    command = bamboo.begin("run", bamboo.paced(stages=2), "--yes", "--json")
    bamboo.until(lambda: bamboo.committed_steps() > 0, "a step")
    found = [places for process in bamboo.processes() if (places := places_of_torch(process))]
    assert len(found) >= 5, "two nodes with nursery and worker, and the nursery of their cloud"
    assert all(places <= places_of_torch(shared) for places in found)
    bamboo.open_gate()
    bamboo.finish(command)


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize("there", [True, False])
def test_a_recipe_is_refused_in_the_same_words(bamboo: Bamboo, there: bool) -> None:
    (bamboo.folder / "broken.py").write_text(BROKEN)
    if not there:
        bamboo.environment[births.SHARED_VARIABLE] = str(bamboo.folder / "nowhere")
    refused = bamboo.call("run", bamboo.job(recipe="broken.py", recipe_options={}), "--yes")
    assert refused.exit_code == 2
    assert "no such data" in refused.stderr and "Nothing was rented." in refused.stderr
    assert ("could not be used" in refused.stderr) == (not there)


def test_a_check_that_is_left_ends(bamboo: Bamboo, nursery: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Given one that waits for its specification."""
    for name, value in {**nursery, "BAMBOO_HOME": str(bamboo.home)}.items():
        monkeypatch.setenv(name, value)
    with check_process.begin():
        wait_until(lambda: [tuple(p.cmdline()[:3]) for p in bamboo.processes()] == [check_process.COMMAND], "it")
    wait_until(lambda: not list(bamboo.processes()), "its end")


def test_a_nursery_of_another_python_is_not_used(nursery: dict[str, str], tmp_path: Path) -> None:
    birth = births.Birth(
        command=("/another/python",), environment={}, folder=str(tmp_path), kind=births.BirthKind.CHECK
    )
    with pytest.raises(births.BirthError, match=f"that of {sys.executable}"):
        births.ask_shared(nursery[births.SHARED_VARIABLE], birth, ())
