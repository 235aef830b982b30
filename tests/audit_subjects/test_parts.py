"""Parts of an audit: whoever loses, repeats or reorders them, the counts are those of one run."""

import json
import random
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from functools import reduce

import numpy as np
import pytest
from typer.testing import CliRunner

from draftproof.audit import Certificate, Evidence, Plan
from draftproof.audit.draft_totals import DraftTotals
from draftproof.audit.subjects import (
    Draws,
    Policy,
    RoundKind,
    TableRecipe,
    prompt_evidence,
    ray_crew,
)
from draftproof.audit.subjects.fan_out import draw_in_looks
from draftproof.audit.subjects.parts import Part, Work, gather, shares
from draftproof.audit.subjects.ray_crew import _draw_part, check_reachable
from draftproof.audit.subjects.table_engine import PROMPT
from draftproof.cli import CliContext, app
from draftproof.core.params import SamplingParams
from draftproof.errors import BackendError, ConfigError, InvariantError

POLICY = Policy(SamplingParams(), 4)
JOBS = [((0,), POLICY), ((1,), POLICY)]


class Echo:
    """A subject whose draws are their seeds, so that each can be told from all others."""

    def draw(self, prompt_ids, policy, num, first_seed):
        seeds = np.arange(first_seed, first_seed + num, dtype=np.int64)
        rounds = {RoundKind(1, int(seed) % 2, 1, cut=False): 0 for seed in seeds}
        for seed in seeds:
            rounds[RoundKind(1, int(seed) % 2, 1, cut=False)] += 1
        return Draws(seeds[:, None], rounds, True, DraftTotals(num, num, int(seeds.sum())))


class Unreliable:
    """A crew that loses parts, hands some over twice, and in no order."""

    def __init__(self, subject, work, seed, losses=2):
        self._subject, self._work, self._losses = subject, work, losses
        self._random = random.Random(seed)
        self.asked = []

    def run(self, parts):
        self.asked.append(list(parts))
        order = list(parts)
        self._random.shuffle(order)
        kept = order[:]
        if len(self.asked) <= self._losses:
            kept = [part for part in order if self._random.random() < 0.6]
        for part in kept:
            for _ in range(self._random.choice([1, 1, 2])):
                yield part, self._work.draw(self._subject, part)
        if kept and self._random.random() < 0.5:  # long after it was done
            yield kept[0], self._work.draw(self._subject, kept[0])


def by_arrival(crew, parts):
    """Join what comes as it comes: the mistake that `gather` must not make."""
    found = [draws for _, draws in crew.run(parts)]
    return [reduce(Draws.merge, column) for column in zip(*found, strict=True)]


def same(left, right):
    return (
        np.array_equal(left.tokens, right.tokens)
        and left.rounds == right.rounds
        and left.totals == right.totals
        and left.reports_rounds == right.reports_rounds
    )


@pytest.mark.parametrize("seed", range(25))
def test_no_draw_is_lost_and_none_counted_twice(seed):
    work = Work(JOBS, 97, 1000)
    alone = work.draw(Echo(), Part(0, 97))
    crew = Unreliable(Echo(), work, seed)
    found = gather(crew, shares(97, 9))
    assert all(map(same, alone, found))
    # Only what is missing is asked for again.
    for earlier, later in zip(crew.asked, crew.asked[1:], strict=False):
        assert set(later) <= set(earlier)


def test_joining_by_arrival_would_be_seen():
    work = Work(JOBS, 97, 1000)
    alone = work.draw(Echo(), Part(0, 97))
    wrong = 0
    for seed in range(25):
        found = by_arrival(Unreliable(Echo(), work, seed), shares(97, 9))
        wrong += not all(map(same, alone, found))
    assert wrong == 25


