"""Text finds its way between two vocabularies, whatever their tokenizers do to it."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.errors import IncompatibleModelsError
from draftproof.text import TextBridge
from draftproof.text.bridge import InnerEncoder, complete_length

SPM = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
SPM_PIECES = ["\u2581hi", "hi", "\u2581the", "\u2581", "h", "i", "t", "e", "th", "the", "é"]


def spm_metadata(prefix=True):
    """A SentencePiece vocabulary with byte tokens, which begins texts with a space or not."""
    texts = (*SPM, *SPM_PIECES)
    scores = [0.0] * len(SPM) + [float(len(piece)) for piece in SPM_PIECES]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3, *[6] * 256, *[1] * len(SPM_PIECES)]),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": prefix,
    }


@pytest.fixture(scope="module", params=[True, False], ids=["space before", "as it is"])
def spm(gguf_tokenizer, request):
    return gguf_tokenizer(spm_metadata(request.param))


TEXTS = [
    "hi",
    " hi",
    "hi the",
    "the\n\nhi",
    "  hi",
    "\u00e9hi",
    " \U0001f642",
    "x\u0301",
    "12",
    "\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_spell_the_bytes_they_are_made_of(tiny, spm, text):
    for tokenizer in (tiny, spm):
        encoder = InnerEncoder(tokenizer)
        for data in (text.encode(), text.encode()[:-1], text.encode()[1:], b"\xff" + text.encode()):
            ids = encoder.encode(data)
            assert b"".join(map(tokenizer.token_bytes, ids)) == data


def test_text_inside_a_document_does_not_begin_with_another_space(spm):
    encoder = InnerEncoder(spm)
    pieces = {piece: len(SPM) + index for index, piece in enumerate(SPM_PIECES)}
    assert encoder.encode(b" hi") == [pieces["\u2581hi"]]
    assert encoder.encode(b"hi") == [pieces["hi"]]


def test_a_byte_that_no_token_spells_is_named_or_ends_the_ids(bytes_tokenizer):
    class Letters(bytes_tokenizer):
        def encode(self, text, *, add_special=True):
            return [self.data.index(letter.encode()) for letter in text if letter in "ab"]

    encoder = InnerEncoder(Letters([b"a", b"b"]))
    with pytest.raises(IncompatibleModelsError, match="cannot spell the byte 0x63"):
        encoder.encode(b"abca")
    assert encoder.encode(b"abca", whole=False) == [0, 1]


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (b"", 0),
        (b"a", 1),
        ("é".encode(), 2),
        ("é".encode()[:1], 0),
        (b"a" + "\u20ac".encode()[:2], 1),
        ("\U0001f642".encode()[:3], 0),
        ("\U0001f642".encode(), 4),
        (b"\x80\x80", 2),
        (b"\x80\x80\x80\x80\x80", 5),
    ],
)
def test_half_a_character_at_the_end_is_seen(data, length):
    assert complete_length(data) == length


def test_shared_tokens_have_the_same_bytes_and_each_is_named_once(tiny, spm):
    shared = TextBridge(tiny, spm).shared(tiny.vocab_size + 3, spm.vocab_size)
    pairs = {t: d for t, d in enumerate(shared.draft_of.tolist()) if d >= 0}
    assert shared.vocab_size == tiny.vocab_size + 3
    assert shared.num_shared == len(pairs) == len(set(pairs.values()))
    ends = {(tiny_end, spm_end) for tiny_end in tiny.eos_token_ids for spm_end in spm.eos_token_ids}
    for target, draft in pairs.items():
        spelled = tiny.token_bytes(target)
        assert spelled == spm.token_bytes(draft)
        assert spelled or (target, draft) in ends
    # A piece of text goes before the raw byte of the same spelling.
    h = next(t for t in pairs if tiny.token_bytes(t) == b"h")
    assert pairs[h] == len(SPM) + SPM_PIECES.index("h")


def test_scores_of_shared_tokens_are_put_in_the_order_of_the_target(tiny, spm):
    shared = TextBridge(tiny, spm).shared(tiny.vocab_size, spm.vocab_size)
    logits = np.arange(spm.vocab_size, dtype=np.float32)
    scores = shared.scores(logits)
    assert scores.dtype == np.float32
    for target, draft in enumerate(shared.draft_of.tolist()):
        assert scores[target] == (logits[draft] if draft >= 0 else -np.inf)


def test_control_tokens_are_shared_by_spelling_and_are_text_otherwise(tiny, spm):
    names = tiny.vocabulary.control_ids
    same = TextBridge(tiny, tiny)
    assert same.piece(names["<|im_start|>"]) == names["<|im_start|>"]
    other = TextBridge(tiny, spm)
    assert other.piece(names["<|im_start|>"]) == b"<|im_start|>"
    assert other.target_bytes(names["<|im_start|>"]) == b""
    assert other.start_ids == (1,)
    assert other.target_start_ids == ()


def test_a_row_shorter_than_its_vocabulary_is_refused(tiny, spm):
    with pytest.raises(IncompatibleModelsError, match=f"scores only {spm.vocab_size - 1}"):
        TextBridge(tiny, spm).shared(tiny.vocab_size, spm.vocab_size - 1)


def named(tokenizer, *spelled):
    """Ids of single tokens by their bytes."""
    data = tokenizer.vocabulary.data
    return [data.index(piece) for piece in spelled]


@pytest.mark.parametrize(
    ("before", "data", "expected"),
    [
        (b" the", b" hi", [b" hi"]),
        (b" t", b"he hi", [b"h", b"e", b" hi"]),  # " the" is one token, and " t" stands
        (b"", b"hi", [b"hi"]),
        (b"1", b"2", [b"2"]),
        (b" the", b"\xc3\xa9", ["é".encode()]),
        (b" the", b"sy\xc3", [b"sy"]),  # half a character is left out
        (b"\xc3", b"\xa9", [b"\xa9"]),
        (b"hi", b"", []),
    ],
)
def test_what_follows_a_text_is_encoded_as_the_target_goes_on(tiny, spm, before, data, expected):
    assert TextBridge(tiny, spm).to_target(before, data) == named(tiny, *expected)


def test_a_token_over_the_border_is_not_taken_for_what_follows(tiny, spm):
    """Leaving out as many tokens as the end has by itself is the fault that this meets."""
    bridge = TextBridge(tiny, spm)
    encode = InnerEncoder(tiny).encode
    joined = encode(b" t" + b"he hi")
    careless = joined[len(encode(b" t")) :]
    assert b"".join(map(tiny.token_bytes, careless)) == b" hi"  # "he" is lost
    right = bridge.to_target(b" t", b"he hi")
    assert b"".join(map(tiny.token_bytes, right)) == b"he hi"
