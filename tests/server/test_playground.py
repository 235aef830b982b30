"""The playground in a real browser: what people see, point at, type and are told.

A stage of its own (``make test-browser``): it needs Playwright's Python package and a
Chromium, found on the path or named by ``DRAFTPROOF_CHROMIUM``.
"""

from __future__ import annotations

import json

import httpx
import pytest

CHAT = "/v1/chat/completions"


@pytest.fixture
def page(open_page):
    page = open_page()
    page.locator("#go:enabled").wait_for()
    return page


def fill(page, **fields):
    """Set controls by id; settings that are folded are opened first."""
    if page.locator("#settings").get_attribute("open") is None:
        page.locator("#settings summary").click()
    for name, value in fields.items():
        control = page.locator(f"#{name}")
        if control.evaluate("node => node.tagName") == "SELECT":
            control.select_option(value)
        else:
            control.fill(value)


def generate(page, prompt="hello hello", **fields):
    fill(page, prompt=prompt, **{"max_tokens": "60", "seed": "3"} | fields)
    page.locator("#go").click()
    page.locator("#status", has_text="Done").wait_for()


def tokens_of(page, name="tokens"):
    """The text of each token, without the drafts that were struck through."""
    return page.locator(f"#{name} .t:not(del)").all_text_contents()


def printed(page, name="tokens"):
    return "".join(tokens_of(page, name))


def answer_of(live, prompt, spec, **more):
    """What the API gives for what the page asks by default."""
    body = {
        "model": "table",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 60,
        "seed": 3,
        "temperature": 0.7,
        "top_p": 0.95,
        "top_k": 40,
        "speculative_config": {"rejection_sample_method": "coupled", **spec},
    }
    return httpx.post(live.url + CHAT, json=body | more, timeout=60).json()["choices"][0]


def test_text_colours_and_counters_are_those_of_the_api(page, live):
    generate(page)
    spec = {"method": "ngram"}
    choice = answer_of(live, "hello hello", spec, return_trace=True)
    assert printed(page) == choice["message"]["content"]
    record = choice["speculation"]
    for source, number in record["committed_per_source"].items():
        assert page.locator(f"#tokens .t.{source}").count() == number, source
    cells = page.locator("#positions tr")
    kept = [sum(one > at for one in record["per_step_accepted"]) for at in range(cells.count())]
    drafted = [sum(one > at for one in record["per_step_drafted"]) for at in range(cells.count())]
    shown = [row.split("\t") for row in cells.all_inner_texts()]
    assert [int(row[1].split("/")[0]) for row in shown] == kept
    assert [int(row[3]) for row in shown] == drafted
    assert max(record["per_step_drafted"]) == len(shown)
    facts = page.locator("#totals").inner_text()
    assert f"{record['num_accepted_draft_tokens']} of {record['num_draft_tokens']}" in facts
    assert page.locator("#exactness").inner_text() == "seed-identical"
    assert page.locator("#times tr").count() == 4
    assert float(page.locator("#pace").inner_text()) > 0


def test_sources_differ_by_colour_and_by_line(page):
    looks = {
        source: page.locator(f".legend .{source}").evaluate(
            "node => { const look = getComputedStyle(node); "
            "return [look.backgroundColor, look.textDecorationLine + look.textDecorationStyle] }"
        )
        for source in ("accepted", "recovered", "bonus", "sampled")
    }
    assert len({colour for colour, _ in looks.values()}) == 4
    assert len({line for _, line in looks.values()}) == 4


def test_a_token_tells_p_q_and_its_coin_by_pointer_and_keyboard(page, live):
    generate(page, rule="standard")
    choice = answer_of(
        live,
        "hello hello",
        {"method": "ngram", "rejection_sample_method": "standard"},
        return_trace=True,
    )
    drafts = [
        trace["drafts"][entry["draft"]]
        for trace in choice["traces"]
        for entry in trace["committed"]
        if entry["source"] == "accepted"
    ]
    accepted = page.locator("#tokens .accepted")
    for at, draft in enumerate(drafts[:5]):
        accepted.nth(at).hover()
        numbers = page.locator("#inspector .coins dd").all_inner_texts()
        assert float(numbers[0]) == pytest.approx(draft["p"], abs=6e-4)
        assert float(numbers[1]) == 1
        assert float(numbers[2]) == pytest.approx(draft["coin"], abs=6e-4)
        assert "Kept: the coin lies below" in page.locator("#inspector").inner_text()
    assert page.locator("#inspector-said").inner_text() == ""
    page.locator("#tokens .t").first.focus()
    told = set()
    for key in ("ArrowRight", "ArrowRight", "End", "ArrowLeft", "Home"):
        page.keyboard.press(key)
        told.add(page.locator("#inspector-said").text_content())
    assert len(told) >= 4
    # One stop for the Tab key, wherever the arrows went.
    assert page.locator('#tokens [tabindex="0"]').count() == 1


def test_rejected_drafts_are_shown_on_demand(page, live):
    generate(page)
    choice = answer_of(live, "hello hello", {"method": "ngram"}, return_trace=True)
    drafts = [draft for trace in choice["traces"] for draft in trace["drafts"]]
    struck = page.locator("#tokens del")
    assert struck.count() == sum(draft["verdict"] != "accepted" for draft in drafts) > 0
    assert not struck.first.is_visible()
    page.locator("#show-rejected").check()
    assert struck.first.is_visible()
    line = struck.first.evaluate("node => getComputedStyle(node).textDecorationLine")
    assert line == "line-through"
    judged = page.locator("#tokens del.judged")
    assert judged.count() == sum(draft["verdict"] == "rejected" for draft in drafts)
    judged.first.hover()
    assert "rejected" in page.locator("#inspector").inner_text()


