"""Suffix trees: which nodes are drafted, what is shared, and the law with every tree rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suffix_kit import matches, request
from test_tree_exact import FILTERED, PLAIN, distance, emitted, plain_law, tables

from draftproof.core.law import DenseLaw
from draftproof.core.types import TreeDraft
from draftproof.errors import ConfigError
from draftproof.proposers import SuffixProposer, SuffixTreeProposer
from draftproof.verify import TREE_RULES

EAGER, ALL = 1e-9, 10**9

texts = st.integers(1, 3).flatmap(lambda v: st.lists(st.integers(0, v), min_size=1, max_size=50))


def propose(tokens, kappa=8, **options):
    return SuffixTreeProposer(**options).propose([request(tokens, kappa)])[0]


def scores(tokens, depth):
    """Return the guess of every path that some place supports, by looking at all places."""
    lengths = {place: size for (_, place), size in matches([tokens], tokens, 32).items()}
    longest = max(lengths.values(), default=0)
    levels = [size for size in (longest, longest // 2, longest // 4) if size]
    used, groups = set(), []
    for size in levels:
        places = {place for place, found in lengths.items() if found >= size} - used
        used |= places
        if places:
            groups.append((size, places))
    found = {}

    def go_on(path, score, groups):
        text, left = [*tokens, *path], 1.0
        children = {}
        for size, places in groups:
            said = [(p, text[p + len(path)]) for p in places if p + len(path) < len(text)]
            whole = (size + len(path)) * len(said) + 2.5
            for token in {token for _, token in said}:
                agreeing = {place for place, t in said if t == token}
                share, held = children.get(token, (0.0, []))
                share += left * (size + len(path)) * len(agreeing) / whole
                children[token] = (share, [*held, (size, agreeing)])
            left *= 2.5 / whole if said else 1.0
        for token, (share, held) in children.items():
            found[(*path, token)] = score * share
            if len(path) + 1 < depth:
                go_on((*path, token), score * share, held)

    go_on((), 1.0, groups)
    return found


# -- which nodes -------------------------------------------------------------------------


@given(texts, st.integers(1, 6), st.sampled_from([EAGER, 0.05, 0.2]))
def test_the_nodes_are_the_likeliest_of_an_exhaustive_search(tokens, kappa, least):
    draft = propose(tokens, kappa, max_votes=ALL, min_score=least)
    assert draft.child_laws is None
    guesses = scores(tokens, kappa)
    paths = [tuple(draft.token_ids[at] for at in draft.path(node)) for node in range(len(draft))]
    best = sorted((guess for guess in guesses.values() if guess >= least), reverse=True)[:kappa]
    assert [guesses[path] for path in paths] == pytest.approx(best)
    assert (draft.note == "") == bool(paths)


def test_continuations_that_followed_oftener_come_first_and_an_agreed_one_is_a_chain():
    tokens = [1, 2, 5, 9, 1, 2, 6, 8, 1, 2, 5, 7, 1, 2]
    draft = propose(tokens, 3)
    assert [draft.token_ids[node] for node in draft.children()[0]] == [5, 6]
    chain = propose([1, 2, 3, 4, 5, 1, 2], 3)
    assert (chain.token_ids, chain.parents) == ((3, 4, 5), (-1, 0, 1))


def test_a_shorter_match_branches_where_the_longest_stands_alone():
    # "8 1 2" was followed by 3 once; "2" alone by 7 five times.
    tokens = [8, 1, 2, 3, *[4, 2, 7] * 5, 8, 1, 2]
    roots = propose(tokens, 6, min_score=0.05)
    assert [roots.token_ids[node] for node in roots.children()[0]] == [3, 7]
    assert SuffixProposer().propose([request(tokens, 1)])[0].token_ids == (3,)


def test_growing_in_pieces_gives_what_a_fresh_drafter_gives():
    proposer, text = SuffixTreeProposer(), [int(c) for c in "0120131201401312013012"]
    for size in range(1, len(text) + 1):
        assert proposer.propose([request(text[:size])])[0] == propose(text[:size])


def test_memory_is_bounded_by_the_window_and_freed_and_settings_are_checked():
    proposer = SuffixTreeProposer(window=64)
    sizes = []
    for count in (200, 400, 800):
        proposer.propose([request([n % 7 for n in range(count)])])
        sizes.append(proposer.num_bytes)
    assert max(sizes) < 64 * 24 + 4096
    proposer.release("a")
    assert (proposer.num_requests, proposer.num_bytes) == (0, 0)
    for options, message in (({"min_match": 0}, "matches of"), ({"min_score": 0.0}, "min_score")):
        with pytest.raises(ConfigError, match=message):
            SuffixTreeProposer(**options)


@pytest.mark.parametrize(
    ("tenant", "seed", "is_found"),
    [("t", 1, True), ("u", 1, False), ("", 1, False), ("t", 2, False)],
)
def test_outputs_are_shared_with_other_coins_of_the_same_tenant_only(tenant, seed, is_found):
    proposer = SuffixTreeProposer(tenant_tokens=100)
    proposer.propose([request([9, 50, 51, 52], name="first", prompt=1, tenant="t", seed=2)])
    proposer.release("first")
    asked = request([1, 50, 51], 1, name="next", prompt=3, tenant=tenant, seed=seed)
    assert proposer.propose([asked])[0].token_ids == ((52,) if is_found else ())


# -- the law -----------------------------------------------------------------------------


class ClaimsALaw(SuffixTreeProposer):
    """Says of copied candidates that they were drawn from a law."""

    def _propose_one(self, request):
        tree = super()._propose_one(request)
        if not len(tree):
            return tree
        laws = tuple(DenseLaw([0.25, 0.25, 0.5]) if below else None for below in tree.children())
        return TreeDraft(tree.token_ids, tree.parents, laws, tree.proposer, tree.note)


@pytest.mark.exact
@pytest.mark.parametrize("rule", TREE_RULES)
@pytest.mark.parametrize(("params", "does_branch"), [(PLAIN, True), (FILTERED, False)])
def test_rounds_of_suffix_trees_emit_the_targets_law(rule, params, does_branch):
    ahead, _ = tables(3)
    sizes = set()

    class Watched(SuffixTreeProposer):
        def _propose_one(self, request):
            tree = super()._propose_one(request)
            sizes.add((len(tree), len(set(tree.parents))))
            return tree

    found = emitted(ahead, lambda: Watched(min_score=EAGER), rule, params, [5, 2, 1], 3)
    assert distance(found, plain_law(ahead, params, 3)) < 1e-12
    assert any(inner < size for size, inner in sizes) == does_branch


@pytest.mark.exact
@pytest.mark.parametrize("rule", ["recursive", "traversal"])
def test_a_suffix_tree_that_claims_a_law_is_seen(rule):
    ahead, _ = tables(3)
    found = emitted(ahead, lambda: ClaimsALaw(min_score=EAGER), rule, PLAIN, [3, 1], 2)
    assert distance(found, plain_law(ahead, PLAIN, 2)) > 1e-3
