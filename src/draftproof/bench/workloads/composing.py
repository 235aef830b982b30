"""Prompts by kind and number: composed, distinct, the same everywhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from draftproof.bench.workloads import material as m
from draftproof.bench.workloads.stdlib_code import Quoted, quoted_functions
from draftproof.errors import ConfigError

__all__ = ["KINDS", "Turns", "Workloads"]

#: Roles and texts of a chat.
Turns = tuple[tuple[str, str], ...]

_WORDS: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight")


@dataclass(slots=True)
class Workloads:
    """Gives prompts.

    A prompt is a pure function of its kind and number, for code-edit also of the
    interpreter's version.
    """

    _code: tuple[Quoted, ...] = field(default=())

    @property
    def num_distinct(self) -> int | None:
        """How many prompts differ from each other: as many as anybody will send."""
        return None

    def prompt(self, kind: str, number: int) -> Turns:
        """Return a prompt.

        Parameters
        ----------
        kind : str
            One of `KINDS`.
        number : int
            From 0.

        Returns
        -------
        tuple of (str, str)
            Roles and texts of a chat that the assistant is to answer.

        Raises
        ------
        ConfigError
            If the kind is unknown.
        """
        rng = random.Random(f"draftproof {kind} {number}")
        if kind == "code-edit":
            if not self._code:
                self._code = quoted_functions()
            return _user(_code_edit(rng, self._code))
        if kind not in _COMPOSERS:
            raise ConfigError(f"workload {kind!r}: expected some of {', '.join(KINDS)}")
        return _COMPOSERS[kind](rng)


def _user(text: str) -> Turns:
    return (("user", text),)


def _facts(rng: random.Random) -> dict[str, str]:
    """Draw who, where and what of a text."""
    name, other = rng.sample(m.NAMES, 2)
    place, where = rng.sample(m.PLACES, 2)
    goods, more = rng.sample(m.GOODS, 2)
    return {
        "name": name,
        "other": other,
        "place": place,
        "where": where,
        "goods": goods,
        "more": more,
        "number": rng.choice(_WORDS[1:]),
        "day": rng.choice(m.WEEKDAYS),
        "hour": rng.choice(_WORDS[4:]),
        "town": rng.choice(m.TOWNS),
        "price": str(rng.randrange(12, 99)),
    }


def _sentences(rng: random.Random, facts: dict[str, str], length: int) -> list[str]:
    return [text.format(**facts) for text in rng.sample(m.SENTENCES, length)]


def _copy_edit(rng: random.Random) -> Turns:
    facts = _facts(rng)
    text = " ".join(_sentences(rng, facts, rng.randrange(4, 11)))
    new_name = rng.choice([name for name in m.NAMES if name not in facts.values()])
    new_goods = rng.choice([goods for goods in m.GOODS if goods not in facts.values()])
    new_place = rng.choice([place for place in m.PLACES if place not in facts.values()])
    edits = [
        f"replace the name {facts['name']} by {new_name}",
        f"replace the name {facts['other']} by {new_name}",
        f"write {new_goods} instead of {facts['goods']}",
        f"write {new_place} instead of {facts['place']}",
    ]
    edit = rng.choice([each for each in edits if _replaced(each, facts) in text])
    return _user(
        f"Copy the following text and {edit} everywhere. Change nothing else, and add "
        f"nothing before or after it.\n\n{text}"
    )


def _replaced(edit: str, facts: dict[str, str]) -> str:
    """Return the words that an edit takes away."""
    return next(
        facts[key] for key in ("name", "other", "goods", "place") if f" {facts[key]}" in edit
    )


def _code_edit(rng: random.Random, code: Sequence[Quoted]) -> str:
    quoted = rng.choice(code)
    parameter = rng.choice(quoted.parameters)
    stem = rng.choice(("given", "current", "chosen", "input", "my", "first", "main", "old"))
    stem += rng.choice(("", "_new", "_raw", "_safe", "_extra")) + rng.choice(("", "2", "3", "_b"))
    logged = rng.choice(m.WEEKDAYS).lower() + str(rng.randrange(10, 99))
    edit = rng.choice(
        (
            f"Rename the parameter {parameter} to {stem}_{parameter} everywhere in it.",
            f"Rename the function to {stem}_{quoted.name}.",
            f'Add the line `print("{logged}")` as the first statement of the function.',
            f"Add the comment `# checked on {logged}` above the last line of the function.",
        )
    )
    return (
        f"{edit} Answer with the whole function and change nothing else.\n\n"
        f"```python\n{quoted.source}\n```"
    )


def _extract(rng: random.Random) -> Turns:
    names = rng.sample(m.NAMES, rng.randrange(3, 8))
    town = rng.choice(m.TOWNS)
    lines = []
    for name in names:
        goods, more = rng.sample(m.GOODS, 2)
        lines.append(
            rng.choice(
                (
                    f"{name} ordered {rng.randrange(2, 40)} boxes of {goods} and paid "
                    f"{rng.randrange(12, 300)} crowns on {rng.choice(m.WEEKDAYS)}.",
                    f"On {rng.choice(m.WEEKDAYS)} {name} from {rng.choice(m.TOWNS)} asked for "
                    f"{rng.randrange(2, 40)} boxes of {goods}; {rng.randrange(12, 300)} crowns.",
                    f"{rng.randrange(2, 40)} boxes of {goods} went to {name}, together with "
                    f"some {more}, for {rng.randrange(12, 300)} crowns.",
                )
            )
        )
    wanted = rng.choice(
        (
            "one line per person: the name, the goods and the price, separated by commas",
            'a JSON array of objects with the keys "name", "goods" and "crowns"',
            "a table in Markdown with the columns Name, Boxes, Goods and Crowns",
        )
    )
    return _user(
        f"Notes of the market in {town}:\n\n{' '.join(lines)}\n\nExtract from these notes "
        f"{wanted}. Answer with nothing else."
    )


def _summarise(rng: random.Random) -> Turns:
    text = []
    for _ in range(rng.randrange(1, 4)):
        facts = _facts(rng)
        text.append(" ".join(_sentences(rng, facts, rng.randrange(5, 9))))
    wanted = rng.choice(
        (
            "Summarise the text in two sentences.",
            "Summarise the text in one sentence of at most thirty words.",
            "Name the three most important facts of the text, one per line.",
            "Write a headline and a summary of two sentences for the text.",
        )
    )
    return _user("\n\n".join([*text, wanted]))


def _chat(rng: random.Random) -> Turns:
    reader = rng.choice(
        (
            "a child of ten",
            "a curious neighbour",
            "somebody without any background",
            "a student",
            "an engineer of another field",
            f"my friend {rng.choice(m.NAMES)}",
        )
    )
    points = rng.choice(
        ("in a few sentences", "step by step", "with one example", "in three points")
    )
    question = rng.choice(
        (
            f"Please explain {rng.choice(m.EXPLAINED)} to {reader}, {points}.",
            f"What should I know about {rng.choice(m.ADVICE)}? I live in {rng.choice(m.TOWNS)}; "
            f"answer {points}, so that {reader} would understand it.",
            f"Compare {' and '.join(rng.sample(m.EXPLAINED, 2))} {points}, for {reader}.",
            f"I have {rng.randrange(2, 12)} days and {rng.randrange(20, 400)} crowns for "
            f"{rng.choice(m.ADVICE)}. Make a plan, {points}.",
        )
    )
    first = rng.choice(m.NAMES)
    if rng.random() < 0.3:
        return _user(f"{question} My name is {first}, by the way.")
    if rng.random() < 0.6:
        return _user(f"{question} I have {rng.randrange(3, 60)} minutes to read it.")
    return (
        ("user", f"Hello, I am {first} from {rng.choice(m.TOWNS)}. May I ask you something?"),
        ("assistant", f"Of course, {first}. What would you like to know?"),
        ("user", question),
    )


def _story(rng: random.Random) -> Turns:
    facts = _facts(rng)
    text = (
        f"Write a {rng.choice(m.MOODS)} short story about {rng.choice(m.JOBS)} named "
        f"{facts['name']} who {rng.choice(m.EVENTS)}. It takes place near {facts['place']} in "
        f"{facts['town']}, during {rng.choice(m.WEATHER)}."
    )
    extras = [
        f"{rng.choice(m.OBJECTS).capitalize()} should play a part in it.",
        f"Let {facts['other']} appear once.",
        f"Begin on a {facts['day']}.",
        f"End with a single sentence about {facts['goods']}.",
    ]
    return _user(" ".join([text, *rng.sample(extras, rng.randrange(1, 4))]))


_COMPOSERS: Final = MappingProxyType[str, Callable[[random.Random], Turns]](
    {
        "copy-edit": _copy_edit,
        "extract": _extract,
        "summarise": _summarise,
        "chat": _chat,
        "story": _story,
    }
)
#: The kinds, from the one that copies most to the one that copies least.
KINDS: Final = ("copy-edit", "code-edit", "extract", "summarise", "chat", "story")
