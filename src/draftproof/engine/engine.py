"""The engine people use: prompts in, text out, whole, streamed or asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from draftproof.core.constraint import GrammarSpec
from draftproof.core.policy import SamplingParams
from draftproof.core.protocols import Tokenizer
from draftproof.core.rng import fresh_seed
from draftproof.engine.core import EngineCore
from draftproof.engine.inputs import Prompt, listed, prediction_ids, prompt_ids
from draftproof.engine.request import (
    GenerateRequest,
    GenerateResult,
    StepOutput,
    StopCriterion,
    check_whole,
)
from draftproof.engine.turns import Turns
from draftproof.errors import ConfigError
from draftproof.verify import AllowLossy

__all__ = ["Engine", "Prompt"]


class Engine:
    """Generate text with one target model and any of its drafters.

    Calls may come from several threads and tasks at once; their requests share the
    passes of the model; see `draftproof.engine.turns` for who runs the steps.

    Parameters
    ----------
    core : EngineCore
        The engine on token ids.
    close : callable, optional
        Called once by `close`, to release models.

    Examples
    --------
    >>> import draftproof
    >>> engine = draftproof.load("smollm2")                       # doctest: +SKIP
    >>> engine.generate("The capital of France is", max_tokens=8).text   # doctest: +SKIP
    """

    def __init__(self, core: EngineCore, *, close: Callable[[], None] | None = None) -> None:
        self.core = core
        self._close = close
        self._is_closed = False
        self._turns = Turns(core)

    def __enter__(self) -> Engine:
        """Use the engine in a ``with`` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the engine."""
        self.close()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the target.

        Raises
        ------
        ConfigError
            If the model has none.
        """
        if self.core.tokenizer is None:
            raise ConfigError("this model has no tokenizer; pass token ids as the prompt")
        return self.core.tokenizer

    def request(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: dict[int, float] | None = None,
        allowed_token_ids: Sequence[int] | None = None,
        banned_token_ids: Sequence[int] = (),
        min_tokens: int = 0,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        stop_criterion: StopCriterion | None = None,
        ignore_eos: bool = False,
        seed: int | None = None,
        stream: int = 0,
        logprobs: int | None = None,
        logprobs_mode: str = "raw",
        grammar: GrammarSpec | None = None,
        prediction: str | Sequence[int] = (),
        tenant: str = "",
        num_speculative_tokens: int | None = None,
        max_speculative_tokens: int | None = None,
        proposer: str | None = None,
        rule: str | AllowLossy | None = None,
        request_id: str = "",
        trace: bool = False,
    ) -> GenerateRequest:
        """Build a request.

        Parameters
        ----------
        prompt : str, sequence of int or sequence of dict
            Text, token ids, or a chat of ``{"role": ..., "content": ...}`` turns.
        max_tokens : int, default 128
            Most tokens to generate.
        temperature : float, default 0.0
            0 is greedy decoding.
        top_k, top_p, min_p : int, float, float
            Truncation; 0, 1 and 0 switch them off.
        repetition_penalty, presence_penalty, frequency_penalty : float
            Penalties on tokens that occurred; 1, 0 and 0 switch them off.
        logit_bias : dict of int to float, optional
            Added to the logits of these ids.
        allowed_token_ids : sequence of int, optional
            Only these may be generated.
        banned_token_ids : sequence of int
            These may not.
        min_tokens : int, default 0
            No end before this many tokens.
        stop : str or sequence of str
            Strings that end the generation.
        stop_token_ids : sequence of int
            Ids that do.
        stop_criterion : callable, optional
            A rule of yours, asked after every token with the generated ids.
        ignore_eos : bool, default False
            Treat EOS as an ordinary token.
        seed : int, optional
            Same seed, same request, same text; None takes a fresh one.
        stream : int, default 0
            Index of a completion among several of one seed.
        logprobs : int, optional
            Report log probabilities, and of this many best tokens.
        logprobs_mode : {"raw", "processed"}, default "raw"
            The model's own, or under the policy of the position.
        grammar : GrammarSpec, optional
            What the whole output must match.
        prediction : str or sequence of int
            What the output is expected to be, for a drafter that reads it
            (``"prediction"``, ``"hybrid"``); refused with others.
        tenant : str, default ""
            Whose request this is; drafters that share earlier outputs do so within a tenant
            only. A note tells where none does.
        num_speculative_tokens : int, optional
            Most drafts per round; 0 is plain decoding; None takes the engine's.
        max_speculative_tokens : int, optional
            Never more than this, also where the engine chooses.
        proposer : str, optional
            One of the engine's drafters.
        rule : str or AllowLossy, optional
            Verification rule.
        request_id : str, default ""
            Name of the request.
        trace : bool, default False
            Describe every round in full, in the outputs and in the result.

        Returns
        -------
        GenerateRequest
            The validated request.

        Raises
        ------
        ConfigError
            If a value cannot be honoured.
        """
        params = SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias=dict(logit_bias or {}),
            allowed_token_ids=(
                None
                if allowed_token_ids is None
                else listed("allowed_token_ids", allowed_token_ids)
            ),
            banned_token_ids=listed("banned_token_ids", banned_token_ids),
            min_tokens=min_tokens,
        )
        return GenerateRequest(
            prompt_ids=prompt_ids(prompt, lambda: self.tokenizer),
            params=params,
            max_tokens=max_tokens,
            stop=(stop,) if isinstance(stop, str) else listed("stop", stop),
            stop_token_ids=listed("stop_token_ids", stop_token_ids),
            stop_criterion=stop_criterion,
            ignore_eos=ignore_eos,
            seed=seed,
            stream=stream,
            kappa=num_speculative_tokens,
            max_kappa=max_speculative_tokens,
            proposer=proposer,
            rule=rule,
            grammar=grammar,
            prediction=prediction_ids(prediction, lambda: self.tokenizer),
            tenant=tenant,
            logprobs=logprobs,
            logprobs_mode=logprobs_mode,
            request_id=request_id,
            trace=trace,
        )

    def generate(self, prompt: Prompt, **options: Any) -> GenerateResult:
        """Generate for one prompt and wait.

        Parameters
        ----------
        prompt : str, sequence of int or sequence of dict
            Text, token ids or a chat.
        **options
            As for `request`.

        Returns
        -------
        GenerateResult
            Text, tokens with their sources, rounds and counters.

        Raises
        ------
        DraftproofError
            If the request failed.
        """
        return self.generate_many([self.request(prompt, **options)])[0]

    def generate_n(self, prompt: Prompt, n: int, **options: Any) -> list[GenerateResult]:
        """Generate several completions of one prompt in shared passes and wait.

        Parameters
        ----------
        prompt : str, sequence of int or sequence of dict
            Text, token ids or a chat.
        n : int
            How many; at least 1.
        **options
            As for `request`, without ``stream`` and ``request_id``. Completion ``i`` is
            what ``generate(prompt, stream=i)`` gives at the same seed; without a seed
            one fresh seed serves all.

        Returns
        -------
        list of GenerateResult
            Completion 0 first.

        Raises
        ------
        ConfigError
            If ``n`` is below 1.
        DraftproofError
            If a request failed.
        """
        check_whole("n", n, 1)
        if "stream" in options:
            raise ConfigError(f"stream is {options['stream']!r}; expected none beside n")
        seed = options.pop("seed", None)
        seed = fresh_seed() if seed is None else seed
        first = self.request(prompt, seed=seed, **options)
        return self.generate_many([replace(first, stream=index) for index in range(n)])

    def generate_many(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        """Generate for many requests in shared passes and wait for all.

        Parameters
        ----------
        requests : sequence of GenerateRequest
            Requests made by `request`.

        Returns
        -------
        list of GenerateResult
            In the order of the requests.

        Raises
        ------
        DraftproofError
            The error of the first request that failed, after all have ended.
        """
        ids: list[str] = []
        try:
            for request in requests:
                ids.append(self._submit(request, keep=1))
            results = [self._turns.wait(request_id) for request_id in ids]
        finally:
            for request_id in ids:
                self._turns.forget(request_id)
        for result in results:
            if result.error is not None:
                raise result.error
        return results

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[StepOutput]:
        """Generate for one prompt, yielding what each step committed.

        Leaving the loop early aborts the request.

        Parameters
        ----------
        prompt : str, sequence of int or sequence of dict
            Text, token ids or a chat.
        **options
            As for `request`.

        Yields
        ------
        StepOutput
            New tokens and text; the last one has a finish reason.

        Raises
        ------
        DraftproofError
            If the request failed.
        """
        request_id = self._submit(self.request(prompt, **options))
        try:
            finished = False
            while not finished:
                output = self._turns.next_output(request_id)
                finished = output.finish_reason is not None
                yield _raise_failed(output)
        finally:
            self._turns.forget(request_id)

    async def astream(self, prompt: Prompt, **options: Any) -> AsyncIterator[StepOutput]:
        """Generate as `stream` does, without blocking the event loop.

        Parameters
        ----------
        prompt : str, sequence of int or sequence of dict
            Text, token ids or a chat.
        **options
            As for `request`.

        Yields
        ------
        StepOutput
            New tokens and text; the last one has a finish reason.

        Raises
        ------
        DraftproofError
            If the request failed.
        """
        request_id = self._submit(self.request(prompt, **options))
        try:
            finished = False
            while not finished:
                output = await asyncio.to_thread(self._turns.next_output, request_id)
                finished = output.finish_reason is not None
                yield _raise_failed(output)
        finally:
            self._turns.forget(request_id)

    def close(self) -> None:
        """Release the models; later requests are refused."""
        self._is_closed = True
        if self._close is not None:
            self._close()
            self._close = None

    def _submit(self, request: GenerateRequest, keep: int | None = None) -> str:
        if self._is_closed:
            raise ConfigError("the engine is closed; expected no request after close()")
        return self._turns.submit(request, keep)


def _raise_failed(output: StepOutput) -> StepOutput:
    """Return the output, or raise the error it carries."""
    if output.error is not None:
        raise output.error
    return output
