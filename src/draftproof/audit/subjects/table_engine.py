"""The real engine over tables: a model that costs nothing, so that the path is tested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.evidence_file import ModelRows
from draftproof.audit.fixtures import FIXTURE_HORIZON, FIXTURE_KAPPA, fixture_tables
from draftproof.audit.rounds import Prefix, Tables, plain_law
from draftproof.audit.subjects.engine_core import EngineSubject
from draftproof.core.law import Law
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.core.types import Draft, FlatBatch, ModelInfo
from draftproof.engine import EngineCore, SchedulerConfig
from draftproof.errors import ConfigError, InvariantError
from draftproof.evidence import JointLaw
from draftproof.verify import Executor, NumpyExecutor

if TYPE_CHECKING:
    from draftproof.testing.faults import EngineFault

__all__ = ["PROMPT", "LawDrafter", "PrefixBackend", "TableRecipe", "planted", "rule_of"]

#: The prompt, and the token that certainly follows it; the tables begin behind both.
PROMPT: Prefix = (0,)
_LEAD: Prefix = (0,)
_NUM_GIVEN = len(PROMPT) + len(_LEAD)
#: Requests that share a pass: the scheduler looks at pairs of them, so not too many.
_MAX_ROWS = 24


class PrefixBackend:
    """A model whose law is a function of the text; implements ``ModelBackend``.

    Rows are computed once for each text and looked up afterwards.

    Parameters
    ----------
    vocab_size : int
        Number of token ids.
    law : callable of tuple of int
        The law after a text, prompt included, as V probabilities.
    """

    def __init__(self, vocab_size: int, law: Callable[[Prefix], NDArray[np.float64]]) -> None:
        self._info = ModelInfo("table", "prefix-table", vocab_size, 1024, precision="f64")
        self._law = law
        self._rows: dict[Prefix, NDArray[np.float32]] = {}
        self._held: dict[int, list[int]] = {}
        self._names = count()

    @property
    def info(self) -> ModelInfo:
        """What the model is."""
        return self._info

    def open(self, token_ids: Sequence[int] = ()) -> int:
        """Start a sequence; nothing is shared between sequences."""
        del token_ids
        name = next(self._names)
        self._held[name] = []
        return name

    def fork(self, sequence_id: int) -> int:
        """Copy a sequence."""
        name = next(self._names)
        self._held[name] = self._held[sequence_id].copy()
        return name

    def length(self, sequence_id: int) -> int:
        """Return the number of tokens held."""
        return len(self._held[sequence_id])

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """There is always room."""
        del sequence_id, num_tokens
        return True

    def forward(self, batch: FlatBatch) -> NDArray[np.float32]:
        """Append the rows and return log probabilities of the wanted positions.

        Parameters
        ----------
        batch : FlatBatch
            Chains that start at the cached length.

        Returns
        -------
        ndarray of float32, shape (M, V)
            A new array.

        Raises
        ------
        InvariantError
            If a row starts elsewhere.
        """
        wanted = set(batch.logits_rows.tolist())
        begins, tokens = batch.row_begins.tolist(), batch.token_ids.tolist()
        starts = batch.positions[batch.row_begins[:-1]].tolist()
        rows = []
        for index, sequence_id in enumerate(batch.sequence_ids):
            held = self._held[sequence_id]
            if starts[index] != len(held):
                raise InvariantError(f"row at {starts[index]}, {len(held)} tokens are held")
            for at in range(begins[index], begins[index + 1]):
                held.append(tokens[at])
                if at in wanted:
                    rows.append(self._row(tuple(held)))
        return np.array(rows, dtype=np.float32)

    def _row(self, text: Prefix) -> NDArray[np.float32]:
        row = self._rows.get(text)
        if row is None:
            with np.errstate(divide="ignore"):
                row = np.log(self._law(text)).astype(np.float32)
            self._rows[text] = row
        return row

    def truncate(self, sequence_id: int, length: int, keep: Sequence[int] = ()) -> None:
        """Drop the tokens from a position on."""
        if keep:
            raise InvariantError(f"slots {tuple(keep)} to keep: this model has no branches")
        del self._held[sequence_id][length:]

    def commit(self, sequence_id: int) -> None:
        """Nothing is shared, so nothing becomes final."""

    def close(self, sequence_id: int) -> None:
        """Forget a sequence."""
        del self._held[sequence_id]


class LawDrafter:
    """Draws each draft from the drafter's table with its own coin.

    Parameters
    ----------
    draft : callable of tuple of int
        The draft law after a text behind the prompt.
    """

    name = "table"

    def __init__(self, draft: Callable[[Prefix], Law]) -> None:
        self._draft = draft

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Draft for every row as many tokens as it may have.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows.

        Returns
        -------
        list of Draft
            Each with the laws it was drawn from.
        """
        return [self._chain(request) for request in requests]

    def _chain(self, request: ProposalRequest) -> Draft:
        tokens = tuple(request.token_ids)[_NUM_GIVEN:]
        begin = len(tokens)
        laws = []
        for i in range(request.kappa):
            law = self._draft(tokens)
            if request.coupled:
                token = law.race(request.coins.noise(i, law.vocab_size))
            else:
                token = law.draw(request.coins.draft(i))
            laws.append(law)
            tokens += (token,)
        return Draft(tokens[begin:], tuple(laws), self.name)

    def release(self, request_id: str) -> None:
        """Nothing is kept for a request."""


