"""A certificate as one page that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from draftproof.audit.subjects.report import Fact

__all__ = ["certificate_page"]

#: Outcomes of a prompt that the page lists; all are in the embedded certificate.
_SHOWN_OUTCOMES = 100


def certificate_page(facts: Sequence[Fact], stored: Mapping[str, Any], title: str) -> str:
    """Write the page.

    Parameters
    ----------
    facts : sequence of (str, str)
        What the verdict says.
    stored : mapping of str to object
        The certificate as JSON; embedded whole, so that the page can be checked.
    title : str
        Heading.

    Returns
    -------
    str
        HTML with everything inside; follows the reader's light or dark setting.
    """
    template = (files("draftproof.audit.subjects") / "data" / "certificate.html.jinja").read_text(
        "utf-8"
    )
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template).render(
        title=title,
        verdict=stored["verdict"]["verdict"],
        reason=stored["verdict"]["reason"],
        facts=[fact for fact in facts if fact[0] != "verdict"],
        tables=[_table(prompt) for prompt in stored["evidence"].get("prompts", ())],
        certificate=json.dumps(stored, allow_nan=False).replace("</", "<\\/"),
    )


def _table(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of a prompt, the largest departures first."""
    if "texts" in prompt:
        head = ("text", "on", "off")
        rows = list(zip(map(repr, prompt["texts"]), prompt["on"], prompt["off"], strict=True))
        rows.sort(key=lambda row: -abs(row[1] - row[2]))
    else:
        total = sum(prompt["counts"]) + sum(times for _, times in prompt["impossible"])
        head = ("outcome", "seen", "expected")
        rows = [
            (" ".join(map(str, outcome)), count, round(total * prob, 1))
            for outcome, count, prob in zip(
                prompt["outcomes"], prompt["counts"], prompt["probs"], strict=True
            )
        ]
        rows += [(" ".join(map(str, o)), times, 0.0) for o, times in prompt["impossible"]]
        rows.sort(key=lambda row: -abs(row[1] - row[2]))
    hidden = max(0, len(rows) - _SHOWN_OUTCOMES)
    return {"name": prompt["name"], "head": head, "rows": rows[:_SHOWN_OUTCOMES], "hidden": hidden}
