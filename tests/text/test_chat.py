"""Chats: templates run in a sandbox, and user text never becomes a control token."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import ModelFileError, PromptError
from draftproof.text import ChatTemplate, Tokenizer
from draftproof.text.chat import ControlGuard

Build = Callable[..., Tokenizer]
Metadata = Callable[..., dict[str, Any]]

START, END = 1, 2


def control(ids: list[int]) -> list[int]:
    return [i for i in ids if i in (0, START, END)]


def test_chat_is_the_rendered_template(tiny: Tokenizer) -> None:
    def plain(text: str) -> list[int]:
        return tiny.encode(text, add_special=False)

    assert tiny.encode_chat([{"role": "user", "content": "hi"}]) == [
        *(START, *plain("user\nhi"), END, *plain("\n")),
        *(START, *plain("assistant\n")),
    ]
    closed = tiny.encode_chat([{"role": "user", "content": "hi"}], add_generation_prompt=False)
    assert control(closed) == [START, END]


# Text made of what control tokens are made of, whole and in parts.
PARTS = "<|im_start|> <|im_end|> <|end|> <|im_ end|> < |> > <| im_end x <tool>"
HOSTILE = st.lists(st.sampled_from([*PARTS.split(" "), *" \n\ufdd0\ufdd1"]), max_size=8).map(
    "".join
)


@settings(deadline=None)
@given(content=HOSTILE, role=HOSTILE)
def test_hostile_messages_add_no_control_token(tiny: Tokenizer, content: str, role: str) -> None:
    ids = tiny.encode_chat([{"role": role, "content": content}])
    assert control(ids) == [START, END, START]
    # And nothing is lost or added: the text is what the user wrote.
    assert tiny.decode(ids) == f"{role}\n{content}\nassistant\n"


@settings(deadline=None)
@given(contents=st.lists(HOSTILE, min_size=2, max_size=4))
def test_spellings_across_messages_are_broken(
    gguf_tokenizer: Build, byte_level: Metadata, contents: list[str]
) -> None:
    """A template that joins user texts directly, the worst case."""
    source = "<|im_start|>{% for m in messages %}{{ m['content'] }}{% endfor %}<|im_end|>"
    tokenizer = gguf_tokenizer(byte_level(tokenizer__chat_template=source))
    ids = tokenizer.encode_chat([{"role": "user", "content": text} for text in contents])
    assert control(ids) == [START, END]
    assert tokenizer.decode(ids) == "".join(contents)


def test_template_may_build_a_spelling_around_a_role(
    gguf_tokenizer: Build, byte_level: Metadata
) -> None:
    """Some families write ``<|user|>`` this way; it is the template's own doing."""
    source = "{{ '<|' + messages[0]['role'] + '|>' + messages[0]['content'] }}"
    tokenizer = gguf_tokenizer(byte_level(tokenizer__chat_template=source))
    ids = tokenizer.encode_chat([{"role": "im_start", "content": "<|im_end|>"}])
    assert control(ids) == [START]
    assert tokenizer.decode(ids) == "<|im_end|>"


def test_spelling_completed_by_the_template_is_broken(
    gguf_tokenizer: Build, byte_level: Metadata
) -> None:
    for source, content in (
        ("{{ messages[0]['content'] }}|>", "<|im_start"),
        ("<|im_{{ messages[0]['content'] }}", "start|>"),
        ("{{ messages[0]['content'] }}|im_start|>", "<"),
        ("<|im_start|{{ messages[0]['content'] }}", ">"),
    ):
        tokenizer = gguf_tokenizer(byte_level(tokenizer__chat_template=source))
        ids = tokenizer.encode_chat([{"role": "user", "content": content}])
        assert control(ids) == []
        assert tokenizer.decode(ids) == "<|im_start|>"


def test_filters_see_the_edges_of_the_text(gguf_tokenizer: Build, byte_level: Metadata) -> None:
    source = "<|im_start|>{{ messages[0]['content'] | trim }}<|im_end|>"
    tokenizer = gguf_tokenizer(byte_level(tokenizer__chat_template=source))
    ids = tokenizer.encode_chat([{"role": "user", "content": " \n<|im_end|> \n"}])
    assert tokenizer.decode(ids) == "<|im_end|>"
    assert control(ids) == [START, END]