def test_speculation_can_be_switched_off(page):
    generate(page, drafter="none")
    assert page.locator("#kappa").is_disabled()
    assert page.locator("#tokens .sampled").count() == 60
    assert page.locator("#tokens .accepted").count() == 0
    assert "n/a" in page.locator("#totals").inner_text()


def test_the_number_of_drafts_and_the_kind_of_request(page):
    page.locator("text=Completion").click()
    generate(page, prompt="abcabc", drafter="suffix", kappa="2", temperature="0")
    assert page.locator("#positions tr").count() == 2
    assert page.locator("#exactness").inner_text() == "greedy"
    assert "Temperature 0 is greedy" in page.locator("#rule-hint").inner_text()


@pytest.mark.parametrize("fields", [{"rule": "coupled"}, {"rule": "block", "temperature": "0"}])
def test_a_replay_without_drafts_gives_the_same_text(page, fields):
    generate(page, **fields)
    page.locator("#replay").click()
    page.locator("#verdict", has_text="The same text: 60 tokens, seed 3").wait_for()
    assert "promises" in page.locator("#verdict").inner_text()
    assert printed(page, "plain") == printed(page)
    assert page.locator("#pace-ratio").inner_text().endswith("×")


def test_a_replay_under_another_rule_explains_why_texts_part(page):
    generate(page, rule="standard", temperature="1.2")
    page.locator("#replay").click()
    page.locator("#verdict", has_text="exact in law, not seed-identical").wait_for()
    assert page.locator(".first-other").count() == 2
    texts = [tokens_of(page, name) for name in ("tokens", "plain")]
    at = int(page.locator("#verdict").inner_text().split("token ")[1].split(":")[0]) - 1
    assert texts[0][:at] == texts[1][:at]
    assert texts[0][at] != texts[1][at]


def test_a_new_seed_each_time_where_none_is_given(page):
    texts = set()
    for _ in range(3):
        generate(page, seed="", temperature="1")
        texts.add(printed(page))
        seed = int(page.locator("#run-facts dd").nth(1).inner_text())
        assert 0 <= seed < 2**53
    assert len(texts) == 3
    page.locator("#replay").click()
    page.locator("#verdict", has_text="The same text").wait_for()


def test_stopping_frees_the_slots(page, live):
    live.backend.pass_s = 0.02
    try:
        fill(page, prompt="hello", max_tokens="300", drafter="none")
        page.locator("#go").click()
        page.locator("#tokens .t").nth(5).wait_for()
        page.keyboard.press("Escape")
        page.locator("#status", has_text="Stopped").wait_for()
        live.wait_idle()
    finally:
        live.backend.pass_s = 0.0
    assert page.locator("#go").is_enabled()
    assert page.locator("#stop").is_disabled()


def test_a_refusal_is_shown_in_the_servers_words(page):
    fill(page, prompt="no such letter: ß")
    page.locator("#go").click()
    page.locator("#status.bad", has_text="character").wait_for()


def stream_of(*choices):
    events = [{"choices": [choice]} for choice in choices]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


def test_no_output_becomes_markup(page):
    """What a model writes is text, in the output as in everything told about it."""
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    entry = {"id": 1, "text": evil, "shown": evil, "source": "recovered", "draft": None}
    draft = {
        "id": 2,
        "text": evil,
        "source": evil,
        "parent": -1,
        "verdict": "rejected",
        "p": 0.1,
        "q": None,
        "coin": 0.5,
    }
    trace = {
        "step": 1,
        "round": 0,
        "start": 1,
        "kappa": 1,
        "rule": evil,
        "drafter": evil,
        "drafts": [draft],
        "committed": [entry],
        "batch": 1,
        "pass_tokens": 2,
        "next": {"id": 1, "text": evil, "source": "recovered", "p": 0.5},
        "seconds": {"draft": 0, "target": 1, "verify": 0, "other": 0},
    }
    speculation = {"exactness": evil, "rule": evil, "seed": 1, "notes": [evil]}
    choice = {"index": 0, "trace": trace, "finish_reason": "stop", "speculation": speculation}
    page.route(
        "**" + CHAT,
        lambda route: route.fulfill(
            body=stream_of(choice), headers={"content-type": "text/event-stream"}
        ),
    )
    before = page.locator("img, script").count()
    generate(page)
    page.locator("#show-rejected").check()
    for name in ("#tokens span", "#tokens del"):
        page.locator(name).first.hover()
        assert page.locator("#inspector").inner_text()
    assert page.locator("#tokens span").text_content() == evil
    assert page.locator("#exactness").text_content() == evil
    assert page.locator("img, script").count() == before


def test_a_stream_that_is_cut_is_not_taken_for_an_end(page):
    page.route(
        "**" + CHAT,
        lambda route: route.fulfill(body='data: {"choices": []}\n\n'),
    )
    fill(page, prompt="hello")
    page.locator("#go").click()
    page.locator("#status.bad", has_text="ended early").wait_for()


def test_a_key_is_asked_for(open_page, kit_type):
    kit = kit_type(api_key="s3cret")
    with kit.listening() as url:
        page = open_page(url=url)
        page.locator("#key-form").wait_for()
        page.locator("#key").fill("s3cret")
        page.keyboard.press("Enter")
        page.locator("#go:enabled").wait_for()
        generate(page)
        assert not page.locator("#key-form").is_visible()
        page.close()
