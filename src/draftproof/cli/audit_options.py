"""Options that the audits share, and what they turn into."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from draftproof.cli import options as o
from draftproof.cli import values as v
from draftproof.cli.audit_drafts import Drafts, DraftsOf, stated_drafts
from draftproof.cli.audit_finish import Outputs
from draftproof.cli.context import Notes
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.audit import Plan
    from draftproof.audit.subjects import Policy
    from draftproof.core.params import SamplingParams
    from draftproof.core.types import ModelInfo

__all__ = [
    "AuditSize",
    "Common",
    "Drafts",
    "Encoder",
    "Hands",
    "MoreKnobs",
    "NamedPrompts",
    "Prompt",
    "policy_of",
    "prompts_of",
    "reference_note",
]

STATISTICS = "Statistics"
PROMPTS = "Prompts"
POLICY = "Policy"
RESULT = "Result"

#: Prompts that repeat themselves, so that a drafter that looks back has something to say.
DEFAULT_PROMPTS = (
    "red, green, blue, red, green, blue, red, green, blue, red, green,",
    "The cat sat on the mat. The dog sat on the mat. The cat sat on the",
)


def _option(panel: str, *names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel)


Draws = Annotated[
    int | None,
    _option(STATISTICS, "--draws", help="Draws per prompt; as many as --tv needs by default."),
]
Tv = Annotated[
    float, _option(STATISTICS, "--tv", help="The bias that must be detectable to say exact.")
]
Alpha = Annotated[float, _option(STATISTICS, "--alpha", help="False-alarm rate of the audit.")]
PowerOf = Annotated[
    float, _option(STATISTICS, "--power", help="Probability with which --tv must be seen.")
]
Calibration = Annotated[
    int, _option(STATISTICS, "--calibration-samples", help="Null samples of a calibration.")
]
Seed = Annotated[
    int | None, _option(STATISTICS, "--seed", help="Seed of the draws; a fresh one by default.")
]
Sequential = Annotated[
    bool,
    _option(
        STATISTICS,
        "--sequential",
        help="Stop at the first alarm; the false-alarm rate holds for the whole run. "
        "--draws is the budget.",
    ),
]
Processes = Annotated[
    int, _option(STATISTICS, "--processes", help="Processes that draw; each loads the subject.")
]
RayAddress = Annotated[
    str | None,
    _option(
        STATISTICS,
        "--ray",
        metavar="ADDRESS",
        help="A Ray cluster that draws: auto, local, HOST:PORT. Needs the extra ray.",
    ),
]

ReferencePrecision = Annotated[
    o.Precision,
    _option(
        STATISTICS,
        "--precision",
        help="How the reference holds its weights: as the subject does, f32 for the file's own.",
    ),
]

PromptText = Annotated[
    list[str] | None, _option(PROMPTS, "--prompt", help="A prompt; may be given several times.")
]
PromptIds = Annotated[
    list[str] | None,
    _option(PROMPTS, "--prompt-ids", metavar='"1 2 3"', help="A prompt as token ids."),
]
PromptsFile = Annotated[
    Path | None, _option(PROMPTS, "--prompts", metavar="FILE", help="One prompt per line.")
]

Horizon = Annotated[int, _option(POLICY, "--horizon", help="Tokens of a continuation.")]
Temperature = Annotated[float, _option(POLICY, "--temperature", help="Above 0.")]
TopK = Annotated[
    int, _option(POLICY, "--top-k", help="Keep the k best tokens; the law has k^horizon outcomes.")
]
TopP = Annotated[float, _option(POLICY, "--top-p", help="Keep this much mass; 1 is off.")]
MinP = Annotated[
    float, _option(POLICY, "--min-p", help="Keep tokens of this share of the best; 0 is off.")
]
RepetitionPenalty = Annotated[float, _option(POLICY, "--repetition-penalty", help="1 is off.")]
PresencePenalty = Annotated[float, _option(POLICY, "--presence-penalty", help="0 is off.")]
FrequencyPenalty = Annotated[float, _option(POLICY, "--frequency-penalty", help="0 is off.")]

Json = Annotated[bool, _option(RESULT, "--json", help="The certificate on stdout, as JSON.")]
Html = Annotated[
    Path | None, _option(RESULT, "--html", metavar="FILE", help="Write the certificate as a page.")
]
Save = Annotated[
    Path | None, _option(RESULT, "--output", metavar="FILE", help="Write the certificate as JSON.")
]
Quiet = Annotated[bool, _option(RESULT, "-q", "--quiet", help="Only data and errors.")]


#: Prompts as texts, as token ids and as a file.
NamedPrompts = tuple[list[str] | None, list[str] | None, Path | None]


@dataclass(frozen=True, slots=True)
class Common:
    """Options of every audit; `draftproof.cli.flat_options.flat` spreads them."""

    prompt: PromptText = None
    prompt_ids: PromptIds = None
    prompts: PromptsFile = None
    horizon: Horizon = 3
    temperature: Temperature = 1.0
    top_k: TopK = 3
    top_p: TopP = 1.0
    draws: Draws = None
    tv: Tv = 0.1
    alpha: Alpha = 1e-3
    power: PowerOf = 0.99
    calibration_samples: Calibration = 20_000
    seed: Seed = None
    drafts: DraftsOf = None
    as_json: Json = False
    html: Html = None
    save: Save = None
    quiet: Quiet = False

    @property
    def named(self) -> NamedPrompts:
        """Prompts as texts, as token ids and as a file."""
        return self.prompt, self.prompt_ids, self.prompts

    def stated(self, *, has_drafter: bool = True) -> Drafts:
        """Return what is stated about speculation; see `stated_drafts`."""
        return stated_drafts(self.drafts, has_drafter=has_drafter)

    def knobs(self, rest: MoreKnobs | None = None, **more: float) -> dict[str, Any]:
        """Return the fields of `SamplingParams`, with those that not every verb has."""
        found = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        return found | ({} if rest is None else asdict(rest)) | more

    def outputs(self) -> Outputs:
        """Return where the result goes; refuse what cannot be written there."""
        outputs = Outputs(self.as_json, self.html, self.save, Notes(quiet=self.quiet))
        outputs.check()
        return outputs

    def size(self, *, is_sequential: bool = False) -> AuditSize:
        """Return how much is drawn."""
        return AuditSize(
            self.draws,
            self.tv,
            self.alpha,
            self.power,
            self.calibration_samples,
            self.seed,
            is_sequential,
        )


@dataclass(frozen=True, slots=True)
class MoreKnobs:
    """The rest of the policy, of decoders that have all of it."""

    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    presence_penalty: PresencePenalty = 0.0
    frequency_penalty: FrequencyPenalty = 0.0


@dataclass(frozen=True, slots=True)
class Hands:
    """Who draws, and until when."""

    sequential: Sequential = False
    processes: Processes = 1
    ray: RayAddress = None

    def __post_init__(self) -> None:
        """Refuse two ways at once, and no hands, before anything is loaded."""
        if self.processes < 1:
            raise ConfigError(f"--processes {self.processes}: expected 1 or more")
        if self.ray is not None and self.processes != 1:
            raise ConfigError(f"--processes {self.processes} and --ray: expected one of them")

    @property
    def are_here(self) -> bool:
        """Whether this process draws all by itself."""
        return self.processes == 1 and self.ray is None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and its name.

    Parameters
    ----------
    name : str
        Shown to people.
    ids : tuple of int
        Token ids; empty where nobody knows them.
    text : str, optional
        Its text, where it was given as text.
    """

    name: str
    ids: tuple[int, ...]
    text: str | None = None