def test_overlapping_spellings_are_all_broken() -> None:
    guard = ControlGuard({"<ab>": 0, "b><c": 1, "<ab><": 2})
    sentinel = guard.sentinel("")
    guarded = guard.guard("x<ab><cy", sentinel)
    assert guarded.replace(sentinel, "") == "x<ab><cy"
    assert guard.split(guarded, sentinel) == ["x<ab><cy"]
    # Unguarded text is the template's own; the longest spelling is taken.
    assert guard.split("x<ab><cy", sentinel) == ["x", 2, "cy"]


def test_white_space_that_belongs_to_a_control_token() -> None:
    guard = ControlGuard({"<a>": 7, "<b>": 8}, {"<a>": (False, True), "<b>": (True, False)})
    assert guard.split("x <a>  y  <b> z", "\ufdd0") == ["x ", 7, "y", 8, " z"]


def test_sentinel_is_a_character_nobody_uses() -> None:
    guard = ControlGuard({"<a>": 7})
    first = guard.sentinel("abc")
    assert guard.sentinel("abc", first) not in {first, "a"}


@pytest.mark.parametrize(
    ("family", "flag", "source", "expected"),
    [
        ("llama-bpe", None, "{{ bos_token }}hi", [START]),
        ("llama-bpe", None, "hi", [START]),
        ("smollm", None, "{{ bos_token }}hi", [START]),
        ("smollm", None, "hi", []),
        ("smollm", True, "<|im_start|>hi", [START]),
    ],
)
def test_begin_token_is_never_doubled(
    gguf_tokenizer: Build,
    byte_level: Metadata,
    family: str,
    flag: bool | None,
    source: str,
    expected: list[int],
) -> None:
    tokenizer = gguf_tokenizer(
        byte_level(
            tokenizer__ggml__pre=family,
            tokenizer__ggml__add_bos_token=flag,
            tokenizer__chat_template=source,
        )
    )
    ids = tokenizer.encode_chat([{"role": "user", "content": ""}])
    assert ids == expected + tokenizer.encode("hi", add_special=False)


def test_no_template_is_an_error_that_says_so(gguf_tokenizer: Build, byte_level: Metadata) -> None:
    tokenizer = gguf_tokenizer(byte_level(tokenizer__chat_template=None))
    assert not tokenizer.has_chat_template
    with pytest.raises(PromptError, match="no chat template"):
        tokenizer.encode_chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "no messages"),
        ([{"role": "user"}], "message 0 has no 'content'"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], "message 1 has no 'role'"),
        ([{"role": "user", "content": 3}], "content is of type int, expected a string"),
        ([{"role": "user", "content": None}], "content is of type NoneType"),
    ],
)
def test_malformed_messages_are_refused(tiny: Tokenizer, messages: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        tiny.encode_chat(messages)


MESSAGES = [{"role": "user", "content": "a & <b>"}]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "a & <b>"}'),
        ("{% if True %}\n  {% if True %}\nx{% endif %}\n{% endif %}\n", "x"),
        ("{% for m in messages %}{% break %}{% endfor %}y", "y"),
        ("{% generation %}z{% endgeneration %}", "z"),
        ("{{ strftime_now('%d %b %Y') }}", "05 Jul 2024"),
        ("{{ bos_token }}|{{ tools is none }}|{{ absent is defined }}", "<s>|True|False"),
        ("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}", "2"),
        ("{{ messages[0]['content'].split(' ')[-1] }}", "<b>"),
    ],
)
def test_what_templates_in_the_field_use(source: str, expected: str) -> None:
    template = ChatTemplate(source, {"bos_token": "<s>"}, now=lambda: datetime(2024, 7, 5))
    assert template.render(MESSAGES) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refused.*roles must alternate"),
        ("{{ messages[5].content }}", "failed"),
        ("{{ 1 + messages[0]['content'] }}", "failed"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "failed"),
        ("{{ messages.append(1) }}", "failed"),
        ("{% for i in range(10000000) %}{% endfor %}", "failed"),
        ("{{ 1 // 0 }}", "failed"),
    ],
)
def test_refusals_and_failures_of_templates(source: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        ChatTemplate(source).render(MESSAGES)


def test_template_that_does_not_compile() -> None:
    with pytest.raises(ModelFileError, match="does not compile"):
        ChatTemplate("{% endfor %}")
