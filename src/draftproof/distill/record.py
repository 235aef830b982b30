"""Let the target write, and keep what its output layer read.

The recorder is a drafter that never drafts: the engine tells it the hidden states of
every committed token, which is all that a corpus needs. Generation and hidden states
therefore cost one pass per token together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.core.protocols import ProposalRequest, Tokenizer
from draftproof.core.types import Draft
from draftproof.distill.corpus import Corpus, Recording
from draftproof.distill.held_out import split
from draftproof.distill.seeds import HELD_OUT, seed_messages
from draftproof.engine import Engine, EngineCore, GenerateRequest
from draftproof.errors import ConfigError, PromptError, RequestAbortedError

__all__ = ["Recorder", "Wanted", "longest_prompt", "record_answers", "seed_prompt"]

#: Temperatures of recorded answers, by turns: mostly the model's own law, some near its
#: mode, where users decode too.
_TEMPERATURES: Final = (1.0, 1.0, 0.0, 1.0, 0.7)
#: Longest recorded answer, in tokens.
_ANSWER: Final = 192
#: Tokens that are left for what is asked about a text, and for the marks of a chat.
_QUESTION: Final = 96
#: Steps that answers have at least, however short the time.
_LEAST_STEPS: Final = 32
#: Held-out tokens that are enough.
_MEASURED: Final = 3_000
#: Most answers that are held out at once: about as many tokens.
_HELD_OUT: Final = 24

Progress = Callable[[str], None]


class Recorder:
    """A drafter that drafts nothing and keeps hidden states by request."""

    name = "recorder"

    def __init__(self) -> None:
        self._held: dict[str, list[tuple[int, NDArray[np.float32]]]] = {}

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Draft nothing."""
        return [Draft(proposer=self.name) for _ in requests]

    def release(self, request_id: str) -> None:
        """Keep what was recorded: `take` gives it away after the request has ended."""

    def observe(self, request_id: str, start: int, hidden: NDArray[np.float32]) -> None:
        """Keep hidden states."""
        self._held.setdefault(request_id, []).append((start, hidden))

    def take(self, request_id: str, num_prompt: int, token_ids: Sequence[int]) -> Recording | None:
        """Give away the recording of a request that has ended.

        Parameters
        ----------
        request_id : str
            The request.
        num_prompt : int
            Length of its prompt.
        token_ids : sequence of int
            Prompt and answer.

        Returns
        -------
        Recording or None
            From the last token of the prompt on; None where the answer is too short.
        """
        parts: list[NDArray[np.float32]] = []
        position = num_prompt - 1
        for start, hidden in self._held.pop(request_id, []):
            if start + len(hidden) > position >= start:
                parts.append(hidden[position - start :])
                position = start + len(hidden)
        if not parts or position < num_prompt + 1:
            return None
        return Recording.of(token_ids[num_prompt - 1 :], parts)


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much is to be recorded.

    Parameters
    ----------
    num_tokens : int
        Hidden states in the whole corpus.
    seed : int
        Of prompts and answers.
    answers : int
        Answers per shard. One that is held out has a quarter of them, at most 24.
    """

    num_tokens: int
    seed: int = 0
    answers: int = 64


def longest_prompt(context: int) -> int:
    """Return how long a prompt may be that leaves room for an answer.

    Parameters
    ----------
    context : int
        Tokens that the target's context holds.

    Returns
    -------
    int
        Tokens.
    """
    return context - min(_ANSWER, context // 2)


def seed_prompt(
    tokenizer: Tokenizer,
    generator: np.random.Generator,
    *,
    held_out: bool,
    longest: int,
    texts: Sequence[str] = (),
) -> list[int]:
    """Return a built-in prompt, as a chat where the model has a template for one.

    Parameters
    ----------
    tokenizer : Tokenizer
        The target's.
    generator : numpy.random.Generator
        Chooses the prompt.
    held_out : bool
        See `draftproof.distill.seeds.seed_messages`.
    longest : int
        Most tokens. A prompt about a text that has more is not asked; of another one the
        beginning is left out.
    texts : sequence of str
        Texts that the prompt may be about.

    Returns
    -------
    list of int
        Token ids.
    """
    ids = _encoded(tokenizer, seed_messages(generator, held_out=held_out, texts=texts))
    if len(ids) > longest and texts:
        ids = _encoded(tokenizer, seed_messages(generator, held_out=held_out))
    return ids[-longest:]


def _encoded(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> list[int]:
    try:
        return tokenizer.encode_chat(messages)
    except PromptError:
        return tokenizer.encode(messages[-1]["content"] + "\n")


def record_answers(
    engine: Engine,
    recorder: Recorder,
    corpus: Corpus,
    wanted: Wanted,
    *,
    is_over: Callable[[], bool],
    progress: Progress,
) -> int:
    """Let the target answer built-in prompts until the corpus is large enough.

    The first shard answers prompts about topics of their own and is held out. Another one is
    added while these have fewer than 3,000 tokens and less than a twelfth of the others.

    Parameters
    ----------
    engine : Engine
        Its only drafter is the recorder.
    recorder : Recorder
        The engine's drafter.
    corpus : Corpus
        Where shards are added.
    wanted : Wanted
        How much.
    is_over : callable
        Asked after each step; True ends the answers that have begun, and the recording once
        there is a shard to train on and one that is held out.
    progress : callable
        Told one line per shard.

    Returns
    -------
    int
        Hidden states in the corpus.
    """
    held = corpus.num_tokens()
    context = engine.core.target.info.context_length
    longest = longest_prompt(context)
    while True:
        training, measured = split(corpus)
        if training and measured and (held >= wanted.num_tokens or is_over()):
            return held
        # The number of a shard seeds it: an interrupted run goes on as it would have.
        generator = np.random.default_rng([wanted.seed, corpus.next_number()])
        # A short first run leaves little to measure on: more is added to it, nothing exchanged.
        apart = corpus.num_tokens(measured)
        held_out = apart < _MEASURED and apart * HELD_OUT < max(held - apart, 1)
        count = max(2, min(wanted.answers // 4, _HELD_OUT)) if held_out else wanted.answers
        texts = _last_texts(corpus, engine.tokenizer, longest - _QUESTION)
        prompts = [
            seed_prompt(
                engine.tokenizer, generator, held_out=held_out, longest=longest, texts=texts
            )
            for _ in range(count)
        ]
        requests = [
            engine.request(
                prompt,
                max_tokens=min(_ANSWER, context - len(prompt)),
                temperature=_TEMPERATURES[index % len(_TEMPERATURES)],
                seed=int(generator.integers(2**31)),
                request_id=f"answer-{index}",
            )
            for index, prompt in enumerate(prompts)
        ]
        found = _answers(engine.core, recorder, requests, is_over)
        if not found:
            raise ConfigError("the target ends every answer at once; expected text to learn from")
        corpus.add(found, held_out=held_out)
        held += sum(map(len, found))
        kind = "held out" if held_out else "recorded"
        progress(f"{held} of {wanted.num_tokens} tokens, the last {len(found)} answers {kind}")


def _answers(
    core: EngineCore,
    recorder: Recorder,
    requests: Sequence[GenerateRequest],
    is_over: Callable[[], bool],
) -> list[Recording]:
    """Run requests to their ends, or to where the time is over; return what was recorded."""
    names = [core.submit(request) for request in requests]
    found: list[Recording] = []
    num_steps, is_ending = 0, False
    while core.has_work:
        for output in core.step():
            result = output.result
            if result is None:
                continue
            if result.error is not None and not isinstance(result.error, RequestAbortedError):
                raise result.error
            whole = [*result.prompt_ids, *(event.token_id for event in result.tokens)]
            recording = recorder.take(output.request_id, len(result.prompt_ids), whole)
            if recording is not None:
                found.append(recording)
        num_steps += 1
        if num_steps >= _LEAST_STEPS and not is_ending and is_over():
            is_ending = True
            for name in names:
                core.abort(name)
    return found


def _last_texts(corpus: Corpus, tokenizer: Tokenizer, longest: int) -> list[str]:
    """Return the answers of the newest shard that is not held out, cut to some tokens."""
    training, _held = split(corpus)
    if not training or longest < 1:
        return []
    recordings = corpus.read(training[-1]).recordings
    found = (tokenizer.decode(each.token_ids[1 : longest + 1].tolist()) for each in recordings)
    return [text.strip() for text in found if text.strip()]
