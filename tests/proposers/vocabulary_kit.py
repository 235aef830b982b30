"""Two small vocabularies of bytes, models over them, and what joins them."""

from __future__ import annotations

import numpy as np

from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.text import TextBridge


class Pieces:
    """A tokenizer that takes the longest piece that fits; the last ids end a text."""

    def __init__(self, pieces, *, start=(), ends=1):
        self.pieces = [*pieces, *[b""] * ends]
        self.start = list(start)
        self.vocab_size = len(self.pieces)
        self.eos_token_ids = frozenset(range(len(pieces), self.vocab_size))

    def encode(self, text, *, add_special=True):
        data, ids = text.encode(), []
        while data:
            fits = [i for i, piece in enumerate(self.pieces) if piece and data.startswith(piece)]
            if not fits:
                data = data[1:]  # dropped, as some tokenizers do
                continue
            ids.append(max(fits, key=lambda i: len(self.pieces[i])))
            data = data[len(self.pieces[ids[-1]]) :]
        return [*self.start, *ids] if add_special else ids

    def encode_chat(self, messages):
        raise NotImplementedError

    def token_bytes(self, token_id):
        return self.pieces[token_id]

    def decode(self, token_ids):
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")


#: The target's tokens: a, b, ab. The drafter's: b, a, aa, c, and begin-of-text. They share
#: a and b, each under the id that the other has for its neighbour; ab is two tokens to the
#: drafter, aa one, and c is none to the target.
TARGET = Pieces([b"a", b"b", b"ab"], ends=0)
DRAFT = Pieces([b"b", b"a", b"aa", b"c"], start=[4], ends=1)


def bridge():
    return TextBridge(TARGET, DRAFT)


def shared():
    return bridge().shared(3, 5)


def reference(table, prompt, horizon):
    """Joint law of a text, from the very float32 logits that the table model gives."""
    law, params = {(): 1.0}, SamplingParams()
    for _ in range(horizon):
        longer = {}
        for text, prob in law.items():
            context = np.array([*prompt, *text])
            with np.errstate(divide="ignore"):
                logits = np.log(table.probs(context, np.arange(len(context)))).astype(np.float32)
            row = target_law(logits, params, History()).dense()
            longer |= {(*text, token): prob * p for token, p in enumerate(row.tolist()) if p > 0}
        law = longer
    return law