class Encoder(Protocol):
    """Turns text into token ids."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ...


@dataclass(frozen=True, slots=True)
class AuditSize:
    """How much is drawn, and what for.

    Parameters
    ----------
    draws : int, optional
        Draws per prompt, as asked for.
    tv, alpha, power, calibration_samples : float
        See `draftproof.audit.Plan`.
    seed : int, optional
        Seed of the draws.
    is_sequential : bool, default False
        Whether the audit stops at the first alarm; draws are its budget then.
    """

    draws: int | None
    tv: float
    alpha: float
    power: float
    calibration_samples: int
    seed: int | None
    is_sequential: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that are none before anything is loaded."""
        if self.draws is not None and self.draws < 1:
            raise ConfigError(f"--draws {self.draws}: expected 1 or more")
        if self.seed is not None and self.seed < 0:
            raise ConfigError(f"--seed {self.seed}: expected 0 or more")

    def plan(self) -> Plan:
        """Return the plan, made before the first draw."""
        from draftproof.audit import Plan

        return Plan(self.alpha, self.tv, self.power, self.calibration_samples)

    def draws_for(self, num_outcomes: int) -> int:
        """Return the draws per prompt; a quarter more than the theory asks for."""
        from draftproof.evidence import draws_needed

        if self.draws is not None:
            return self.draws
        return 1 + int(1.25 * draws_needed(max(2, num_outcomes), self.tv, self.alpha, self.power))

    def first_seed(self) -> int:
        """Return the seed of the first draw: the one asked for, or one nobody chose."""
        return secrets.randbits(60) if self.seed is None else self.seed


