"""What the target is asked fits its context, and recording ends when its time is over."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.backends.torch_hf import load_torch
from draftproof.distill.corpus import Corpus, Recording
from draftproof.distill.held_out import split
from draftproof.distill.record import (
    Recorder,
    Wanted,
    longest_prompt,
    record_answers,
    seed_prompt,
)
from draftproof.distill.speed import beginnings
from draftproof.engine import Engine, EngineCore, SchedulerConfig


def quiet(_line):
    """Hear nothing."""


class Letters:
    """A tokenizer of one token per letter, whose chats are as long as their text."""

    vocab_size = 96
    eos_token_ids = frozenset()

    def __init__(self):
        self.asked = []

    def encode(self, text, *, add_special=True):
        return [ord(letter) % 96 for letter in text]

    def encode_chat(self, messages):
        self.asked.append(messages[-1]["content"])
        return self.encode(self.asked[-1])

    def token_bytes(self, token_id):
        return bytes([token_id])

    def decode(self, token_ids):
        return "".join(chr(48 + token_id % 10) * 2 for token_id in token_ids)


@pytest.fixture(scope="module")
def target(build_model):
    return load_torch(build_model("llama"), kv_cache_bytes=1 << 22, with_hidden=True)


def record(target, corpus, wanted, *, is_over, tokenizer=None):
    recorder = Recorder()
    core = EngineCore(
        target,
        tokenizer=tokenizer or Letters(),
        proposers=[recorder],
        scheduler=SchedulerConfig(max_rows=8),
    )
    return record_answers(Engine(core), recorder, corpus, wanted, is_over=is_over, progress=quiet)


def test_prompts_about_texts_fit_a_small_context(target, tmp_path):
    assert target.info.context_length == 256
    corpus = Corpus(tmp_path)
    # The texts of a shard are what prompts of the next ones are about.
    state = np.zeros((300, 64), np.float32)
    corpus.add([Recording.of([1] * 301, [state])], held_out=True)
    letters = Letters()
    wanted = Wanted(2600, answers=8)
    assert record(target, corpus, wanted, is_over=lambda: False, tokenizer=letters) >= 2600
    assert len(corpus.paths()) >= 3
    # Two letters per token: an answer as it is would be longer than the context.
    about = [prompt for prompt in letters.asked if "\n\n" in prompt]
    assert sum(len(prompt) <= 128 for prompt in about) > 1
    assert max(map(len, about)) < 256 - 96


def test_held_out_text_grows_with_the_corpus_until_it_is_enough(target, tmp_path):
    corpus = Corpus(tmp_path)
    corpus.add([Recording.of([1] * 9, [np.zeros((8, 64), np.float32)])], held_out=True)
    for _ in range(2):
        corpus.add([Recording.of([1] * 101, [np.zeros((100, 64), np.float32)])])
    for number, name in ((3, "held-00003.npz"), (4, "shard-00004.npz")):
        record(target, corpus, Wanted(corpus.num_tokens() + 1, answers=8), is_over=lambda: False)
        assert (len(corpus.paths()), corpus.paths()[-1].name) == (number + 1, name)


def test_a_prompt_that_does_not_fit_is_cut_or_not_asked():
    generator = np.random.default_rng(0)
    texts = ["0123456789" * 70]
    lengths = [
        len(seed_prompt(Letters(), generator, held_out=False, longest=60, texts=texts))
        for _ in range(80)
    ]
    assert max(lengths) == 60
    assert min(lengths) < 30
    assert longest_prompt(8192) == 8192 - 192
    assert longest_prompt(256) == 128


def test_answers_end_early_when_the_time_is_over(target, tmp_path):
    corpus = Corpus(tmp_path)
    record(target, corpus, Wanted(100_000, answers=12), is_over=lambda: True)
    training, held = split(corpus)
    assert (len(training), len(held)) == (1, 1)
    lengths = [len(each) for shard in corpus for each in shard.recordings]
    assert max(lengths) <= 40
    assert sum(lengths) > 100
    # The next run goes on; what was cut is kept.
    assert record(target, corpus, Wanted(100, answers=12), is_over=lambda: False) == sum(lengths)


def test_beginnings_of_held_out_pieces(tmp_path):
    corpus = Corpus(tmp_path)
    for held_out in (False, True):
        corpus.add(
            [
                Recording.of([held_out] * 101, [np.zeros((100, 4), np.float32)]),
                Recording.of([held_out] * 5, [np.zeros((4, 4), np.float32)]),
            ],
            held_out=held_out,
        )
    assert beginnings(corpus, 6, 512) == [[1] * 50, [1] * 2]
    assert beginnings(corpus, 1, 64) == [[1] * 32]
