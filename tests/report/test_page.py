"""The page, the pictures and the files, and the verb that writes them."""

from __future__ import annotations

import csv
import re
from html.parser import HTMLParser

import pytest
from report_kit import simulated
from typer.testing import CliRunner

from draftproof.cli import app
from draftproof.report import report_page, trace_report, write_csv, write_png
from draftproof.report.content import Column, Figure, Report, Section, Series, Table, shown

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


class Checker(HTMLParser):
    """Notes ids, addresses and tags that stay open."""

    def __init__(self):
        super().__init__()
        self.ids, self.addresses, self.open, self.scripts = [], [], [], 0

    def handle_starttag(self, tag, attrs):
        held = dict(attrs)
        if "id" in held:
            self.ids.append(held["id"])
        self.addresses += [held[name] for name in ("src", "href", "xlink:href") if name in held]
        self.scripts += tag == "script"
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "link", "br"):
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def report():
    return trace_report(simulated([0.7] * 3), title="Trace of <b>a model</b> & co")


@pytest.fixture(scope="module")
def page(report):
    return report_page(report)


def test_the_page_is_whole_and_needs_no_network(page, report):
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.scripts == 0
    assert all(address.startswith("#") for address in checker.addresses)
    assert len(set(checker.ids)) == len(checker.ids)
    for used in re.findall(r'(?:url\(|xlink:href=")#([\w-]+)', page):
        assert used in checker.ids
    assert page.count("<svg") == len(report.figures)
    assert len(page) < 400_000


def test_texts_are_escaped(page):
    assert "Trace of &lt;b&gt;a model&lt;/b&gt; &amp; co" in page
    assert "<b>" not in page


def test_pictures_take_their_colours_from_the_page(page):
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    for drawing in drawings:
        assert "var(--ink)" in drawing
        assert "var(--c0)" in drawing
        assert not re.search(
            r"#(?!010203|040506)[0-9a-f]{6}\b(?!-)", re.sub(r'"#[^"]*"|url\([^)]*\)', "", drawing)
        )
        assert 'role="img" aria-label="' in drawing
    assert "prefers-color-scheme: dark" in page


def test_the_same_report_is_the_same_page(page, report):
    assert report_page(report) == page


def test_long_tables_are_cut_on_the_page_only(tmp_path):
    rows = tuple((place, place / 7, None, place * 0.5) for place in range(200))
    columns = (Column("n", "int"), Column("share"), Column("none"), Column("time, ms", "ms"))
    table = Table("long", "Long", columns, rows)
    made = Report("Long", ("Yes.",), True, ("one",), (Section("Part", tables=(table,)),))
    page = report_page(made)
    assert "The first 60 of 200 rows" in page
    (path,) = write_csv(made, tmp_path / "deep" / "er")
    with path.open(newline="") as file:
        held = list(csv.reader(file))
    assert len(held) == 201
    assert held[8] == ["7", "1.0", "n/a", "3500.0"]
    assert '<td class="ms">3500.00</td>' in page


def test_pictures_are_written(report, tmp_path):
    files = write_png(report, tmp_path)
    assert [path.name for path in files] == [f"{figure.name}.png" for figure in report.figures]
    for path in files:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert int.from_bytes(data[16:20]) > 1000


def test_gaps_and_missing_intervals_are_drawn_around(tmp_path):
    series = Series("x", (1.0, 2.0, 4.0), (None, 1.2, 0.9), (None, 1.1, None), (None, 1.3, None))
    mark = Series("crossing", (3.0,), style="mark")
    figure = Figure("gaps", "Gaps", "Says", "x", "y", (series, mark), is_log_x=True, level=1.0)
    made = Report("Gaps", ("No.",), False, (), (Section("Part", figures=(figure,)),))
    assert "crossing" in report_page(made)
    assert 'class="answer no"' in report_page(made)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (None, "rate", "n/a"),
        (float("nan"), "ms", "n/a"),
        (1234567, "int", "1 234 567"),
        (0.5, "rate", "0.500"),
        (0.01234, "ms", "12.34"),
        (3.14159, "s", "3.14"),
        (16.0, "number", "16"),
        (0.7, "number", "0.7"),
        (41.237, "number", "41.24"),
        ("text", "rate", "text"),
        (0, "int", "0"),
    ],
)
def test_cells_as_people_read_them(value, kind, expected):
    assert shown(value, kind) == expected


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("name", ["missing.jsonl", "other.json"])
def test_what_is_no_source_is_refused(tmp_path, name):
    path = tmp_path / name
    if name == "other.json":
        path.write_text('{"format": 99}')
    result = invoke("report", path)
    assert result.exit_code == 2
    assert name in result.stderr
    assert not path.with_suffix(".html").exists()
