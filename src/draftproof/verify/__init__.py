"""How many drafts survive, and which token follows them.

A rule is a pure function of the draft, of target laws that are computed on demand
and of coins. Every rule that is named by a string is exact in law: whatever the
drafter, the emitted tokens follow the target's own law, position by position and
jointly. What is not exact has no name here: it is an object, wrapped by the caller
in `AllowLossy`, and strict callers refuse it.
"""

from __future__ import annotations

from draftproof.verify.allow_lossy import LOSSY_RULES, AllowLossy, refuse_lossy
from draftproof.verify.dispatch import RULES, plain_token, verify
from draftproof.verify.executor import (
    Executor,
    NumpyExecutor,
    TokenLogprobs,
    VerifyRow,
    rule_for,
)
from draftproof.verify.lossy import AcceptThreshold, Lenience, TypicalAcceptance
from draftproof.verify.reached import Reached
from draftproof.verify.synthetic import SyntheticAcceptance
from draftproof.verify.tree import TREE_RULE_OF, TREE_RULES, verify_tree

__all__ = [
    "LOSSY_RULES",
    "RULES",
    "TREE_RULES",
    "TREE_RULE_OF",
    "AcceptThreshold",
    "AllowLossy",
    "Executor",
    "Lenience",
    "NumpyExecutor",
    "Reached",
    "SyntheticAcceptance",
    "TokenLogprobs",
    "TypicalAcceptance",
    "VerifyRow",
    "plain_token",
    "refuse_lossy",
    "rule_for",
    "verify",
    "verify_tree",
]
