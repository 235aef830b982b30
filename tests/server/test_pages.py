"""The pages' files: all served, small, self-contained, and free of markup from strings."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files

import pytest

STATIC = files("draftproof.server") / "static"
NAMES = sorted(entry.name for entry in STATIC.iterdir())
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def fetch(kit, paths):
    async def send():
        async with kit.client() as client:
            return [await client.get(path) for path in paths]

    return asyncio.run(send())


def path_of(name):
    return {"index.html": "/", "models.html": "/models"}.get(name, f"/static/{name}")


def test_every_file_is_served_as_what_it_is(kit):
    for name, answer in zip(NAMES, fetch(kit, map(path_of, NAMES)), strict=True):
        assert answer.status_code == 200, name
        assert answer.headers["content-type"].startswith(KINDS[name.partition(".")[2]])
        assert answer.content == (STATIC / name).read_bytes()
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy


def test_pages_need_no_key_and_leave_no_line_in_the_log(kit_type):
    kit = kit_type(api_key="k")
    assert {answer.status_code for answer in fetch(kit, map(path_of, NAMES))} == {200}
    assert [event["event"] for event in kit.events] == ["stopped"]


@pytest.mark.parametrize(
    "path",
    ["/static/", "/static", "/static/nothing.js", "/static/../pages.py", "/static/%2e%2e/app.py"],
)
def test_no_path_names_a_file(kit, path):
    assert fetch(kit, [path])[0].status_code == 404


@pytest.mark.parametrize("name", NAMES)
def test_files_are_short_and_load_nothing_from_elsewhere(name):
    text = (STATIC / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 400
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|//cdn|@import|url\(", text)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_scripts_make_no_markup_from_strings(name):
    text = (STATIC / name).read_text(encoding="utf-8")
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "DOMParser",
    ):
        assert word not in text
    for imported in re.findall(r'from "\./([\w.]+)"', text):
        assert imported in NAMES


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".html")])
def test_markup_has_no_inline_code_and_every_control_has_a_name(name):
    text = (STATIC / name).read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|\sstyle=|javascript:", text)
    for script in re.findall(r"<script[^>]*>", text):
        assert 'type="module" src="/static/' in script
    labelled = set(re.findall(r'for="([\w-]+)"', text))
    for tag in re.findall(r"<(?:input|select|textarea)[^>]*>", text):
        found = re.search(r'id="([\w-]+)"', tag)
        inside = re.search(rf"<label[^>]*>{re.escape(tag)}", text)
        assert inside or (found and found[1] in labelled), tag
