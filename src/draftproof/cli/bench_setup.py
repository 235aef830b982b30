"""What a run of ``draftproof bench`` is made of, and how it shows that it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftproof.cli import bench_options as b
from draftproof.cli.context import Notes
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.bench.campaign import Progress
    from draftproof.bench.engine_runner import Runner
    from draftproof.bench.run_record import Arm, Settings, Subject
    from draftproof.bench.running import PromptSource

__all__ = ["Grid", "MeasuredSubject", "progress_bar", "refuse_existing"]


@dataclass(frozen=True, slots=True)
class MeasuredSubject:
    """What a run is made on, and with.

    Parameters
    ----------
    subject : Subject
        For the record.
    runner : Runner
        Decodes.
    arms : tuple of Arm
        The ways to decode.
    is_chat : bool
        Whether prompts go through the chat template.
    shares_cache : bool
        Whether the arms meet one prefix cache.
    warnings : tuple of str
        What is known to be wrong.
    finish : callable
        Returns warnings that are known afterwards.
    """

    subject: Subject
    runner: Runner
    arms: tuple[Arm, ...]
    is_chat: bool
    shares_cache: bool
    warnings: tuple[str, ...] = ()
    finish: Callable[[], tuple[str, ...]] = tuple


@dataclass(frozen=True, slots=True)
class Grid:
    """The words of the grid and of the rounds, as they were typed."""

    workload: str
    prompts: Path | None
    temperature: str
    concurrency: str
    rate: str | None
    max_tokens: int
    requests: int
    rounds: int
    width: float | None
    minutes: float | None
    confidence: float
    seed: int
    ignore_eos: bool
    chat: bool | None

    def settings(self, arms: tuple[Arm, ...], *, is_chat: bool) -> Settings:
        """Return the settings of a run."""
        from draftproof.bench.run_record import Settings
        from draftproof.bench.settings import check_settings, grid_of
        from draftproof.bench.workloads import KINDS

        if self.prompts is not None:
            kinds: list[str] = [self.prompts.stem]
        elif self.workload == "all":
            kinds = list(KINDS)
        else:
            kinds = b.listed("--workload", self.workload, str)
        conditions = grid_of(
            kinds,
            b.listed("--temperature", self.temperature, float),
            b.listed("--concurrency", self.concurrency, int),
            [] if self.rate is None else b.listed("--rate", self.rate, float),
            known=kinds if self.prompts is not None else KINDS,
        )
        return check_settings(
            Settings(
                conditions=conditions,
                arms=arms,
                max_tokens=self.max_tokens,
                requests_per_slot=self.requests,
                rounds=self.rounds,
                width=self.width,
                minutes=self.minutes,
                confidence=self.confidence,
                seed=self.seed,
                ignore_eos=self.ignore_eos,
                prompts="built-in" if self.prompts is None else str(self.prompts),
                is_chat=is_chat,
            )
        )

    def source(self) -> PromptSource:
        """Return where prompts come from."""
        from draftproof.bench.workloads import Workloads, read_prompt_file

        return Workloads() if self.prompts is None else read_prompt_file(self.prompts)


def refuse_existing(output: Path) -> None:
    """Refuse to overwrite a run.

    Parameters
    ----------
    output : Path
        Where the run would go.

    Raises
    ------
    ConfigError
        If it, or a journal of it, is there.
    """
    from draftproof.bench.run_file import Journal

    for path in (output, Journal(output).path):
        if path.exists():
            raise ConfigError(f"{path} is there already; expected --resume or another --output")


@contextmanager
def progress_bar(notes: Notes) -> Iterator[Callable[[Progress], None]]:
    """Show a bar on a terminal, and nothing elsewhere."""
    if notes.quiet or not notes.console.is_terminal:
        yield lambda _progress: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    with Bar(
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}", markup=False),
        console=notes.console,
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None, left="")

        def tell(progress: Progress) -> None:
            seconds = progress.seconds_left
            left = "" if seconds is None else f"{int(seconds // 60)}:{int(seconds % 60):02} left"
            bar.update(
                task,
                completed=progress.done,
                total=progress.total,
                description=progress.doing,
                left=left,
            )

        yield tell
