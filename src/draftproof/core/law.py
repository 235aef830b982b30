"""One probability law over the vocabulary: scored, drawn from and subtracted.

A law is a set of non-negative weights; the law *is* ``weights / total``. Weights
stay in the precision they were made in (float32 from logits), the total and every
sum is float64, and drawing and scoring read the same numbers, so no second
rounding can slip between the law that was drawn from and the law that is scored.

Nothing here knows logits, policies or verification rules; a dense law only knows
that its weights may be an exponential that nobody has asked for yet.
"""

from draftproof.core.base_law import Law
from draftproof.core.dense_law import DenseLaw
from draftproof.core.sparse_law import OneHotLaw, SparseLaw

__all__ = ["DenseLaw", "Law", "OneHotLaw", "SparseLaw"]
