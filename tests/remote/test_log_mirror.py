"""What is kept of a node's logs: each byte once, whatever happens between any two of them."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from bamboo_agent.log_sender import Piece, Place, send_new
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_cli.remote import log_mirror
from bamboo_cli.remote.log_mirror import Mirror, Pieces

LOG = "worker.log"


def kept(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (folder / f"{LOG}.1", folder / LOG) if path.exists())


def sent_to(mirror: Mirror, there: Path, *, cut_after: int | None = None) -> None:
    """One round of a sender that begins where the mirror says, over a connection that breaks after so many bytes."""
    before, sink = Path.cwd(), os.open(there / "sent", os.O_CREAT | os.O_TRUNC | os.O_RDWR)
    try:
        os.chdir(there)
        send_new(mirror.known(), sink)
        sent, pieces = (there / "sent").read_bytes()[:cut_after], Pieces()
        for begin in range(0, len(sent), 7):
            for piece, content in pieces.of(sent[begin : begin + 7]):
                mirror.keep(piece, content)
    finally:
        os.chdir(before)
        os.close(sink)


EVENTS = st.one_of(
    st.tuples(st.just("write"), st.binary(min_size=1, max_size=40)),
    st.tuples(st.just("send"), st.none() | st.integers(0, 120)),
    st.tuples(st.sampled_from(["set aside", "kill", "half an append"]), st.none()),
)


@settings(max_examples=60)
@given(st.lists(EVENTS, max_size=25))
def test_no_byte_is_lost_or_doubled(events: list[tuple[str, object]]) -> None:
    with TemporaryDirectory() as name:
        there, here = Path(name) / "there", Path(name) / "here"
        there.mkdir()
        log, old, mirror, written = there / LOG, there / f"{LOG}.1", Mirror(here), b""
        for what, value in (*events, ("send", None), ("send", None), ("send", None)):
            match what, value:
                case "write", bytes(text):
                    with log.open("ab") as stream:
                        stream.write(text)
                    written += text
                case "send", cut:
                    assert cut is None or isinstance(cut, int)
                    sent_to(mirror, there, cut_after=cut)
                case "set aside", _:
                    at = mirror.known().get(LOG)
                    if log.exists() and (not old.exists() or (at and at.file_id == log.stat().st_ino)):
                        log.replace(old)
                        log.touch()
                case "kill", _:
                    mirror = Mirror(here)
                case "half an append", _:  # killed, or the disk became full
                    at = mirror.known().get(LOG)
                    if at and (log.exists() and at.file_id == log.stat().st_ino):
                        with log.open("rb") as source, (here / LOG).open("ab") as sink:
                            source.seek(at.num_bytes)
                            sink.write(source.read(3))
        assert kept(here) == written


def test_a_long_file_is_set_aside_at_the_end_of_a_line_and_one_old_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_mirror, "LIMIT_BYTES", 30)
    mirror, text = Mirror(tmp_path), b"".join(b"line %d of many\n" % number for number in range(10))

    for begin in range(0, len(text), 11):
        mirror.keep(Piece(LOG, 5, begin, 11), text[begin : begin + 11])
        assert Mirror(tmp_path).known() == {LOG: Place(5, min(begin + 11, len(text)))}
        assert max(path.stat().st_size for path in tmp_path.glob("*.log*")) < 60

    assert (tmp_path / LOG).read_bytes().startswith(b"line ")
    assert text.endswith(kept(tmp_path)) and len(kept(tmp_path)) > 30
    assert {path.name for path in tmp_path.iterdir()} == {LOG, f"{LOG}.1", "positions.json"}


def test_lines_without_an_end_do_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_mirror, "LIMIT_BYTES", 30)
    mirror = Mirror(tmp_path)

    for begin in range(0, 500, 10):
        mirror.keep(Piece(LOG, 5, begin, 10), b"x" * 10)

    assert len(kept(tmp_path)) <= 120
    assert mirror.known() == {LOG: Place(5, 500)}


def test_a_hole_is_told_and_what_follows_is_whole(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    mirror.keep(Piece(LOG, 5, 0, 4), b"one\n")
    mirror.keep(Piece(LOG, 5, 1000, 4), b"two\n")
    Mirror(tmp_path).keep(Piece(LOG, 5, 1004, 6), b"three\n")

    assert kept(tmp_path) == (
        b"one\n\n--- 996 bytes of worker.log were left out here: more than could be copied\ntwo\nthree\n"
    )
    assert mirror.known() == {LOG: Place(5, 1010)}


def test_files_that_somebody_deletes_here_are_no_trouble(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    mirror.keep(Piece(LOG, 5, 0, 4), b"one\n")
    (tmp_path / LOG).unlink()
    mirror.keep(Piece(LOG, 5, 4, 4), b"two\n")

    assert kept(tmp_path).endswith(b"two\n")
    assert mirror.known() == {LOG: Place(5, 8)}


@pytest.mark.parametrize(
    "data",
    [
        b"Welcome to this machine\n",
        b'["../../agent.log", 1, 0, 3]\nabc',
        b'["config.json", 1, 0, 3]\nabc',
        b'["agent.log", 1, -1, 3]\nabc',
        b'["agent.log", 1, 0, 99999999]\nabc',
        b'{"agent.log": 1}\n',
        b"\xff\xfe\n",
        b"x" * 1000,
    ],
)
def test_what_no_sender_of_ours_would_say_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"no piece|Expecting|decode"):
        list(Pieces().of(data))
