"""What a suffix draft should be, by comparing every place with every other."""

from draftproof.core.policy import History, SamplingParams
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource

GREEDY = SamplingParams(temperature=0.0)


def request(tokens, kappa=8, name="a", *, prompt=None, seed=1, tenant="", prediction=()):
    """A request whose first ``prompt`` tokens are its prompt, all of them if None."""
    num_prompt = len(tokens) if prompt is None else prompt
    history = History(tokens[:num_prompt])
    for token in tokens[num_prompt:]:
        history.append(token)
    coins = CoinSource(seed).round(len(tokens))
    return ProposalRequest(
        name, tokens, kappa, GREEDY, history, coins, False, tuple(prediction), tenant
    )


def matches(texts, tokens, max_match):
    """Match length of every place of every text: (text number, place) -> length."""
    lengths = {}
    for number, text in enumerate(texts):
        for place in range(1, len(text)):
            length = 0
            while (
                length < min(max_match, place, len(tokens))
                and text[place - 1 - length] == tokens[-1 - length]
            ):
                length += 1
            lengths[number, place] = length
    return lengths


def reference_draft(tokens, kappa, *, min_match=1, max_match=32, min_score=0.1, shared=()):
    """Own text first, then what is shared, if it matches longer."""
    own = matches([tokens], tokens, max_match)
    there = matches(shared, tokens, max_match)
    own_length, length_there = max(own.values(), default=0), max(there.values(), default=0)
    is_own = own_length >= length_there
    length = max(own_length, length_there)
    if length < min_match or length == 0:
        return ()
    texts, lengths = ([tokens], own) if is_own else (shared, there)
    voters = sorted(key for key, found in lengths.items() if found == length)
    drafted, score = [], 1.0
    while len(drafted) < kappa:
        # What each voter would continue with, in order of the text.
        said = []
        for number, place in voters:
            text = [*texts[number], *drafted] if is_own else texts[number]
            if place + len(drafted) < len(text):
                said.append(((number, place), text[place + len(drafted)]))
        if not said:
            break
        count = {token: sum(t == token for _, t in said) for _, token in said}
        most = max(count.values())
        newest = [token for _, token in said if count[token] == most][-1]
        evidence = (length + len(drafted)) * most
        score *= evidence / ((length + len(drafted)) * len(said) + 2.5)
        if score < min_score:
            break
        drafted.append(newest)
        voters = [key for key, token in said if token == newest]
    return tuple(drafted)
