"""The live view: on any terminal it is one screen, says the most important things, and hangs nothing on colour."""

import io
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bamboo_cli import output, watching
from bamboo_cli.coordinator.looking import Look
from bamboo_cli.health import Health
from bamboo_cli.streams import ASCII
from bamboo_cli.views import grid
from bamboo_cli.views.screen import FALLS_AWAY, Screen, picture, summary_line
from tests.cli import scenes

SIZES = [(20, 3), (30, 8), (44, 16), (80, 24), (100, 40), (200, 60)]
NOTE = "Ctrl-C ends it"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Look:
    return scenes.storm(tmp_path_factory.mktemp("storm"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Look:
    return scenes.storm(tmp_path_factory.mktemp("wide"), wide=True)


def lines(look: Look, width: int, height: int) -> list[str]:
    return [line.plain for line in picture(look, scenes.NOW, width, height)]


def drawn(look: Look, stream: io.StringIO | io.TextIOWrapper, **options: Any) -> None:
    console = Console(file=stream, width=100, height=24, force_terminal=True, highlight=False, **options)
    console.print(Screen(look, scenes.NOW))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("many", [False, True])
def test_it_fits_any_screen_and_always_says_state_and_steps(
    storm: Look, wide: Look, width: int, height: int, many: bool
) -> None:
    shown = lines(wide if many else storm, width, height)

    assert len(shown) <= height
    assert max(map(len, shown)) <= width
    assert any("running" in line for line in shown)
    assert any(re.search(r"\b801\b", line) for line in shown)


def test_on_a_usual_terminal_everything_is_there(storm: Look) -> None:
    text = "\n".join(lines(storm, 100, 24))

    assert "cluster storm" in text and "coordinator is process 4242" in text
    assert "801 of 1200 steps · 67% · 59 min 47 s left" in text
    assert re.search(r"loss   2\.1000 +[▁▂▃▄▅▆▇█]{50,} +first 9\.7000", text)
    assert re.search(r"speed  116\.2 samples/s +[▁▂▃▄▅▆▇█]{50,}", text)
    assert re.search(r"cost   cluster \$5\.\d\d so far · \$2\.72 an hour now · ~\$\d\.\d\d when done · 70% saved", text)
    assert re.search(r"p0 +● n1 +▲ n2 17s +● n3 +\? n4", text)
    assert re.search(r"p1 +◐ n5 +◐ n5 +○ n7 +✕ n8", text)
    assert "standby  n9" in text and "booting  n10  installing torch" in text
    assert "▲ n2 will be taken in 17 s; it runs stage 1 of p0, shadowed by n1" in text
    assert "? n4 has been silent for 7.2 s" in text
    assert len(re.findall(r"^\d\d:\d\d:\d\d  ", text, flags=re.MULTILINE)) == 5


def test_a_run_that_stands_still_says_for_how_long(storm: Look) -> None:
    assert storm.cluster.run is not None

    def shown(silence_s: float, **changes: Any) -> str:
        run = replace(storm.cluster.run, last_commit_at=scenes.NOW - silence_s, **changes)  # type: ignore[type-var]
        return "\n".join(lines(replace(storm, cluster=replace(storm.cluster, run=run)), 100, 30))

    assert "no step" not in shown(26.0), "three of its steps take 27 s"
    assert "no step has been committed for 28 s" in shown(28.0)
    assert "no step has been committed for 3.1 s" in shown(3.1, usual_step_s=0.2)
    assert "no step" not in shown(28.0, state="done", ended_at=scenes.NOW)


def test_a_pause_is_a_dip_of_the_speed(storm: Look) -> None:
    rates = [rate for rate in storm.series.samples_per_s if rate is not None]

    assert min(rates) < 0.9 * sorted(rates)[len(rates) // 2]


def test_two_hundred_nodes_are_all_on_the_screen_by_name_or_by_sign(wide: Look) -> None:
    named, signs = "\n".join(lines(wide, 100, 60)), "\n".join(lines(wide, 80, 24))

    assert all(re.search(rf"\bn{number}\b", named) for number in range(1, 202) if number != 6)
    rows = [line for line in signs.splitlines() if re.match(r"p\d", line)]
    shown = "".join(rows)
    assert sum(shown.count(sign) for sign in grid.SIGNS.values()) == 200
    assert shown.count("▲") == shown.count("?") == shown.count("✕") == 1 and shown.count("◐") == 2
    assert "▲ n2 will be taken in 17 s" in signs, "by name, though the grid has none"


def test_a_notice_moves_no_column_where_there_is_room(storm: Look) -> None:
    calm = replace(
        storm.cluster, nodes=tuple(replace(node, notice_deadline=None, state="active") for node in storm.cluster.nodes)
    )

    def columns(look: Look) -> list[int]:
        (row,) = [line for line in lines(look, 100, 30) if line.startswith("p1")]
        return [match.start() for match in re.finditer(r"n\d", row)]

    assert columns(storm) == columns(replace(storm, cluster=calm))


def test_where_not_even_signs_fit_they_are_counted_the_worst_first(wide: Look) -> None:
    assert any(line.startswith("25 × 8 stages · ✕ 1 lost · ▲ 1 will be taken") for line in lines(wide, 80, 10))


def test_smaller_screens_lose_blocks_in_the_order_of_the_page(storm: Look) -> None:
    """What is on a screen is on every one that is higher, in the same form or a larger one."""
    last_heights = {}
    for height in range(24, 2, -1):
        text = "\n".join(lines(storm, 100, height))
        for what in ("has no shadow   ", "losses ", "stage 0", "first 9.7", "cost ", "n4 has been silent", "p0 "):
            if what in text:
                last_heights[what] = height
    order = sorted(last_heights, key=lambda what: -last_heights[what])

    assert order[0] == "has no shadow   " and order[-1] == "cost "
    assert order.index("losses ") < order.index("stage 0") < order.index("first 9.7") < order.index("p0 ")


def test_every_block_that_may_give_way_can_be_drawn_in_every_form(storm: Look) -> None:
    heights = {len(lines(storm, 100, height)) for height in range(1, 30)}

    assert {2, 3} <= heights, f"of all of {len(FALLS_AWAY)} there is no end"


def test_every_sign_is_one_of_its_own_with_and_without_unicode() -> None:
    signs = [grid.SIGNS[health] for health in Health]

    assert len(set(signs)) == len({sign.translate(ASCII) for sign in signs}) == len(Health)


def test_a_terminal_that_knows_only_ascii_gets_nothing_else(storm: Look) -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii", write_through=True)

    drawn(storm, stream, color_system=None)

    text = written.getvalue().decode("ascii")
    assert re.search(r"p0 +\* n1 +! n2 17s +\* n3 +\? n4", text) and re.search(r"p1 +2 n5 +2 n5 +o n7 +x n8", text)


def test_without_colour_the_words_are_the_same(storm: Look) -> None:
    coloured, plain = io.StringIO(), io.StringIO()

    drawn(storm, coloured, color_system="standard")
    drawn(storm, plain, color_system="standard", no_color=True)

    assert "\x1b[32m" in coloured.getvalue() and not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain.getvalue())
    assert ESCAPE.sub("", coloured.getvalue()) == ESCAPE.sub("", plain.getvalue())


def test_a_picture_is_drawn_over_the_last_one_and_never_wiped(
    storm: Look, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, height=28, force_terminal=True, highlight=False)
    monkeypatch.setattr(output, "console", lambda: console)

    with output.screen((Screen(storm, scenes.NOW, NOTE), Screen(storm, scenes.NOW))) as show:
        begun = len(stream.getvalue())
        show((Screen(storm, scenes.NOW + 1, NOTE), Screen(storm, scenes.NOW + 1)))
        frames = stream.getvalue()[begun:]
        output.note("the coordinator had died")
        assert capsys.readouterr().err == "", "it would be drawn over"

    assert "\x1b[?1049h" in stream.getvalue()[:begun] and "\x1b[?1049l" in stream.getvalue()
    assert frames.startswith("\x1b[H") and not re.search(r"\x1b\[[0-9]*[JK]", frames)
    assert frames.count("\n") == 27, "every line of the screen, and no scrolling"
    assert "16s" in frames and "17s" not in frames
    left = stream.getvalue().rpartition("\x1b[?1049l")[2]
    assert "in 16 s" in left and NOTE in frames and NOTE not in left, "the last picture stays"
    assert capsys.readouterr().err == "the coordinator had died\n"


def test_who_watches_without_a_terminal_gets_events_and_a_line_that_sums_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes.storm(tmp_path)
    path = tmp_path / "clusters" / "storm" / "state.db"

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watching.watch_cluster(path)

    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    *events, summary = shown.splitlines()
    assert len(events) == 5 and "n2 is noticed (terminate): 30 s left" in events[-1]
    assert "run wide-1: running · 801 of 1200 steps · loss 2.1000 · 116.2 samples/s" in summary
    assert "9 nodes, 8 wanted" in summary


def test_the_summary_of_a_cluster_without_a_run_says_so(storm: Look) -> None:
    idle = replace(storm, cluster=replace(storm.cluster, run=None, plan=None))

    assert summary_line(idle).startswith("cluster storm: up · 9 nodes, 8 wanted · cost $5.")
    assert not any(before == after == "" for before, after in pairwise(lines(idle, 80, 24)))
    assert "no run yet" in "\n".join(lines(idle, 80, 24))
