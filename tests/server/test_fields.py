"""Every field is honoured or refused by name, with speculation on and off."""

from __future__ import annotations

import asyncio

import pytest

from draftproof.proposers import PredictionTreeProposer

CHARACTERS = "\n" + "".join(map(chr, range(0x20, 0x7F)))
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
#: The end token is forbidden, so that every text has its full length.
BASE = {
    "model": "table",
    "prompt": "abcabc",
    "max_tokens": 40,
    "temperature": 0.9,
    "seed": 4,
    "logit_bias": {"96": -100},
}
OFF = {"speculative_config": {"num_speculative_tokens": 0}}
COUPLED = {"rejection_sample_method": "coupled"}


def texts_of(kit, bodies, path=COMPLETIONS):
    """Post many bodies to one service; the answers must be answers."""

    async def send():
        async with kit.client() as client:
            answers = [await client.post(path, json=body) for body in bodies]
        for answer in answers:
            assert answer.status_code == 200, answer.text
        return [answer.json()["choices"][0]["text"] for answer in answers]

    return asyncio.run(send())


#: A setting, and what else the request needs for it to show.
SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_p": 0.05},
    {"min_p": 0.9},
    {"repetition_penalty": 5.0},
    {"presence_penalty": 2.0},
    {"frequency_penalty": 2.0},
    {"frequency_penalty": -2.0},
    {"logit_bias": {"50": 60.0, "96": -100}},
    {"stop": "STOP"},
    {"stop": ["~~~~", "STOP"]},
    {"stop_token_ids": "STOP"},
    {"max_tokens": 7},
    {"seed": 5},
    {"structured_outputs": {"regex": "[a-d]{12}"}},
    {"response_format": {"type": "json_object"}},
]


def fill_in(setting, plain):
    """Let the settings that end a text end it where its third part begins."""
    (name, value), *_ = setting.items()
    at = next(at for at in range(13, 39) if plain[at] not in plain[:at])
    if name == "stop_token_ids":
        return {name: [CHARACTERS.index(plain[at])]}
    if name == "stop":
        stop = plain[at : at + 2]
        return {name: stop if value == "STOP" else [stop, "~~~~"]}
    return setting


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_setting_acts_alike_with_and_without_drafts(kit, setting):
    """The coupled rule makes text a function of the seed, so equality is exact."""
    off = BASE | {"speculative_config": {"num_speculative_tokens": 0} | COUPLED}
    (plain,) = texts_of(kit, [off])
    filled = fill_in(setting, plain)
    on = BASE | filled | {"speculative_config": {"method": "ngram"} | COUPLED}
    with_drafts, without = texts_of(kit, [on, off | filled])
    assert with_drafts == without
    assert with_drafts != plain


def test_min_tokens_and_ignore_eos(kit):
    ends = {"logit_bias": {"96": 100.0}}  # the end token
    assert [len(text) for text in texts_of(kit, [BASE | ends])] == [0]
    longer = BASE | ends | {"min_tokens": 6, "return_token_ids": True}
    ignoring = BASE | ends | {"ignore_eos": True, "return_token_ids": True}

    async def send():
        async with kit.client() as client:
            return [
                (await client.post(COMPLETIONS, json=body)).json() for body in (longer, ignoring)
            ]

    held, ignored = asyncio.run(send())
    assert held["usage"]["completion_tokens"] == 7
    assert 96 not in held["choices"][0]["token_ids"][:6]
    assert ignored["choices"][0]["token_ids"] == [96] * 40


def test_logprobs_mode(kit):
    async def send():
        async with kit.client() as client:
            bodies = [
                BASE | {"logprobs": 1, "logprobs_mode": mode, "top_k": 1}
                for mode in ("raw", "processed")
            ]
            return [(await client.post(COMPLETIONS, json=body)).json() for body in bodies]

    raw, processed = (
        answer["choices"][0]["logprobs"]["token_logprobs"] for answer in asyncio.run(send())
    )
    assert processed == [0.0] * 40
    assert any(value < -0.1 for value in raw)


