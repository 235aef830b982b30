"""Real texts of an engine, many requests at a time."""

from __future__ import annotations

from collections.abc import Callable

from draftproof.core.rng import CoinSource
from draftproof.errors import ConfigError
from draftproof.evidence import Outcome
from draftproof.testing.faults.parts import EngineParts
from draftproof.testing.faults.scene import Scene

__all__ = ["draw_texts"]


def draw_texts(
    scene: Scene, plant: Callable[[EngineParts], EngineParts], first_seed: int, count: int
) -> list[Outcome]:
    """Return texts of a batch of requests with real coins.

    Parameters
    ----------
    scene : Scene
        The scene; without company and requests before.
    plant : callable of EngineParts
        The defect.
    first_seed : int
        Seed of the first text; the others follow.
    count : int
        Texts.

    Returns
    -------
    list of tuple of int
        Cut to the horizon, in order of the seeds.

    Raises
    ------
    ConfigError
        If the scene needs other requests.
    """
    if scene.company or scene.before:
        raise ConfigError(f"scene {scene.name} has other requests; expected one without")
    core = plant(scene.parts(CoinSource)).build()
    names = [core.submit(scene.request(first_seed + i, f"text-{i}")) for i in range(count)]
    results = core.run()
    for result in results.values():
        if result.error is not None:
            raise result.error
    return [tuple(results[name].token_ids[: scene.horizon]) for name in names]
