"""What the engine tells a policy of what drafters foresee."""

from __future__ import annotations

from engine_kit import answers, drafter, ids, make_core, plain, requests, run

from draftproof.core.kappa_policy import RowChoice
from draftproof.proposers import NgramProposer


class Watching:
    """Drafts two tokens wherever it may; remembers the rows."""

    def __init__(self):
        self.rows = []

    def choose(self, rows):
        self.rows += rows
        return [
            RowChoice(min(2, row.max_kappa), row.proposers[0]) if row.max_kappa else RowChoice(0)
            for row in rows
        ]

    def observe(self, record):
        pass

    def release(self, request_id):
        pass

    def reset(self):
        pass


class Telling(NgramProposer):
    """Tells by a script; remembers the tokens it was asked about."""

    def __init__(self, answer=None):
        super().__init__(1, 3)
        self.answer = answer
        self.asked = []

    def foretell(self, request_id, token_ids):
        self.asked.append((request_id, tuple(token_ids)))
        if self.answer is None:
            return super().foretell(request_id, token_ids)
        return self.answer()


def signs_of(policy):
    return {row.signs for row in policy.rows if row.max_kappa}


def test_signs_stand_beside_the_drafters_and_follow_the_committed_tokens():
    policy, teller = Watching(), Telling()
    batch = requests(3, 9, max_tokens=20)
    core = make_core(
        proposers=[teller, drafter("self", answers(batch))], kappa=4, kappa_policy=policy
    )
    results = run(core, batch)
    assert ids(results) == ids(plain(batch))
    assert {signs[1] for signs in signs_of(policy)} == {-1}
    assert len({signs[0] for signs in signs_of(policy)}) > 1
    for request_id, tokens in teller.asked:
        whole = (*next(r.prompt_ids for r in batch if r.request_id == request_id),
                 *results[request_id].token_ids)  # fmt: skip
        assert whole[: len(tokens)] == tokens
    assert core.clock.draft_s > 0.0


def test_a_drafter_that_fails_to_tell_tells_nothing():
    def broken():
        raise RuntimeError("no idea")

    for answer in (broken, lambda: 7, lambda: "much"):
        policy = Watching()
        batch = requests(3, 9, max_tokens=12)
        results = run(make_core(proposers=[Telling(answer)], kappa=4, kappa_policy=policy), batch)
        assert ids(results) == ids(plain(batch))
        assert signs_of(policy) == {(-1,)}


def test_nobody_is_asked_without_a_policy_or_for_a_length_of_its_own():
    teller = Telling()
    run(make_core(proposers=[teller], kappa=4), requests(3, max_tokens=8))
    assert not teller.asked
    policy = Watching()
    core = make_core(proposers=[teller], kappa=4, kappa_policy=policy)
    run(core, requests(3, max_tokens=8, kappa=2))
    assert not teller.asked