@pytest.mark.parametrize("method", ["ngram", "suffix", "prediction"])
def test_methods(kit, method):
    body = BASE | {"temperature": 0, "speculative_config": {"method": method}}
    if method == "prediction":
        (expected,) = texts_of(kit, [BASE | {"temperature": 0} | OFF])
        body |= {"prediction": {"type": "content", "content": expected}}
        kit = type(kit)()
    answer = kit.post(COMPLETIONS, **body, return_rounds=True).json()
    rounds = answer["choices"][0]["rounds"]
    assert {one["drafter"] for one in rounds if one["drafted"]} == {method}
    assert sum(len(one["emitted"]) for one in rounds) == 40


@pytest.mark.parametrize("spec", [{"num_speculative_tokens": 0}, {"method": "none"}], ids=str)
def test_off(kit, spec):
    """Not one pass more than plain decoding, and nothing drafted."""
    answer = kit.post(COMPLETIONS, **BASE, speculative_config=spec).json()
    record = answer["choices"][0]["speculation"]
    assert record["num_spec_steps"] == record["num_draft_tokens"] == 0
    assert record["mean_acceptance_length"] is record["draft_acceptance_rate"] is None
    assert record["num_rounds"] == kit.backend.num_calls == 40
    assert answer["metrics"] == {"speculative_decoding": None}


@pytest.mark.parametrize("kappa", [1, 2, 7])
def test_number_of_drafts(kit, kappa):
    spec = {"num_speculative_tokens": kappa}
    body = BASE | {"temperature": 0, "speculative_config": spec}
    record = kit.post(COMPLETIONS, **body).json()["metrics"]["speculative_decoding"]
    assert record["num_spec_tokens"] == kappa
    assert max(record["per_step_drafted"]) == kappa
    assert len(record["acceptance_histogram"]) == kappa + 1


@pytest.mark.parametrize(
    ("temperature", "rule", "label"),
    [
        (0, None, "greedy"),
        (1, None, "exact-in-law"),
        (1, "standard", "exact-in-law"),
        (1, "block", "exact-in-law"),
        (1, "coupled", "seed-identical"),
        (1, "sample-match", "seed-identical"),
    ],
)
def test_exactness_label(kit, temperature, rule, label):
    spec = {} if rule is None else {"rejection_sample_method": rule}
    body = BASE | {"temperature": temperature, "speculative_config": spec}
    record = kit.post(COMPLETIONS, **body).json()["choices"][0]["speculation"]
    assert record["exactness"] == label
    assert record["rule"] == (rule or "standard")
    assert record["seed"] == 4


LOSSY = {"rejection_sample_method": "lenience", "allow_lossy": True, "lenience": 0.5}


def test_a_rule_that_changes_the_law_is_refused_by_a_strict_server(kit):
    answer = kit.post(COMPLETIONS, **BASE, speculative_config=LOSSY)
    assert answer.status_code == 400
    assert "lenience" in answer.json()["error"]["message"]


def test_a_rule_that_changes_the_law_is_labelled(kit_type, tools):
    kit = kit_type(engine=tools.make_engine(kappa=4, allow_lossy=True))
    answer = kit.post(COMPLETIONS, **BASE, speculative_config=LOSSY)
    assert answer.json()["choices"][0]["speculation"]["exactness"].startswith("lossy(")


UNSEEDED = {key: value for key, value in BASE.items() if key != "seed"}


def test_requests_without_a_seed_differ_and_say_their_seed(kit):
    async def send():
        async with kit.client() as client:
            first = [(await client.post(COMPLETIONS, json=UNSEEDED)).json() for _ in range(5)]
            seed = first[0]["choices"][0]["speculation"]["seed"]
            again = (await client.post(COMPLETIONS, json=UNSEEDED | {"seed": seed})).json()
            return [answer["choices"][0]["text"] for answer in (*first, again)]

    *fresh, again = asyncio.run(send())
    assert len(set(fresh)) == 5
    assert again == fresh[0]


