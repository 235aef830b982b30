"""A trace says what decided, and nothing that is drawn changes with it.

Laws, coins and decisions are computed again here, from the tables and the definitions in
the papers, and compared with what the engine wrote down.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_kit import (
    GREEDY,
    NEAR,
    RULES,
    TABLE,
    VOCAB,
    WARM,
    ids,
    make_core,
    requests,
    run,
)

from draftproof.backends.table import MarkovTable, MixedTable, TableBackend
from draftproof.core.law import DenseLaw
from draftproof.core.rng import CoinSource
from draftproof.core.siblings import TreeBuilder
from draftproof.core.trace import RoundTrace
from draftproof.core.types import TreeDraft
from draftproof.errors import ConfigError, InvariantError
from draftproof.proposers import DraftModelProposer, NgramProposer
from draftproof.verify import AllowLossy, Lenience, SyntheticAcceptance

TREE_RULES = {"standard": "recursive", "block": "traversal", "sample-match": "target-only"}
#: Near the target, so that some drafts survive; full of ties it is not.
SKETCH = MixedTable(TABLE, MarkovTable(VOCAB, None, seed=8), 0.6)


def law_of(table, tokens, temperature=1.0):
    """The law after some tokens, written again, naively."""
    row = table.probs(np.array(tokens), np.arange(len(tokens)))
    if temperature == 0:
        return np.eye(VOCAB)[row.argmax()]
    warm = row ** (1 / temperature)
    return warm / warm.sum()


class SketchTree:
    """Draws a tree from a table, siblings without replacement."""

    name = "sketch-tree"

    def propose(self, asked):
        return [self._tree(request) for request in asked]

    def _tree(self, request):
        builder = TreeBuilder(self.name)
        held = list(request.token_ids)
        below = builder.sample(-1, DenseLaw(law_of(SKETCH, held)), 3, request.coins)
        for node in below[:2]:
            if len(builder) < request.kappa:
                law = DenseLaw(law_of(SKETCH, [*held, builder.token(node)]))
                width = min(2, request.kappa - len(builder))
                builder.sample(node, law, width, request.coins)
        return builder.build()

    def release(self, request_id):
        pass


class FixedTree(SketchTree):
    """Always drafts the same candidates."""

    name = "fixed-tree"

    def _tree(self, request):
        tree = TreeDraft.from_paths([(0, 1), (0, 2), (3, 1), (5,)], self.name)
        kappa = request.kappa
        return replace(tree, token_ids=tree.token_ids[:kappa], parents=tree.parents[:kappa])


DRAFTERS = {
    "chain": lambda: DraftModelProposer(TableBackend(NEAR)),
    "certain chain": lambda: NgramProposer(1, 2),
    "tree": SketchTree,
    "certain tree": FixedTree,
}


def traced(rule, shape, params, *, trace=True, kappa=5, **options):
    """Results of three requests in shared passes."""
    core = make_core(proposers=[DRAFTERS[shape]()], kappa=kappa, **options)
    batch = requests(3, 6, 2, params=params, rule=rule, max_tokens=18)
    return run(core, [replace(request, trace=trace) for request in batch])


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("shape", DRAFTERS)
@pytest.mark.parametrize("rule", RULES)
def test_nothing_that_is_drawn_changes_with_it(rule, shape, params):
    off, on = (traced(rule, shape, params, trace=trace) for trace in (False, True))
    assert ids(on) == ids(off)
    for name, result in on.items():
        assert result.records == off[name].records
        assert off[name].traces == []
        assert len(result.traces) == len(result.records)


def certain(draft):
    return np.eye(VOCAB)[draft]


def replay_standard(p, q, tokens, coins):
    for i, token in enumerate(tokens):
        if not (coins.accept(i) * q[i][token] < p[i][token]):
            return tuple(range(i))
    return tuple(range(len(tokens)))


def replay_block(p, q, tokens, coins):
    """Block verification, from the definition of its h."""
    weights = [1.0]
    for i, token in enumerate(tokens):
        weights.append(min(1.0, weights[-1] * p[i][token] / q[i][token]))
    kept = 0
    for i in range(1, len(tokens) + 1):
        h = weights[i]
        if i < len(tokens):
            rest = np.maximum(weights[i] * p[i] - q[i], 0).sum()
            h = rest / (rest + 1 - weights[i]) if rest + 1 - weights[i] > 0 else 1.0
        if weights[i] > 0 and (weights[i] == 1 or coins.accept(i - 1) < h):
            kept = i
    return tuple(range(kept))


def without(q, tokens):
    """The law of the next sibling after some were drawn."""
    rest = q.copy()
    rest[list(tokens)] = 0
    return rest / rest.sum()


def replay_recursive(trace, laws, coins):
    node, path = -1, ()
    while children := [n for n, parent in enumerate(trace.parents) if parent == node]:
        p, q, gone = laws[node][0], laws[node][1], []
        for child in children:
            token = trace.draft_ids[child]
            now = certain(token) if q is None else without(q, gone)
            if coins.accept(child) * now[token] < p[token]:
                node, path = child, (*path, child)
                break
            p = np.maximum(p - now, 0)
            p = p / p.sum()
            gone.append(token)
        else:
            return path
    return path


def replay_traversal(trace, laws, coins):
    def visit(node, weight, path):
        p, q = laws[node]
        gone = []
        for child in [n for n, parent in enumerate(trace.parents) if parent == node]:
            token = trace.draft_ids[child]
            now = certain(token) if q is None else without(q, gone)
            below = min(1.0, weight * p[token] / now[token])
            found = visit(child, below, (*path, child)) if below > 0 else None
            if found is not None:
                return found
            rest = np.maximum(weight * p - now, 0)
            mass = rest.sum()
            p = rest / mass if mass > 0 else p
            weight = 1.0 if weight == 1 else mass / (mass + 1 - weight)
            gone.append(token)
        return path if weight == 1 or coins.accept(node) < weight else None

    return visit(-1, 1.0, ())


class Again:
    """One traced round, with laws and coins computed again."""

    def __init__(self, trace, held, coins, shape):
        self.trace, self.coins = trace, coins
        chain = range(-1, len(trace.draft_ids) - 1)
        self.parents = tuple(chain if trace.parents is None else trace.parents)
        self.before = {-1: ()}
        for node, parent in enumerate(self.parents):
            self.before[node] = (*self.before[parent], trace.draft_ids[node])
        heat = WARM.temperature
        self.laws = {n: law_of(TABLE, [*held, *text], heat) for n, text in self.before.items()}
        table = {"chain": NEAR, "tree": SKETCH}.get(shape)
        # The sampled tree does not follow the policy: its laws are those of its table.
        own = heat if shape == "chain" else 1.0
        self.drafts = {
            n: None if table is None else law_of(table, [*held, *text], own)
            for n, text in self.before.items()
        }

    @property
    def end(self):
        return self.trace.path[-1] if self.trace.path else -1

    def draft_prob(self, node):
        q, parent = self.drafts[self.parents[node]], self.parents[node]
        older = [self.trace.draft_ids[n] for n in range(node) if self.parents[n] == parent]
        return None if q is None else without(q, older)[self.trace.draft_ids[node]]

    def path(self, rule):
        """The kept path by the definition of a ratio rule."""
        if self.trace.parents is not None:
            both = {n: (self.laws[n], self.drafts[n]) for n in self.before}
            replay = replay_recursive if rule == "standard" else replay_traversal
            return replay(self.trace, both, self.coins)
        tokens = self.trace.draft_ids
        p = [self.laws[n] for n in range(-1, len(tokens))]
        q = [
            certain(token) if self.drafts[n - 1] is None else self.drafts[n - 1]
            for n, token in enumerate(tokens)
        ]
        replay = replay_standard if rule == "standard" else replay_block
        return replay(p, q, tokens, self.coins)


def rounds_again(rule, shape):
    for name, result in traced(rule, shape, WARM).items():
        text = [*result.prompt_ids, *result.token_ids]
        source = CoinSource(100 + "abc".index(name))
        for trace in result.traces:
            held = text[: trace.start]
            assert trace.committed == tuple(text[trace.start :][: len(trace.committed)])
            yield Again(trace, held, source.round(trace.start), shape)


@pytest.mark.parametrize("shape", DRAFTERS)
@pytest.mark.parametrize("rule", RULES)
def test_probabilities_and_coins_are_those_of_the_definitions(rule, shape):
    num_reached = 0
    for again in rounds_again(rule, shape):
        trace = again.trace
        for node, token in enumerate(trace.draft_ids):
            if trace.p[node] is not None:
                num_reached += 1
                law = again.laws[again.parents[node]]
                assert trace.p[node] == pytest.approx(law[token], rel=1e-5)
            q = again.draft_prob(node)
            assert trace.q[node] == (None if q is None else pytest.approx(q, rel=1e-5))
            has_coin = rule in ("standard", "block") and trace.p[node] is not None
            assert trace.coins[node] == (again.coins.accept(node) if has_coin else None)
        law = again.laws[again.end]
        assert trace.token_p == pytest.approx(law[trace.token_id], rel=1e-5)
    assert num_reached >= 20


@pytest.mark.parametrize("shape", DRAFTERS)
@pytest.mark.parametrize("rule", RULES)
def test_decisions_follow_from_them(rule, shape):
    num_kept = num_refused = 0
    for again in rounds_again(rule, shape):
        trace = again.trace
        emitted = (*again.before[again.end], trace.token_id)
        assert trace.committed == emitted[: len(trace.committed)]
        if not trace.draft_ids:
            assert (trace.rule, trace.drafter, trace.token_source) == ("none", "none", "sampled")
            continue
        assert trace.rule == (rule if trace.parents is None else TREE_RULES.get(rule, rule))
        is_leaf = again.end not in again.parents
        assert trace.token_source == ("bonus" if is_leaf else "recovered")
        num_kept += len(trace.path)
        num_refused += not is_leaf
        if rule in ("standard", "block"):
            assert trace.path == again.path(rule)
        elif rule == "sample-match":
            u = again.coins.sample(len(trace.path))
            assert trace.token_id == np.searchsorted(again.laws[again.end].cumsum(), u, "right")
    assert num_kept >= 3
    assert num_refused >= 3


def test_the_standard_rule_keeps_a_draft_if_and_only_if_its_coin_says_so():
    """What a reader of one line can check, without any law."""
    for result in traced("standard", "chain", WARM).values():
        for trace in result.traces:
            for i, (p, q, coin) in enumerate(zip(trace.p, trace.q, trace.coins, strict=True)):
                if p is None:
                    assert i > len(trace.path)
                else:
                    assert (coin * q < p) == (i in trace.path)


@pytest.mark.parametrize("shape", DRAFTERS)
def test_greedy_laws_are_certain_and_use_no_coin(shape):
    for result in traced(None, shape, GREEDY).values():
        for trace in result.traces:
            assert trace.token_p == 1.0
            assert set(trace.coins) <= {None}
            assert set(trace.p) <= {0.0, 1.0, None}
            assert all(trace.p[node] == 1.0 for node in trace.path)
            assert shape == "tree" or set(trace.q) <= {1.0, None}


def test_rules_that_change_the_law_are_traced_too():
    drafter = DraftModelProposer(TableBackend(NEAR))
    for rule in (AllowLossy(SyntheticAcceptance((0.7, 0.4))), AllowLossy(Lenience(0.5))):
        core = make_core(proposers=[drafter], kappa=3, allow_lossy=True)
        asked = requests(4, params=WARM, rule=rule, max_tokens=30)
        (result,) = run(core, [replace(asked[0], trace=True)]).values()
        drafted = [trace for trace in result.traces if trace.draft_ids]
        assert {trace.rule for trace in drafted} == {rule.name}
        for trace in drafted:
            coins = CoinSource(100).round(trace.start)
            for i, (p, q, coin) in enumerate(zip(trace.p, trace.q, trace.coins, strict=True)):
                if i > len(trace.path):
                    assert coin is None
                    continue
                assert coin == coins.accept(i)
                if rule.name == "synthetic":
                    bar = (0.7, 0.4 / 0.7, 0.0)[i]
                    assert (coin < bar) == (i in trace.path)
                    # Its one law is that of the place where it stops.
                    assert (p is None) == (i < len(trace.path))
                else:
                    assert (coin * 0.5 * q < p) == (i in trace.path)


def test_a_trace_refuses_fields_that_do_not_match():
    fields = {
        "step": 1, "round": 1, "start": 4, "kappa": 2, "rule": "standard", "drafter": "ngram",
        "sources": ("ngram",), "draft_ids": (3,), "parents": None, "p": (0.5,), "q": (None,),
        "coins": (0.1,), "path": (0,), "committed": (3, 1), "token_id": 1,
        "token_source": "bonus", "token_p": 0.25, "batch": 1, "draft_s": 0.1, "target_s": 0.2,
        "verify_s": 0.3, "other_s": 0.4,
    }  # fmt: skip
    assert RoundTrace(**fields).num_accepted == 1
    for flaw in ({"p": ()}, {"q": (None, None)}, {"coins": ()}, {"sources": ()}, {"parents": ()}):
        with pytest.raises(InvariantError, match="1 drafts with"):
            RoundTrace(**(fields | flaw))
    with pytest.raises(InvariantError, match=r"path \(1,\)"):
        RoundTrace(**(fields | {"path": (1,)}))


def test_the_depth_of_a_node_is_the_number_of_drafts_before_it():
    for result in traced("standard", "tree", WARM).values():
        for trace in result.traces:
            if trace.parents is not None:
                for node in range(len(trace.draft_ids)):
                    above = trace.parents[node]
                    assert trace.depth_of(node) == (0 if above < 0 else 1 + trace.depth_of(above))
                depths = [trace.depth_of(node) for node in trace.path]
                assert depths == list(range(len(depths)))


def test_trace_is_yes_or_no():
    with pytest.raises(ConfigError, match="trace is 1; expected True or False"):
        replace(requests(3)[0], trace=1)
