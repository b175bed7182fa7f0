"""The pictures of the pages are what the views draw."""

from tests.cli import pictures


def test_the_pictures_say_what_the_views_say() -> None:
    for name, drawn in pictures.draw().items():
        stored = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert pictures.words(stored) == pictures.words(drawn), f"{name}: run `make docs`"
        assert len(stored) < 60_000
        assert "http" not in stored.replace("http://www.w3.org/2000/svg", ""), "it needs nothing from the net"