CHAT_BASE = {"model": "table", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


def test_what_clients_send_and_what_asks_for_nothing(kit):
    """Null is a field that is not given, and some values ask for what is done anyway."""
    neutral = {
        "tools": [],
        "tool_choice": "none",
        "store": False,
        "service_tier": "auto",
        "metadata": None,
        "modalities": ["text"],
        "temperature": None,
        "stop": None,
        "logit_bias": None,
        "stream_options": None,
        "reasoning_effort": None,
        "user": "u-1",
    }
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]

    async def send():
        async with kit.client() as client:
            return [
                await client.post(CHAT, json=body | {"seed": 1})
                for body in (
                    CHAT_BASE,
                    CHAT_BASE | neutral,
                    CHAT_BASE | {"messages": [{"role": "user", "content": parts}]},
                )
            ]

    answers = asyncio.run(send())
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["choices"][0]["message"]["content"] for answer in answers}) == 1


def test_developer_is_system(kit):
    bodies = [
        {"messages": [{"role": role, "content": "be brief"}]} for role in ("developer", "system")
    ]

    async def send():
        async with kit.client() as client:
            return [(await client.post("/tokenize", json=body)).json() for body in bodies]

    first, second = asyncio.run(send())
    assert first == second
    assert first["count"] == len(first["tokens"])


def test_prediction_without_a_reader(tools, kit_type):
    engine = tools.make_engine(kappa=4)
    del engine.core.proposers["prediction"]
    body = BASE | {"prediction": {"type": "content", "content": "x"}}
    answer = kit_type(engine=engine).post(COMPLETIONS, **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prediction"


@pytest.mark.parametrize("method", [None, "prediction-tree", "prediction_tree"])
def test_a_prediction_that_is_drafted_as_a_tree_is_counted(tools, kit_type, method):
    engine = tools.make_engine(kappa=6, proposers=[PredictionTreeProposer()])
    kit = kit_type(engine=engine, kappa=6)
    plain = BASE | {"temperature": 0}
    (expected,) = texts_of(kit, [plain | OFF])
    body = plain | {
        "prediction": {"type": "content", "content": expected[:9] + "#" + expected[10:]}
    }
    if method:
        body["speculative_config"] = {"method": method}
    answer = kit_type(engine=engine, kappa=6).post(COMPLETIONS, **body).json()
    assert answer["choices"][0]["text"] == expected
    details = answer["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 20
    assert details["rejected_prediction_tokens"] > 0


def test_a_server_without_a_default_drafter(kit_type):
    """Plain by default; a request may still choose."""
    kit = kit_type(kappa=0)
    plain = kit.post(COMPLETIONS, **BASE | {"temperature": 0}).json()
    assert plain["metrics"]["speculative_decoding"] is None
    kit = kit_type(kappa=0)
    body = BASE | {"temperature": 0, "speculative_config": {"method": "ngram"}}
    chosen = kit.post(COMPLETIONS, **body).json()
    assert chosen["metrics"]["speculative_decoding"]["num_spec_tokens"] == 5
    assert chosen["choices"][0]["text"] == plain["choices"][0]["text"]


def test_tokenize_and_detokenize(kit):
    async def send():
        async with kit.client() as client:
            tokens = (await client.post("/tokenize", json={"prompt": "abé"})).json()["tokens"]
            text = (await client.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
            refused = [
                await client.post("/tokenize", json={}),
                await client.post("/tokenize", json={"prompt": "a", "messages": []}),
                await client.post("/tokenize", json={"prompt": "ж"}),
                await client.post("/detokenize", json={"tokens": [99]}),
                await client.post("/detokenize", json={"tokens": [-1]}),
            ]
            return tokens, text, [answer.status_code for answer in refused]

    tokens, text, statuses = asyncio.run(send())
    assert tokens == [66, 67, 97, 98]
    assert text == "abé"
    assert statuses == [400] * 5
