"""What the tree rules touch, what trees refuse, and that a chain is a tree without branches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.law import DenseLaw, OneHotLaw, SparseLaw
from draftproof.core.rng import CoinSource
from draftproof.core.siblings import TreeBuilder, draw_siblings, law_without
from draftproof.core.types import Draft, TreeDraft, TreeVerdict
from draftproof.errors import ConfigError, InvariantError
from draftproof.verify import RULES, TREE_RULE_OF, TREE_RULES, plain_token, verify, verify_tree


def dense(*weights) -> DenseLaw:
    return DenseLaw(np.array(weights, dtype=np.float32))


class Scripted:
    """Coins by node; notes which ones were asked for."""

    def __init__(self, accepts=None, sample: float = 0.5, default: float = 0.999) -> None:
        self.accepts, self.value, self.default = accepts or {}, sample, default
        self.asked: list[tuple[str, int]] = []

    def accept(self, i: int) -> float:
        self.asked.append(("accept", i))
        return self.accepts.get(i, self.default)

    def sample(self, i: int) -> float:
        self.asked.append(("sample", i))
        return self.value


def random_law(rng) -> DenseLaw | SparseLaw | OneHotLaw:
    weights = np.where(rng.random(5) < 0.3, 0.0, rng.random(5)) + 0.0
    weights[rng.integers(5)] += 0.1
    kind = rng.integers(4)
    if kind == 0:
        return OneHotLaw(int(weights.argmax()), 5)
    if kind == 1:
        ids = np.flatnonzero(weights)
        return SparseLaw(ids, weights[ids].astype(np.float32), 5)
    return DenseLaw(weights.astype(np.float32))


# --- a chain is a tree ------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 5), st.booleans())
def test_on_a_chain_every_tree_rule_is_its_chain_rule_on_the_same_coins(
    seed: int, kappa: int, deterministic: bool
) -> None:
    rng = np.random.default_rng(seed)
    coins = CoinSource(seed).round(int(rng.integers(100)))
    proposals = [random_law(rng) for _ in range(kappa)]
    targets = [proposals[j] if j < kappa and rng.random() < 0.2 else random_law(rng)
               for j in range(kappa + 1)]  # fmt: skip
    builder, parent = TreeBuilder("d"), -1
    for law in proposals:
        if deterministic:
            (parent,) = builder.fix(parent, [int(law.dense().argmax())])
        else:
            (parent,) = builder.sample(parent, law, 1, coins)
    tree = builder.build()
    draft = Draft(tree.token_ids, None if deterministic else tuple(proposals), "d")
    assert TreeDraft.from_chain(draft).parents == tree.parents
    for rule in RULES:
        chain_asked, tree_asked = [], []
        verdict = verify(
            rule, draft, lambda j, asked=chain_asked: asked.append(j) or targets[j], coins
        )
        for same in (tree, TreeDraft.from_chain(draft)):
            tree_asked = []
            found = verify_tree(
                TREE_RULE_OF[rule],
                same,
                lambda n, asked=tree_asked: asked.append(n + 1) or targets[n + 1],
                coins,
            )
            assert found.path == tuple(range(verdict.num_accepted))
            assert (found.token_id, found.source) == (verdict.token_id, verdict.source)
            assert tree_asked == chain_asked


@pytest.mark.parametrize("rule", TREE_RULES)
def test_without_nodes_the_plain_token_is_drawn(rule: str) -> None:
    law, coins = dense(1, 2, 3), CoinSource(5).round(9)
    verdict = verify_tree(rule, TreeDraft(), lambda _: law, coins)
    chain_rule = "coupled" if rule == "coupled" else "standard"
    assert verdict == TreeVerdict((), plain_token(chain_rule, law, coins), "sampled")


# --- laziness ---------------------------------------------------------------------------------

#: Root children 0 and 1; node 0 has the children 2 and 3, node 1 has 4.
TREE = TreeDraft((0, 1, 0, 1, 0), (-1, -1, 0, 0, 1), (dense(1, 1, 2),) * 3 + (None,) * 3, "t")


def run(rule: str, law_of, coins) -> tuple[TreeVerdict, list[int]]:
    asked: list[int] = []

    def law_at(node: int):
        asked.append(node)
        return law_of(node)

    return verify_tree(rule, TREE, law_at, coins), asked


@pytest.mark.parametrize("rule", ["recursive", "target-only"])
def test_top_down_rules_score_the_kept_path_only(rule: str) -> None:
    verdict, asked = run(rule, lambda _: dense(0, 1, 0), Scripted())
    assert verdict.path == (1,)
    assert asked == [-1, 1]
    verdict, asked = run(rule, lambda _: dense(0, 0, 1), Scripted())
    assert (verdict.path, verdict.token_id, verdict.source) == ((), 2, "recovered")
    assert asked == [-1]


def test_traversal_scores_no_node_that_the_target_excludes_and_no_rejected_leaf() -> None:
    verdict, asked = run("traversal", lambda _: dense(0, 0, 1), Scripted())
    assert (verdict.path, asked) == ((), [-1])
    # The first child can be reached, its leaves cannot; the second cannot.
    verdict, asked = run("traversal", lambda n: dense(1, 0, 0) if n < 0 else dense(0, 0, 1),
                         Scripted())  # fmt: skip
    assert verdict.path == (0,)
    assert asked == [-1, 0]
    verdict, asked = run("traversal", lambda _: dense(1, 0, 0), Scripted())
    assert (verdict.path, verdict.source) == ((0, 2), "bonus")
    assert asked == [-1, 0, 2]


def test_certain_nodes_need_no_coin() -> None:
    for rule in ("recursive", "traversal"):
        coins = Scripted()
        assert run(rule, lambda _: dense(1, 1, 2), coins)[0].path == (0, 2)
        assert coins.asked == [("sample", 2)]


def test_positions_are_depths_and_coins_are_nodes() -> None:
    # Three quarters of the mass lie where no sibling is: the coins decide.
    coins = Scripted({0: 0.9, 1: 0.1, 4: 0.1})
    verdict, _ = run("recursive", lambda _: dense(1, 1, 6), coins)
    assert verdict.path == ()
    accepts = [i for purpose, i in coins.asked if purpose == "accept"]
    assert accepts[0] == 0
    assert coins.asked[-1] == ("sample", 0)


# --- greedy -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", TREE_RULES)
def test_greedy_rounds_follow_the_greedy_path(rule: str) -> None:
    tree = TreeDraft.from_paths([(3, 1, 4), (3, 2, 0), (1, 1)])
    assert tree.token_ids == (3, 1, 4, 2, 0, 1, 1)
    laws = {(): 3, (3,): 2, (3, 2): 4}

    def law_at(node: int) -> OneHotLaw:
        return OneHotLaw(laws[tuple(tree.token_ids[n] for n in tree.path(node))], 5)

    verdict = verify_tree(rule, tree, law_at, CoinSource(1).round(0))
    assert verdict == TreeVerdict((0, 3), 4, "recovered")


# --- drawing siblings -------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.integers(1, 7))
def test_siblings_are_distinct_and_reach_all_of_a_law_and_no_more(seed: int, count: int) -> None:
    law = random_law(np.random.default_rng(seed))
    coins = CoinSource(seed).round(3)
    tokens = draw_siblings(law, count, coins, 4)
    assert len(set(tokens)) == len(tokens) == min(count, int((law.dense() > 0).sum()))
    assert all(law.prob(token) > 0 for token in tokens)
    assert tokens[0] == law.draw(coins.draft(4))
    assert draw_siblings(law, 1, coins, 4) == tokens[:1]


def test_a_law_without_a_token() -> None:
    law = dense(1, 2, 1)
    rest = law_without(law, 1)
    assert rest is not None
    assert rest.dense().tolist() == [0.5, 0.0, 0.5]
    assert law_without(SparseLaw([2], [1.0], 3), 2) is None
    assert law_without(OneHotLaw(2, 3), 2) is None
    assert law_without(dense(0, 1, 0), 1) is None


def test_the_builder_records_what_verification_needs() -> None:
    q, coins = dense(1, 2, 1), CoinSource(8).round(0)
    builder = TreeBuilder("b")
    first, second = builder.sample(-1, q, 2, coins)
    assert builder.fix(second, [2, 0, 2]) == (2, 3), "repeated candidates are merged"
    with pytest.raises(InvariantError, match="node -1 of b has children already"):
        builder.sample(-1, q, 1, coins)
    with pytest.raises(InvariantError, match="node 1 of b has children already"):
        builder.fix(second, [1])
    tree = builder.build()
    assert tree.parents == (-1, -1, 1, 1)
    assert tree.child_law(-1) is q
    assert tree.child_law(second) is None
    assert tree.children() == ((0, 1), (), (2, 3), (), ())
    assert tree.path(3) == (1, 3)
    assert builder.token(first) == tree.token_ids[0]


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        (((1, 2), (-1,)), "2 nodes with 1 parents"),
        (((1,), (-1,), (None,)), "expected one parent each and one law more"),
        (((1, 2), (-1, 1)), r"node 1 of none has parent 1: expected -1\.\.0"),
        (((1,), (-2,)), "parent -2"),
        (((1, 1), (-1, -1)), "node 1 of none repeats token 1 below node -1"),
    ],
)
def test_what_is_no_tree_is_refused(fields, match: str) -> None:
    with pytest.raises(InvariantError, match=match):
        TreeDraft(*fields)


def test_an_unknown_rule_and_bad_tokens_are_refused_by_name() -> None:
    tree = TreeDraft((2, 0), (-1, -1), (dense(1, 1, 0), None, None), "liar")
    with pytest.raises(ConfigError, match="tree rule 'block': expected one of recursive"):
        verify_tree("block", tree, lambda _: dense(1, 1, 1), Scripted())
    for rule in ("recursive", "traversal"):
        with pytest.raises(InvariantError, match="node 0 of liar is token 2"):
            verify_tree(rule, tree, lambda _: dense(1, 1, 1), Scripted())
    for rule in TREE_RULES:
        with pytest.raises(InvariantError, match="ids >= 0"):
            verify_tree(rule, TreeDraft((-1,), (-1,)), lambda _: dense(1, 1), Scripted())


@pytest.mark.parametrize("rule", ["recursive", "traversal"])
def test_a_sibling_past_the_end_of_its_law_is_refused(rule: str) -> None:
    tree = TreeDraft((0, 1), (-1, -1), (dense(1, 0, 0), None, None), "liar")
    with pytest.raises(InvariantError, match="node 1 of liar is token 1"):
        verify_tree(rule, tree, lambda _: dense(0, 1, 1), Scripted())


def test_every_chain_rule_has_its_tree_rule() -> None:
    assert tuple(TREE_RULE_OF) == ("standard", "block", "sample-match", "coupled")
    assert set(TREE_RULE_OF) == set(RULES)
    assert set(TREE_RULE_OF.values()) == set(TREE_RULES)
