"""The pages hang together: the site builds, every page is in its place, every link leads somewhere."""

import re
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import PAGES, ROOT, read


def anchors(page: Path) -> set[str]:
    """Of headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^) ]+)\)", re.sub(r"```.*?```", "", read(page), flags=re.S)):
        path, _, anchor = target.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(found), f"{page}: {target}: there is no such heading"


def test_every_page_is_in_the_navigation_and_in_the_index() -> None:
    there = {path.name for path in (ROOT / "docs").glob("*.md")}

    assert set(_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])) == there
    assert set(re.findall(r"\]\(([a-z-]+\.md)\)", read("docs/README.md"))) == there - {"README.md"}


def _pages(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in _pages(part)]  # type: ignore[attr-defined]