def test_the_certificate_of_an_unreliable_crew_is_that_of_one_process():
    recipe = TableRecipe("block")
    law = recipe.law()

    def certificate(draws):
        evidence = Evidence(
            "the engine",
            Plan(alpha=0.01, tv=0.2, calibration_samples=1000),
            (prompt_evidence("table", law, draws, recipe.model()),),
            rule="block",
        )
        return json.dumps(Certificate.of(evidence).to_json())

    jobs = [(PROMPT, POLICY)]
    ((alone,),) = draw_in_looks(recipe, jobs, [300], first_seed=11)
    work = Work(jobs, 300, 11)
    (found,) = gather(Unreliable(recipe(), work, 3), shares(300, 7))
    assert certificate(found) == certificate(alone)
    (other,) = work.draw(recipe(), Part(1, 299))
    assert certificate(other) != certificate(alone)


def test_a_part_that_is_always_lost_ends_the_audit():
    work = Work(JOBS, 20, 1)

    class Loses(Unreliable):
        def run(self, parts):
            yield from (each for each in super().run(parts) if each[0].begin != 10)

    crew = Loses(Echo(), work, 1, losses=0)
    with pytest.raises(BackendError, match="5 draws from 10 on were lost 4 times: 1 of 4"):
        gather(crew, shares(20, 4))
    assert len(crew.asked) == 4


def test_draws_that_nobody_asked_for_are_refused():
    work = Work(JOBS, 20, 1)

    class Overlaps:
        def run(self, parts):
            yield Part(1, 5), work.draw(Echo(), Part(1, 5))

    with pytest.raises(InvariantError, match="not asked for"):
        gather(Overlaps(), shares(20, 4))

    class Shortens:
        def run(self, parts):
            yield parts[0], work.draw(Echo(), Part(0, 4))

    with pytest.raises(InvariantError, match="not asked for"):
        gather(Shortens(), shares(20, 4))


def test_processes_and_a_cluster_are_not_both_taken():
    with pytest.raises(ConfigError, match="expected one of them"):
        list(draw_in_looks(Echo, JOBS, [4], first_seed=1, processes=2, ray="auto"))


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"draftproof\[ray\]"):
        list(draw_in_looks(Echo, JOBS, [4], first_seed=1, ray="auto"))


@contextmanager
def listening(answer):
    """A port that greets whoever connects with some bytes and hangs up; with None it is silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet():
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(answer)

        thread = threading.Thread(target=greet)
        if answer is not None:
            thread.start()
        yield server.getsockname()[1]
        if answer is not None:
            thread.join()


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.0 404 Not Found\r\n\r\n"])
@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_what_listens_and_is_no_ray_is_said_before_ray_waits_for_it(form, answer, monkeypatch):
    monkeypatch.setattr(ray_crew, "_PATIENCE_S", 0.5)
    with listening(answer) as port:
        address = form.format(port)
        with pytest.raises(BackendError, match=f"no Ray cluster at '{address}': something listens"):
            check_reachable(address)


def test_a_cluster_with_tls_is_not_greeted_in_the_clear(monkeypatch):
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_reachable(f"127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "ray://127.0.0.1:{}/x"])
def test_an_address_where_nobody_listens_is_said_before_ray_tries_it(form):
    with listening(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))) as port:  # HTTP/2's settings
        address = form.format(port)
        check_reachable(address)
    with pytest.raises(BackendError, match=f"no Ray cluster at '{address}': .*refused"):
        check_reachable(address)


@pytest.mark.parametrize("address", ["auto", "local", "nowhere", "127.0.0.1:x", "other://host:1"])
def test_what_names_no_host_and_port_is_left_to_ray(address):
    check_reachable(address)


def test_a_worker_of_another_version_is_refused():
    with pytest.raises(ConfigError, match=r"expected 0\.0\.0, as here"):
        _draw_part(b"", Work(JOBS, 4, 1), Part(0, 4), "0.0.0")


def test_the_command_refuses_processes_beside_a_cluster(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    size = ("--draws", "40", "--seed", "1", "-q")
    for words, said in [
        (("--table", "--processes", "2", "--ray", "auto"), "--processes 2 and --ray"),
        (("--table", "--ray", "auto", *size), "draftproof[ray]"),
        (("--greedy", "--ray", "auto"), "--ray: of no use with --greedy"),
    ]:
        found = CliRunner().invoke(app, ["audit", "engine", *words], obj=CliContext())
        assert found.exit_code == 2, found.output
        assert said in found.stderr