def reference_note(name: str, info: ModelInfo) -> str:
    """Return what a reference was, for the certificate: its name, runtime and precision."""
    return f"{name} ({info.runtime}, {info.precision})"


def policy_of(horizon: int, eos_token_ids: frozenset[int] = frozenset(), **knobs: Any) -> Policy:
    """Return the policy that all subjects are asked for.

    Parameters
    ----------
    horizon : int
        Tokens of a continuation.
    eos_token_ids : frozenset of int
        Tokens that end one early.
    **knobs : object
        Fields of `SamplingParams`.

    Returns
    -------
    Policy
        Checked.
    """
    from draftproof.audit.subjects import Policy
    from draftproof.core.params import SamplingParams

    params: SamplingParams = SamplingParams(**knobs)
    return Policy(params, horizon, eos_token_ids)


def prompts_of(
    texts: list[str] | None,
    ids: list[str] | None,
    file: Path | None,
    tokenizer: Encoder | None,
    default: tuple[str, ...] = DEFAULT_PROMPTS,
) -> list[Prompt]:
    """Read the prompts.

    Parameters
    ----------
    texts : list of str, optional
        Prompts as text.
    ids : list of str, optional
        Prompts as token ids.
    file : Path, optional
        A file of prompts.
    tokenizer : Encoder, optional
        Turns text into ids; without one text stays text.
    default : tuple of str
        Prompts where none is given.

    Returns
    -------
    list of Prompt
        At least one.

    Raises
    ------
    ConfigError
        If there is none, or one is no list of ids.
    """
    lines = list(texts or ())
    if file is not None:
        content = v.read_text_file(file, "--prompts")
        lines += [line for line in content.splitlines() if line.strip()]
    found = []
    for entry in ids or ():
        try:
            numbers = tuple(int(word) for word in entry.replace(",", " ").split())
        except ValueError as error:
            raise ConfigError(f"--prompt-ids {entry!r}: expected whole numbers") from error
        if not numbers or min(numbers) < 0:
            raise ConfigError(f"--prompt-ids {entry!r}: expected 1 or more ids of 0 or more")
        found.append(Prompt(entry, numbers))
    if not lines and not found:
        lines = list(default)
    for line in lines:
        encoded = () if tokenizer is None else tuple(tokenizer.encode(line))
        found.append(Prompt(line if len(line) <= 60 else line[:57] + "...", encoded, line))
    if not found:
        raise ConfigError("no prompt: expected --prompt, --prompt-ids or --prompts")
    return found