@dataclass(frozen=True, slots=True)
class TableRecipe:
    """How to make the engine over the shipped tables, in this process or another.

    Parameters
    ----------
    rule : str, default "standard"
        The verification rule.
    kappa : int, default 3
        Most drafts of a round.
    executor : callable, default NumpyExecutor
        Makes what judges the drafts; a wrong one plants a fault.
    fault : str, default ""
        Name of an entry of `draftproof.testing.faults.ENGINE_FAULTS` to plant.
    """

    rule: str = "standard"
    kappa: int = FIXTURE_KAPPA
    executor: Callable[[], Executor] = NumpyExecutor
    fault: str = ""

    def __post_init__(self) -> None:
        """Refuse an unknown fault, and one of another rule, before work is shared out."""
        if self.fault and rule_of(self.fault) != self.rule:
            raise ConfigError(
                f"fault {self.fault!r} with the rule {self.rule!r}: expected "
                f"{rule_of(self.fault)!r}, of which it is a fault"
            )

    def __call__(self) -> EngineSubject:
        """Make the subject."""
        tables = fixture_tables()

        def law(text: Prefix) -> NDArray[np.float64]:
            if len(text) < _NUM_GIVEN:
                certain = np.zeros(tables.vocab_size)
                certain[_LEAD[0]] = 1.0
                return certain
            return tables.target(text[_NUM_GIVEN:]).dense()

        core = EngineCore(
            PrefixBackend(tables.vocab_size, law),
            proposers=[LawDrafter(tables.draft)],
            kappa=self.kappa,
            rule=self.rule,
            executor=planted(self.fault) if self.fault else self.executor(),
            scheduler=SchedulerConfig(max_rows=_MAX_ROWS),
        )
        return EngineSubject(core, num_lead=len(_LEAD))

    @property
    def tables(self) -> Tables:
        """Target and drafter, as laws of the text behind the certain token."""
        return fixture_tables()

    def law(self, horizon: int = FIXTURE_HORIZON) -> JointLaw:
        """Return the joint law that plain decoding has."""
        return JointLaw.from_mapping(plain_law(self.tables, horizon), horizon)

    def model(self, horizon: int = FIXTURE_HORIZON) -> ModelRows:
        """Return the rows by which faults are told apart."""
        return ModelRows.from_tables(self.tables, self.kappa, horizon)


def planted(name: str) -> Executor:
    """Return the executor of a fault of the engine.

    Parameters
    ----------
    name : str
        Name of an entry of `draftproof.testing.faults.ENGINE_FAULTS`.

    Returns
    -------
    Executor
        Judges wrongly.

    Raises
    ------
    ConfigError
        If there is no such fault, or it sits in another part than the executor.
    """
    fault = _fault_of_a_rule(name)
    return fault.plant(fault.scene.parts(CoinSource)).executor


def rule_of(name: str) -> str:
    """Return the rule that a fault of the engine is a fault of.

    Parameters
    ----------
    name : str
        See `planted`.

    Returns
    -------
    str
        The rule that its executor follows, but for the defect.

    Raises
    ------
    ConfigError
        If there is no such fault, or it sits in another part than the executor.
    """
    return _fault_of_a_rule(name).scene.rule or "standard"


def _fault_of_a_rule(name: str) -> EngineFault:
    from draftproof.testing.faults import ENGINE_FAULTS

    rules = {fault.name: fault for fault in ENGINE_FAULTS if fault.where in ("rule", "laws")}
    if name not in rules:
        raise ConfigError(f"fault {name!r}: expected one of {', '.join(sorted(rules))}")
    return rules[name]
