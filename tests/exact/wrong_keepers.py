"""Executors that keep too many first drafts, or too few."""

from __future__ import annotations

from draftproof.core.types import TreeVerdict
from draftproof.verify import NumpyExecutor


class KeepsTooMany(NumpyExecutor):
    """Keeps the first draft where the rule threw it away, half of the time."""

    def judge(self, rows, logits):
        found = []
        for row, verdict in zip(rows, super().judge(rows, logits), strict=True):
            if row.draft.token_ids and not verdict.path and row.coins.sample(7) < 0.5:
                following = int(logits[row.first_row + 1].argmax())
                verdict = TreeVerdict((0,), following, verdict.source)
            found.append(verdict)
        return found


class KeepsTooFew(NumpyExecutor):
    """Calls a kept first draft a recovered token, half of the time: the law stays right."""

    def judge(self, rows, logits):
        found = []
        for row, verdict in zip(rows, super().judge(rows, logits), strict=True):
            if verdict.path and row.coins.sample(7) < 0.5:
                verdict = TreeVerdict((), row.draft.token_ids[verdict.path[0]], "recovered")
            found.append(verdict)
        return found
