"""The pages for everybody: names, focus, contrast, phones, less motion; and the model's page."""

from __future__ import annotations

import pytest

#: What is read, and against what. The size that counts as large text is not reached by any.
TEXTS = [
    "body", ".hint", "h2", ".chip", "#go", "#stop", ".segments span", ".field span", ".placeholder",
    ".legend .accepted", ".legend .recovered", ".legend .bonus", ".legend .sampled",
]  # fmt: skip
CONTRAST = """
selectors => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (css) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = css;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const backOf = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const back = rgba(getComputedStyle(at).backgroundColor);
      if (back[3] === 255) return back;
    }
    return [255, 255, 255, 255];
  };
  const luminance = (colour) => colour.slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  return selectors.flatMap((selector) => [...document.querySelectorAll(selector)].map((node) => {
    const pair = [luminance(rgba(getComputedStyle(node).color)), luminance(backOf(node))];
    const [dark, light] = pair.sort((a, b) => a - b);
    return [selector, (light + 0.05) / (dark + 0.05)];
  }));
}
"""


@pytest.fixture
def ready(open_page):
    def run(path="/", **options):
        page = open_page(path, **options)
        mark = "#go:enabled" if path == "/" else "#fits tr"
        page.locator(mark).first.wait_for()
        return page

    return run


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/models"])
def test_text_can_be_read(ready, path, scheme):
    """WCAG's 4.5 to 1, in both colour schemes."""
    page = ready(path, color_scheme=scheme)
    found = page.evaluate(CONTRAST, TEXTS if path == "/" else ["body", ".hint", "h2", "dt", "th"])
    assert len(found) > 10
    # A control that cannot be used is exempt.
    weak = [(name, ratio) for name, ratio in found if ratio < 4.5 and name != "#stop"]
    assert not weak


def test_the_two_schemes_differ(ready):
    colours = {
        ready(color_scheme=scheme).evaluate("() => getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    }
    assert len(colours) == 2


@pytest.mark.parametrize("path", ["/", "/models"])
def test_a_phone_needs_no_sideways_scrolling(ready, path):
    page = ready(path, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
    if path == "/":
        page.locator("#prompt").fill("hello hello")
        page.locator("#go").tap()
        page.locator("#status", has_text="Done").wait_for()
        page.locator("#tokens .accepted").first.tap()
        assert page.locator("#inspector .coins dd").count()
        # What is told about a token stays in view beside it.
        assert page.locator("#inspector").bounding_box()["y"] < 740
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("path", ["/", "/models"])
def test_every_control_has_a_name_and_every_part_a_heading(ready, path):
    page = ready(path)
    for control in page.locator("button, input, select, textarea, summary").all():
        name = control.evaluate(
            "node => node.getAttribute('aria-label') || node.textContent.trim() || "
            "[...(node.labels ?? [])].map((label) => label.textContent.trim()).join(' ')"
        )
        assert name, control.evaluate("node => node.outerHTML")
    for part in page.locator("section").all():
        assert part.locator("h2").count() == 1 or part.get_attribute("class") == "card ask"
    assert page.locator("main").count() == page.locator("header").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"


def test_tokens_are_not_read_out_as_they_stream(ready):
    page = ready()
    assert page.locator("#tokens").get_attribute("aria-live") == "off"
    assert not page.locator("#tokens").evaluate("node => Boolean(node.closest('[role=status]'))")
    assert page.locator("#status").get_attribute("role") == "status"


def test_focus_goes_from_the_prompt_to_the_button_and_the_tokens(ready):
    page = ready()
    page.locator("#prompt").focus()
    page.locator("#prompt").fill("hello")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "go"
    page.keyboard.press("Enter")
    page.locator("#status", has_text="Done").wait_for()
    seen = []
    while "token" not in seen and len(seen) < 25:
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "() => document.activeElement.closest('#tokens') ? 'token' : "
                "document.activeElement.id"
            )
        )
    assert seen.index("drafter") < seen.index("temperature") < seen.index("token")
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_less_motion_where_it_is_asked_for(ready, live):
    live.backend.gate.clear()
    names = {}
    try:
        for motion in ("no-preference", "reduce"):
            page = ready(reduced_motion=motion)
            page.locator("#go").click()
            page.locator("body.busy").wait_for()
            names[motion] = page.evaluate(
                "() => getComputedStyle(document.querySelector('#tokens'), '::after').animationName"
            )
            page.locator("#stop").click()
    finally:
        live.backend.gate.set()
    live.wait_idle()
    assert names == {"no-preference": "blink", "reduce": "none"}


def test_the_models_page(ready, live):
    page = ready("/models")
    document = page.evaluate("async () => (await (await fetch('/v1/models')).json()).data[0]")
    about = document["draftproof"]
    cache = about["kv_cache"]
    assert page.locator("#name").inner_text() == about["name"]
    assert page.locator("#drafter").inner_text() == about["default_drafter"]
    assert f"of {cache['pages']['total']} pages" in page.locator("#cache-facts").inner_text()
    rows = [row.split("\t") for row in page.locator("#fits tr").all_inner_texts()]
    expected = [
        [str(row[key]) for key in ("num_tokens", "plain", "speculative")]
        for row in cache["max_concurrency"]
    ]
    assert [row[:3] for row in rows] == expected
    assert page.locator("#state").inner_text() == "ok"


def test_the_models_page_follows_the_load(ready, live):
    page = ready("/models")
    live.backend.gate.clear()
    try:
        page.evaluate(
            "() => { fetch('/v1/completions', {method: 'POST', "
            "headers: {'content-type': 'application/json'}, "
            "body: JSON.stringify({model: 'table', prompt: 'abc', max_tokens: 4})}) }"
        )
        page.locator("#now-facts dd", has_text="1").first.wait_for()
    finally:
        live.backend.gate.set()
    live.wait_idle()
