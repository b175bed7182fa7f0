"""Debian's cron starts a night. Needs root, cron and faketime, of which ``BAMBOO_REQUIRE_VMS`` makes sure in CI."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.aws.isolated import REQUIRED
from tests.cluster import JOB
from tests.cron.conftest import ODD
from tests.cron.daemon import Cron, cron_of_its_own, missing

pytestmark = pytest.mark.timeout(300)

SPOOL = Path("/var/spool/cron/crontabs")


@pytest.fixture
def cron(tmp_path: Path) -> Iterator[Cron]:
    reason = missing()
    if reason is not None:
        (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)(reason)
    (tmp_path / ODD).mkdir()
    with cron_of_its_own(tmp_path / ODD) as found:
        yield found


def test_cron_starts_a_night_mails_its_summary_and_the_next_one_tells_a_failure(cron: Cron, tmp_path: Path) -> None:
    """Everything is in a folder with spaces, a percent sign and letters beyond ASCII, Python too."""
    before = sorted(SPOOL.iterdir())
    job = tmp_path / ODD / "job.yaml"
    job.write_text(yaml.safe_dump(dict(JOB) | {"steps": 6, "stages": 2}))
    told = tmp_path / "told"

    added = cron.bamboo("cron", "add", "0 2 * * *", job, "--notify", f"cat > '{told}'")
    assert added.exit_code == 0, added
    assert "no cron daemon is seen to run here" in added.stderr
    assert cron.crontab().startswith(f"0 2 * * * /bin/sh '{cron.home}".replace("%", "\\%"))
    with cron.started(at="2026-11-29 01:59:58"):
        mail = cron.mail(0)
    job.unlink()
    with cron.started(at="2026-11-30 01:59:58"):
        failed = cron.mail(1)

    (line,) = mail.get_payload(decode=True).decode().splitlines()  # type: ignore[union-attr]
    assert line.startswith("drilled: done, all 6 steps, loss ")
    assert str(mail["Subject"]).startswith(f"Cron <root@{socket.gethostname()}> /bin/sh ")
    assert failed.get_payload(decode=True).decode().startswith("drilled: FAILED (exit code 2): ")  # type: ignore[union-attr]
    assert told.read_text().startswith("drilled: FAILED (exit code 2): ")
    (shown,) = json.loads(cron.bamboo("cron", "list", "--json").stdout)
    assert (shown["last"]["state"], shown["last"]["exit_code"]) == ("failed", 2)
    assert '"state": "done"' in (cron.home / "cron" / "drilled" / "log.1").read_text()
    assert shown["trouble"] == ["its job file is gone"]
    assert cron.bamboo("cron", "remove", "drilled").exit_code == 0
    assert (cron.crontab(), cron.processes()) == ("", [])
    assert sorted(SPOOL.iterdir()) == before, "this machine's own crontabs were touched"
