"""What is packed here is what pip installs there."""

import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

from bamboo_cli.remote.wheel import OUR_PACKAGES, our_wheel, pip_wheel


def test_the_same_code_has_the_same_bytes() -> None:
    assert our_wheel().sha256 == our_wheel().sha256


def test_all_packages_and_their_data_are_in_it() -> None:
    names = set(zipfile.ZipFile(BytesIO(our_wheel().data)).namelist())

    assert {name.partition("/")[0] for name in names} == {*OUR_PACKAGES, "bamboo_train-0.1.0.dist-info"}
    assert "bamboo_templates/bamboo-agent.service" in names
    assert not [name for name in names if "__pycache__" in name]


def test_a_wheel_made_of_an_installed_one_is_the_same_again(tmp_path: Path) -> None:
    """Packed from this source tree, installed by the packed pip into an empty environment, and packed there."""
    ours, pip = our_wheel(), pip_wheel()
    assert pip is not None
    for wheel in (ours, pip):
        (tmp_path / wheel.name).write_bytes(wheel.data)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    install = [python, tmp_path / pip.name / "pip", "install", "-q", "--no-index", "--no-deps", tmp_path / ours.name]
    subprocess.run(install, check=True)

    ask = "from bamboo_cli.remote.wheel import our_wheel; print(our_wheel().sha256)"
    again = subprocess.run([python, "-I", "-c", ask], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert again.stdout.strip() == ours.sha256
    assert (tmp_path / "venv" / "bin" / "bamboo").exists()
