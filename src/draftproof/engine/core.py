"""The engine on token ids: submit, step, abort.

`EngineCore` owns the sessions and drives one step at a time. It knows nothing about
prompts as text, threads or files. One step belongs to one thread; ``submit`` and
``abort`` may be called from any.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from draftproof.core.constraint import ConstraintFactory
from draftproof.core.kappa_policy import KappaPolicy
from draftproof.core.protocols import ModelBackend, Proposer, Tokenizer
from draftproof.core.rng import CoinSource, fresh_seed
from draftproof.core.stats import SpecDecodeStats
from draftproof.engine.admission import (
    check_read,
    check_speculation,
    check_vocabulary,
    open_constraint,
)
from draftproof.engine.deterministic import deterministic_limits, require_bit_identity
from draftproof.engine.exactness import (
    SEED_IDENTICAL_RULES,
    exactness_label,
    rule_name,
    seed_of_coins,
)
from draftproof.engine.lengths import DraftLengths
from draftproof.engine.listeners import Listeners
from draftproof.engine.patience import Patience
from draftproof.engine.request import GenerateRequest, GenerateResult, StepOutput
from draftproof.engine.scheduler import Scheduler, SchedulerConfig
from draftproof.engine.session import Session
from draftproof.engine.step import Clock, failure, run_step
from draftproof.engine.stopping import Stopper
from draftproof.errors import ConfigError, PromptError, RequestAbortedError
from draftproof.verify import AllowLossy, Executor, NumpyExecutor

__all__ = ["EngineCore"]


class EngineCore:
    """Continuous batching of ragged requests over one target model.

    Parameters
    ----------
    target : ModelBackend
        The model whose law is kept.
    tokenizer : Tokenizer, optional
        Needed for text and stop strings.
    proposers : sequence of Proposer
        Drafters a request may name.
    default_proposer : str, optional
        Who drafts for requests that name nobody, or ``"none"``; the first when None.
    kappa : int, default 0
        Most drafts per round for requests that do not say.
    kappa_policy : KappaPolicy, optional
        Chooses how far the requests that do not say draft in each round, up to
        ``kappa``, and with which drafter.
    policy_note : str, default ""
        What to tell about the policy in the notes of each request that follows it.
    rule : str or AllowLossy, optional
        Verification rule for requests that do not say. None takes the best exact
        rule for each draft.
    allow_lossy : bool, default False
        Let requests opt in to rules that change the law. An engine is strict otherwise.
    constraints : ConstraintFactory, optional
        Makes the state of a request's grammar; without it grammars are refused.
    executor : Executor, optional
        Judges drafts where the target's logits live; the numpy executor when None.
    eos_token_ids : frozenset of int, optional
        Ids that end a generation; the tokenizer's when None.
    scheduler : SchedulerConfig, optional
        Limits of a pass.
    deterministic : bool, default False
        Run passes only in shapes for which the target's kernels round alike, after a
        test that they do; see `draftproof.engine.deterministic`.
    coin_source : callable, optional
        Makes the coins of a request from its seed and stream. Audits pass one that
        integrates over coins; everyone else leaves it.

    Raises
    ------
    ConfigError
        If drafting is asked for without a drafter, or of a model whose cache cannot
        be rewound.
    """

    def __init__(
        self,
        target: ModelBackend,
        *,
        tokenizer: Tokenizer | None = None,
        proposers: Sequence[Proposer] = (),
        default_proposer: str | None = None,
        kappa: int = 0,
        kappa_policy: KappaPolicy | None = None,
        policy_note: str = "",
        rule: str | AllowLossy | None = None,
        allow_lossy: bool = False,
        constraints: ConstraintFactory | None = None,
        executor: Executor | None = None,
        eos_token_ids: frozenset[int] | None = None,
        scheduler: SchedulerConfig | None = None,
        deterministic: bool = False,
        coin_source: Callable[[int, int], CoinSource] = CoinSource,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.proposers = {proposer.name: proposer for proposer in proposers}
        if len(self.proposers) < len(proposers):
            names = [proposer.name for proposer in proposers]
            raise ConfigError(f"drafters are named {names}; expected a name of its own for each")
        self.default_proposer = default_proposer or next(iter(self.proposers), "none")
        self.clock = Clock()
        self.stats = SpecDecodeStats()
        self.listeners = Listeners()
        if eos_token_ids is None:
            eos_token_ids = tokenizer.eos_token_ids if tokenizer is not None else frozenset()
        self.eos_token_ids = eos_token_ids
        self._kappa = kappa
        self._lengths = DraftLengths.of(kappa_policy, self.clock, self.proposers)
        self._patience = Patience(self.clock, acts_on_time=not deterministic)
        self._policy_note = policy_note
        self._rule = rule
        self._allow_lossy = allow_lossy
        self._constraints = constraints
        self._executor = executor or NumpyExecutor()
        self._coin_source = coin_source
        self._deterministic = deterministic
        limits = scheduler or SchedulerConfig()
        if deterministic:
            limits = deterministic_limits(limits, target.info.page_size)
        self._scheduler = Scheduler(target, limits, self._lengths)
        self._arrivals = count()
        # What submit and abort leave for the thread that steps.
        self._registration = threading.RLock()
        self._inbox: deque[Session] = deque()
        self._to_abort: deque[Session] = deque()
        self._sessions: dict[str, Session] = {}
        self._results: dict[str, GenerateResult] = {}
        self._check_speculation(kappa, self.default_proposer, rule)
        if deterministic:
            require_bit_identity(target)

    @property
    def has_work(self) -> bool:
        """Whether any request is queued or running."""
        return bool(self._sessions)

    @property
    def chooses_lengths(self) -> bool:
        """Whether a policy chooses how far requests draft that do not say."""
        return self._lengths is not None

    @property
    def num_preemptions(self) -> int:
        """How often a request gave its pages back to an older one."""
        return self._scheduler.num_preemptions

    def submit(self, request: GenerateRequest) -> str:
        """Queue a request.

        Parameters
        ----------
        request : GenerateRequest
            The request.

        Returns
        -------
        str
            Its id.

        Raises
        ------
        ConfigError
            If it names an unknown drafter or rule, a request id that is in use, or a
            token outside the vocabulary, or has a prediction that nobody would read.
        PromptError
            If the prompt leaves no room for one token, or holds a token outside the
            vocabulary.
        """
        info = self.target.info
        if len(request.prompt_ids) >= info.context_length:
            raise PromptError(
                f"the prompt has {len(request.prompt_ids)} tokens; the context of "
                f"{info.name} is {info.context_length} and one must stay free"
            )
        check_vocabulary(request, info.vocab_size)
        kappa = self._most(request)
        proposer = request.proposer or self.default_proposer
        rule = request.rule or self._rule
        choosable = self._choosable(request, kappa)
        tenant_note = check_read(request, kappa, choosable or (proposer,), self.proposers)
        self._check_speculation(kappa, proposer, rule)
        constraint = open_constraint(request, rule, self._constraints)
        arrival = next(self._arrivals)
        params = request.params
        if params.min_tokens:
            ends = frozenset(request.stop_token_ids)
            ends |= frozenset() if request.ignore_eos else self.eos_token_ids
            params = replace(params, eos_token_ids=params.eos_token_ids | ends)
        named_in_vain = request.proposer is not None and request.kappa is None and not kappa
        request = replace(
            request,
            request_id=request.request_id or self._made_up_id(arrival),
            params=params,
            proposer=proposer,
            rule=rule,
        )
        request = self.listeners.traced(request)
        limit = min(len(request.prompt_ids) + request.max_tokens, info.context_length)
        seed = fresh_seed() if request.seed is None else request.seed
        # One lock from the choice of coins on: nothing may be forgotten in between.
        with self._registration:
            session = Session(
                request,
                seed=seed,
                coins=self._coins(request, seed, kappa, is_chosen=bool(choosable)),
                arrival=arrival,
                stopper=Stopper(request, self.tokenizer, self.eos_token_ids, limit),
                kappa=kappa,
                max_total_tokens=limit,
                constraint=constraint,
                choosable=choosable,
            )
            if named_in_vain:
                session.add_note(f"drafter {proposer} is not used: num_speculative_tokens is 0")
            if tenant_note:
                session.add_note(tenant_note)
            if choosable and self._policy_note:
                session.add_note(self._policy_note)
            self._register(session)
        return request.request_id

    def abort(self, request_id: str) -> None:
        """End a request at the next step; unknown or finished ids are ignored."""
        session = self._sessions.get(request_id)
        if session is not None:
            self._to_abort.append(session)

    def step(self) -> list[StepOutput]:
        """Run one step.

        Returns
        -------
        list of StepOutput
            What each request got; a request's last output has a finish reason.
        """
        outputs = self.reap()
        plans, failed = self._scheduler.plan()
        outputs += [self._fold(failure(session, error)) for session, error in failed]
        if plans:
            ran = run_step(
                plans, self.target, self.proposers, self._executor, self.clock, self._patience
            )
            outputs += [self._fold(output) for output in ran]
        return outputs

    def reap(self) -> list[StepOutput]:
        """End aborted requests now and free what they hold; must not run inside a step."""
        # Aborts first: whatever they name is registered, so the inbox cannot hold it later.
        aborted = [self._to_abort.popleft() for _ in range(len(self._to_abort))]
        with self._registration:
            arrived = [self._inbox.popleft() for _ in range(len(self._inbox))]
        for session in arrived:
            self._scheduler.add(session)
        outputs: list[StepOutput] = []
        for session in aborted:
            if self._sessions.get(session.request_id) is session:
                error = RequestAbortedError(f"request {session.request_id} was aborted")
                output = StepOutput(session.request_id, finish_reason="abort", error=error)
                outputs.append(self._fold(output))
        return outputs

    def run(self) -> dict[str, GenerateResult]:
        """Step until nothing is left to do.

        Returns
        -------
        dict of str to GenerateResult
            Every request that ended meanwhile, by id.
        """
        results: dict[str, GenerateResult] = {}
        while self.has_work:
            for output in self.step():
                if output.result is not None:
                    results[output.request_id] = output.result
        return results

    def _fold(self, output: StepOutput) -> StepOutput:
        """Add an output to its request's result, and tell who listens."""
        folded = self._folded(output)
        self.listeners.on_output(folded)
        return folded

    def _folded(self, output: StepOutput) -> StepOutput:
        """Add an output to its request's result; free everything when it was the last."""
        result = self._results[output.request_id]
        result.tokens.extend(output.tokens)
        result.text += output.text
        if output.trace is not None:
            result.traces.append(output.trace)
        if output.record is not None:
            result.records.append(output.record)
            self.stats.add(output.record)
            if self._lengths is not None:
                self._lengths.observe(self._sessions[output.request_id], output.record)
        if output.finish_reason is None:
            return output
        result.finish_reason = output.finish_reason
        result.stop_reason = output.stop_reason
        result.error = output.error
        session = self._sessions.pop(output.request_id)
        self._scheduler.remove(session)
        self._patience.release(output.request_id)
        for name, proposer in self.proposers.items():
            try:
                proposer.release(output.request_id)
            except Exception as error:  # noqa: BLE001  a drafter may fail; the result stands
                session.add_note(f"drafter {name} failed to release the request: {error!r}")
        if self._lengths is not None:
            with self._registration:
                self._lengths.release(session, is_last=not self._sessions)
        session.close_notes()
        if session.request.rule is None:
            result.rule = "+".join(sorted(session.rules)) or "none"
        return replace(output, result=self._results.pop(output.request_id))

    def _most(self, request: GenerateRequest) -> int:
        """Return the most drafts of a request: its number, else the engine's, within its limit."""
        kappa = self._kappa if request.kappa is None else request.kappa
        return kappa if request.max_kappa is None else min(kappa, request.max_kappa)

    def _choosable(self, request: GenerateRequest, kappa: int) -> tuple[str, ...]:
        """Return the drafters a policy chooses among; none where the request says how far."""
        if self._lengths is None or request.kappa is not None or not kappa:
            return ()
        return tuple(self.proposers) if request.proposer is None else (request.proposer,)

    def _coins(
        self, request: GenerateRequest, seed: int, kappa: int, *, is_chosen: bool
    ) -> CoinSource:
        """Return the coins of a request; see `DraftLengths.own_seed` for those of a policy."""
        own = seed_of_coins(request, seed, kappa)
        if self._lengths is not None and is_chosen and request.rule not in SEED_IDENTICAL_RULES:
            own = self._lengths.own_seed(own, request.stream)
        return self._coin_source(own, request.stream)

    def _made_up_id(self, number: int) -> str:
        """Return an id that no running request has taken."""
        while (name := f"request-{number}") in self._sessions:
            number = next(self._arrivals)
        return name

    def _register(self, session: Session) -> None:
        """Hand a new session to the thread that steps."""
        request = session.request
        with self._registration:
            if request.request_id in self._sessions:
                raise ConfigError(
                    f"request id {request.request_id!r} is in use; expected a new one"
                )
            self._results[request.request_id] = GenerateResult(
                request_id=request.request_id,
                prompt_ids=request.prompt_ids,
                seed=session.seed,
                exactness=exactness_label(
                    request.params,
                    request.rule,
                    self.target.info.vocab_size,
                    deterministic=self._deterministic,
                ),
                rule=rule_name(request.rule),
                stats=session.stats,
                notes=session.notes,
            )
            self._sessions[request.request_id] = session
            self._inbox.append(session)
            self.listeners.on_request(request)

    def _check_speculation(self, kappa: int, proposer: str, rule: str | AllowLossy | None) -> None:
        check_speculation(
            kappa,
            proposer,
            rule,
            target=self.target.info,
            proposers=tuple(self.proposers),
            allow_lossy=self._allow_lossy,
            deterministic=self._deterministic,
        )
