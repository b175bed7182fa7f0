"""Every message that ends a command has an entry in docs/troubleshooting.md, or says all by itself."""

import re
from functools import cache

import pytest

from tests.docs import messages
from tests.docs.messages import ROOT, VARIES

PAGE = ROOT / "docs" / "troubleshooting.md"
LEAST_LETTERS = 7
"""Of an entry besides what varies: one that fits everything explains nothing."""

SELF_EXPLANATORY = (
    # whole sentences about the options just typed, or what another program said
    "--all and --cluster do not go together.",
    "Only one of --json, --csv and --html is put out at a time.",
    "The period ends before it begins.",
    "--loss goes with neither --follow nor --node",
    "… is no regular expression: …",
    "…: … is no time that Bamboo knows.",
    "where to?",
    "--env …: this is no name of a variable",
    "--env …: this shell has no such variable",
    "… cannot be read: …",  # an entry or env file, and why
    "… does not work: …",  # the program crontab, and why
    "…; …",  # a tracker's own words, and where its log is
    "recipe gpt2: held_out is …; it is a part of the text, such as 0.05",
    "…:…: …",  # YAML's own words about a line of the job file
    "… …",  # a step of the preparation, and the last line of its output
    # told in the story, where the coordinator asks again by itself; nobody is asked to do anything
    "the coordinator does not understand this … request: …",
    "it is not wanted any more",
    "… is gone",
    "… has no request …",
    "this Bamboo knows no cloud …",
    "recipe … cannot be written to …: …",
    # ready recipes: the message lists what there is
    "recipe mlp: depth is …; it needs at least 2 layers",
    "recipe gpt2: no size …; it has: …",
    "recipe gpt2: the text has … bytes; it needs more than the context of …",
    "recipe gpt2: text … must be an absolute path, since nodes work in folders of their own; did you mean …?",
    "recipe gpt2: no file matches text … on this machine",
    "… raised …: …",
    "… gave …; …",
)


def entries() -> list[str]:
    lines = re.findall(r"^(?:### |Also: )((?:.|\n)+?)\n\n", PAGE.read_text(encoding="utf-8"), flags=re.M)
    return [found[1].strip() for line in lines for found in re.findall(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", line)]


def fits(entry: str, message: str) -> bool:
    """Whether the message begins as the entry says."""
    return _pattern(entry).match(message) is not None


@cache
def _pattern(entry: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in entry.removesuffix(VARIES).rstrip().split(VARIES)))


def test_every_message_has_an_entry() -> None:
    found = [(place, text) for place, text in messages.raised() if text != VARIES]
    known = entries()

    missing = [
        f"{place}: {text}"
        for place, text in found
        if text not in SELF_EXPLANATORY and not any(fits(entry, text) for entry in known)
    ]

    assert len(found) > 150
    assert not missing, (
        "write an entry in docs/troubleshooting.md (`### `, or a further spelling after `Also: `, with … for what "
        "varies), or add a message that says all by itself to SELF_EXPLANATORY here:\n" + "\n".join(missing)
    )


@pytest.mark.parametrize("entry", entries())
def test_the_entry_is_a_message_of_today(entry: str) -> None:
    assert len(re.sub(r"\W", "", entry)) >= LEAST_LETTERS, "it fits too much"
    assert any(fits(entry, text) for text in messages.spelt_anywhere()), "no source spells it so any more"


def test_what_is_said_to_need_no_entry_is_still_there() -> None:
    assert set(SELF_EXPLANATORY) <= {text for _, text in messages.raised()}


def test_an_entry_fits_what_begins_like_it() -> None:
    assert fits("there is no cluster … in …", "there is no cluster demo in /home/clusters")
    assert not fits("there is no cluster … in …", "there is no run demo-1 in /home/clusters")
