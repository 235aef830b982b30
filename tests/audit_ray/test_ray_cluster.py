"""Draws on a Ray cluster of two nodes, one worker of which dies; left out where ray is absent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from draftproof.audit.subjects import Policy, TableRecipe
from draftproof.audit.subjects.fan_out import draw_in_looks
from draftproof.audit.subjects.table_engine import PROMPT
from draftproof.core.params import SamplingParams
from draftproof.errors import BackendError, ConfigError

pytest.importorskip("ray", reason="ray is not installed: pip install 'draftproof[ray]'")

# Ray leaves sockets and subprocesses to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

JOBS = [(PROMPT, Policy(SamplingParams(), 4))]


@dataclass(frozen=True)
class DiesOnce:
    """The engine over tables; the first worker that draws ends at once, as if killed."""

    mark: Path

    def __call__(self):
        return self

    def draw(self, prompt_ids, policy, num, first_seed):
        try:
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            return TableRecipe()().draw(prompt_ids, policy, num, first_seed)
        os._exit(1)


@dataclass(frozen=True)
class Refuses:
    """A subject that is wrong, which no second try makes right."""

    mark: Path

    def __call__(self):
        return self

    def draw(self, prompt_ids, policy, num, first_seed):
        with self.mark.open("a") as tries:
            tries.write("x")
        raise ConfigError(f"{num} draws: expected none")


@pytest.fixture(scope="module")
def address():
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "include_dashboard": False, "include_log_monitor": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    cluster.add_node(**node)
    yield cluster.address
    cluster.shutdown()


def test_a_lost_worker_changes_no_draw(address, tmp_path):
    ((alone,),) = draw_in_looks(TableRecipe(), JOBS, [60], first_seed=4)
    recipe = DiesOnce(tmp_path / "died")
    looks = list(draw_in_looks(recipe, JOBS, [20, 60], first_seed=4, ray=address))
    assert recipe.mark.exists()
    assert [len(found) for (found,) in looks] == [20, 40]
    ((first,), (second,)) = looks
    found = first.merge(second)
    np.testing.assert_array_equal(found.tokens, alone.tokens)
    assert found.rounds == alone.rounds


def test_a_subject_that_fails_is_no_loss(address, tmp_path):
    recipe = Refuses(tmp_path / "tries")
    with pytest.raises(ConfigError, match="1 draws: expected none"):
        list(draw_in_looks(recipe, JOBS, [4], first_seed=4, ray=address))
    # Each of the four parts at most once.
    assert 1 <= len(recipe.mark.read_text()) <= 4


@pytest.mark.parametrize("where", ["nowhere", "127.0.0.1:1", "ray://127.0.0.1:1"])
def test_no_cluster_is_said_in_one_line(where):
    with pytest.raises(BackendError, match=f"no Ray cluster at '{where}'") as said:
        list(draw_in_looks(TableRecipe(), JOBS, [4], first_seed=4, ray=where))
    assert "\n" not in str(said.value)
