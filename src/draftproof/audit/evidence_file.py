"""What an audit keeps: the plan, the reference laws, the counts and the round logs.

Everything a verdict says is a function of these, so a certificate can be checked by
whoever holds it, without the decoder and without the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from draftproof.audit.acceptance import RoundLog, check_whole
from draftproof.audit.draft_totals import DraftTotals
from draftproof.audit.draw_order import DrawOrder
from draftproof.audit.placed_rounds import samples_from_json, samples_to_json
from draftproof.audit.rounds import Prefix, Tables
from draftproof.audit.table_law import TableLaw, items_of
from draftproof.errors import ConfigError, InvariantError
from draftproof.evidence.fixed_budget import check_alpha
from draftproof.evidence.joint_law import Counts, JointLaw
from draftproof.evidence.localise import RoundSample

__all__ = ["SCHEMA", "Evidence", "ModelRows", "Plan", "PromptEvidence", "shown"]

#: Name and version of the stored form.
SCHEMA = "draftproof-audit/1"


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided before the first draw.

    Parameters
    ----------
    alpha : float
        False-alarm rate of the whole audit.
    tv : float
        The bias that must be detectable before "exact" is said.
    power : float
        The probability with which it must be.
    calibration_samples : int
        Null samples of each calibration.
    seed : int
        Seed of all simulations.
    """

    alpha: float = 1e-3
    tv: float = 0.01
    power: float = 0.99
    calibration_samples: int = 100_000
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse rates that are none."""
        check_alpha(self.alpha)
        if not 0 < self.tv < 1 or not self.alpha < self.power < 1:
            msg = f"tv {self.tv}, power {self.power}: expected a TV in (0, 1), a power below 1"
            raise ConfigError(msg)
        if self.calibration_samples * self.alpha < 4:
            msg = f"{self.calibration_samples} calibration samples at alpha {self.alpha:g}"
            raise ConfigError(f"{msg}: expected 4 / alpha or more")


@dataclass(frozen=True, slots=True)
class ModelRows:
    """Target and drafter of one prompt, as rows of probabilities.

    Parameters
    ----------
    vocab_size : int
        Number of token ids.
    kappa : int
        Most drafts of a round.
    target : mapping of tuple of int to mapping of int to float
        The target's law after each prefix.
    draft : mapping of tuple of int to mapping of int to float
        The drafter's law after each prefix.
    max_speculative_rounds : int, optional
        See `draftproof.audit.rounds.decode_law`.
    """

    vocab_size: int
    kappa: int
    target: Mapping[Prefix, Mapping[int, float]]
    draft: Mapping[Prefix, Mapping[int, float]]
    max_speculative_rounds: int | None = None

    @classmethod
    def from_tables(
        cls, tables: Tables, kappa: int, horizon: int, max_speculative_rounds: int | None = None
    ) -> ModelRows:
        """Return the rows of all texts that can be reached within a horizon.

        Parameters
        ----------
        tables : Tables
            Target and drafter.
        kappa : int
            Most drafts of a round.
        horizon : int
            Tokens of the text.
        max_speculative_rounds : int, optional
            See `draftproof.audit.rounds.decode_law`.

        Returns
        -------
        ModelRows
            Prefixes of possible target and draft tokens, mixed.
        """
        target: dict[Prefix, dict[int, float]] = {}
        draft: dict[Prefix, dict[int, float]] = {}
        level: list[Prefix] = [()]
        for _ in range(horizon):
            below: list[Prefix] = []
            for prefix in level:
                p, q = tables.target(prefix), tables.draft(prefix)
                target[prefix] = {t: float(prob) for t, prob in items_of(p) if prob > 0}
                draft[prefix] = {t: float(prob) for t, prob in items_of(q) if prob > 0}
                below += [(*prefix, t) for t in sorted({*target[prefix], *draft[prefix]})]
            level = below
        return cls(tables.vocab_size, kappa, target, draft, max_speculative_rounds)

    def tables(self, eos_token_ids: frozenset[int] = frozenset()) -> Tables:
        """Return the tables; beyond the known texts every law is certain of token 0.

        Parameters
        ----------
        eos_token_ids : frozenset of int
            Tokens that end the text.

        Returns
        -------
        Tables
            For enumeration.
        """
        beyond = TableLaw({0: 1.0}, self.vocab_size)
        target = {prefix: TableLaw(row, self.vocab_size) for prefix, row in self.target.items()}
        draft = {prefix: TableLaw(row, self.vocab_size) for prefix, row in self.draft.items()}
        return Tables(
            "rows",
            self.vocab_size,
            lambda prefix: target.get(prefix, beyond),
            lambda prefix: draft.get(prefix, beyond),
            eos_token_ids,
        )


@dataclass(frozen=True, slots=True)
class PromptEvidence:
    """One prompt.

    Parameters
    ----------
    name : str
        Name shown to people.
    law : JointLaw
        The reference.
    counts : Counts
        Draws by outcome.
    rounds : RoundLog, optional
        Rounds, where the decoder reports them.
    model : ModelRows, optional
        Target and drafter, where faults shall be told apart.
    serial : tuple of int, optional
        Slots of the first draws in order of request (-1 for an impossible one), of which
        neighbours are compared: certificates from before ``order`` hold it.
    totals : DraftTotals, optional
        Sums of the drafts, where the decoder reports those and no rounds, or says in how many
        draws it drafted.
    samples : tuple of (RoundSample, int)
        Drafting rounds with their tokens, and how often each was played, where the decoder
        says of which draw they were; see `draftproof.audit.placed_rounds`.
    num_overlong : int
        Draws that went on behind an end token or past the horizon; what was behind is not
        counted.
    order : DrawOrder, optional
        Slots of all draws in order of request, the number of slots for an impossible
        one, where their independence shall be tested.
    """

    name: str
    law: JointLaw
    counts: Counts
    rounds: RoundLog | None = None
    model: ModelRows | None = None
    serial: tuple[int, ...] | None = None
    totals: DraftTotals | None = None
    samples: tuple[tuple[RoundSample, int], ...] = ()
    num_overlong: int = 0
    order: DrawOrder | None = None

    def __post_init__(self) -> None:
        """Refuse an order that is not of the counts, and stops beyond one a draw."""
        num_cut, num_draws = sum(self.rounds.cut) if self.rounds else 0, self.counts.num_draws
        if num_cut > num_draws:
            # What is cut is not held against the rule: a decoder could hide everything there.
            raise ConfigError(f"{num_cut} rounds cut in {num_draws} draws: expected one a draw")
        if self.order is not None:
            self.order.check([*self.counts.cells.tolist(), self.counts.num_impossible])


@dataclass(frozen=True, slots=True)
class Evidence:
    """All of one audit.

    Parameters
    ----------
    subject : str
        The decoder, with version and command.
    plan : Plan
        What was decided beforehand.
    prompts : tuple of PromptEvidence
        At least one.
    rule : str
        The rule the decoder claims, ``"standard"`` or ``"block"``; empty where unknown.
    expects_speculation : bool
        Whether a decoder whose drafts do not show is not called exact; see
        `draftproof.audit.shown_drafts`.
    notes : mapping of str to str
        Whatever shall travel with the certificate.
    assumes_speculation : bool, default False
        Whether somebody stated that it speculates; then drafts need not show.
    """

    subject: str
    plan: Plan
    prompts: tuple[PromptEvidence, ...]
    rule: str = ""
    expects_speculation: bool = True
    notes: Mapping[str, str] = field(default_factory=dict)
    assumes_speculation: bool = False

    def __post_init__(self) -> None:
        """Refuse an audit of nothing, and a rule without a known optimum."""
        if self.expects_speculation and self.assumes_speculation:
            raise ConfigError("speculation both expected and assumed: expected one at most")
        if not self.prompts:
            raise ConfigError("no prompt: expected at least one")
        if self.rule not in ("", "standard", "block"):
            raise ConfigError(f"rule {self.rule!r}: expected standard, block or nothing")

    def to_json(self) -> dict[str, Any]:
        """Return the stored form: plain lists, numbers and strings."""
        # Left out where nothing is assumed, as in certificates from before it was known.
        assumed = {"assumes_speculation": True} if self.assumes_speculation else {}
        return {
            "subject": self.subject,
            "plan": asdict(self.plan),
            "rule": self.rule,
            "expects_speculation": self.expects_speculation,
            **assumed,
            "notes": dict(self.notes),
            "prompts": [_prompt_to_json(prompt) for prompt in self.prompts],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Evidence:
        """Return the evidence of a stored form.

        Parameters
        ----------
        stored : mapping of str to object
            What `to_json` gave.

        Returns
        -------
        Evidence
            Equal content.

        Raises
        ------
        ConfigError
            If an entry is missing or malformed.
        """
        try:
            return cls(
                stored["subject"],
                Plan(**stored["plan"]),
                tuple(_prompt_from_json(prompt) for prompt in stored["prompts"]),
                stored["rule"],
                stored["expects_speculation"],
                dict(stored["notes"]),
                stored.get("assumes_speculation", False),
            )
        except ConfigError:
            raise
        except (
            *(LookupError, TypeError, AttributeError, ValueError, ArithmeticError),
            InvariantError,  # a law that is none: here it is no bug of ours
        ) as error:
            raise ConfigError(f"stored evidence: {error!r}, expected schema {SCHEMA}") from error


def _prompt_to_json(prompt: PromptEvidence) -> dict[str, Any]:
    law, counts = prompt.law, prompt.counts
    stored: dict[str, Any] = {
        "name": prompt.name,
        "horizon": law.horizon,
        "eos_token_ids": sorted(law.eos_token_ids),
        "outcomes": [list(outcome) for outcome in law.outcomes],
        "probs": law.probs.tolist(),
        "counts": counts.cells.tolist(),
        "impossible": [[list(key), times] for key, times in sorted(counts.impossible.items())],
    }
    if prompt.rounds is not None:
        log = prompt.rounds
        rows = sorted(zip(log.drafted, log.accepted, log.emitted, log.cut, strict=True))
        stored["rounds"] = [
            [*row[:3], bool(row[3]), len(list(same))] for row, same in groupby(rows)
        ]
    if prompt.model is not None:
        model = prompt.model
        stored["model"] = {
            "vocab_size": model.vocab_size,
            "kappa": model.kappa,
            "max_speculative_rounds": model.max_speculative_rounds,
            "target": _rows_to_json(model.target),
            "draft": _rows_to_json(model.draft),
        }
    if prompt.serial is not None:
        stored["serial"] = list(prompt.serial)
    if prompt.totals is not None:
        stored["totals"] = asdict(prompt.totals)
    if prompt.samples:
        stored["samples"] = samples_to_json(prompt.samples)
    if prompt.num_overlong:
        stored["overlong"] = prompt.num_overlong
    if prompt.order is not None:
        stored["order"] = prompt.order.to_json()
    return stored


def _prompt_from_json(stored: Mapping[str, Any]) -> PromptEvidence:
    law = JointLaw(
        tuple(tuple(outcome) for outcome in stored["outcomes"]),
        np.array(stored["probs"], dtype=np.float64),
        stored["horizon"],
        frozenset(stored["eos_token_ids"]),
    )
    check_whole("count", stored["counts"], 0)
    check_whole("count of an impossible outcome", (n for _key, n in stored["impossible"]), 1)
    cells = np.array(stored["counts"], dtype=np.int64)
    if cells.shape != (len(law),) or cells.min(initial=0) < 0:
        raise ConfigError(f"{len(cells)} counts of {len(law)} outcomes: expected one each")
    counts = Counts(cells, {tuple(key): times for key, times in stored["impossible"]})
    rounds = model = None
    if "rounds" in stored:
        check_whole("number of equal rounds", (row[4] for row in stored["rounds"]), 1)
        rows = [row[:4] for row in stored["rounds"] for _ in range(row[4])]
        columns = zip(*rows, strict=True) if rows else ((), (), (), ())
        rounds = RoundLog(*(tuple(column) for column in columns))
    if "model" in stored:
        held = stored["model"]
        model = ModelRows(
            held["vocab_size"],
            held["kappa"],
            _rows_from_json(held["target"]),
            _rows_from_json(held["draft"]),
            held["max_speculative_rounds"],
        )
    serial = tuple(stored["serial"]) if "serial" in stored else None
    check_whole("outcome of a draw in order", serial or (), -1)
    totals = DraftTotals(**stored["totals"]) if "totals" in stored else None
    samples = samples_from_json(stored.get("samples", ()))
    too_long = stored.get("overlong", 0)
    check_whole("number of draws that go on", (too_long,), 0)
    order = DrawOrder.stored_in(stored, "order")
    return PromptEvidence(
        stored["name"], law, counts, rounds, model, serial, totals, samples, too_long, order
    )


def _rows_to_json(rows: Mapping[Prefix, Mapping[int, float]]) -> list[list[Any]]:
    return [[list(prefix), [[t, p] for t, p in row.items()]] for prefix, row in rows.items()]


def _rows_from_json(stored: list[list[Any]]) -> dict[Prefix, dict[int, float]]:
    return {tuple(prefix): dict(map(tuple, row)) for prefix, row in stored}


def shown(value: Any) -> Any:
    """Return a value that JSON can hold: numbers that are not finite become words.

    Parameters
    ----------
    value : object
        Numbers, strings, None, and mappings and sequences of them.

    Returns
    -------
    object
        Of dicts, lists, strings, finite numbers and None.
    """
    if isinstance(value, Mapping):
        return {str(key): shown(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
