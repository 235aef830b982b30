"""The last check at load: the law in pages is the law of the model itself.

A model may keep state where no rule of ours looks: in a convolution, a memory, a mixture
that sorts the tokens of a call. So a short text is scored by the model's own forward, and
again in pages, cut in two, with another sequence in the same passes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.backends.torch_hf.interface import ATTENTION
from draftproof.backends.torch_hf.model import PagedModel
from draftproof.backends.torch_hf.pages import KvPages
from draftproof.backends.torch_hf.plan import PassPlan
from draftproof.cache import PagedCache
from draftproof.core.types import FlatBatch, Row
from draftproof.errors import ModelFileError

__all__ = ["check_law", "logits_limit"]

#: Largest difference of two logits that count as equal, relative to the largest logit.
_TOLERANCE: Final = 2e-3
_TOLERANCE_16_BIT: Final = 0.1
_LENGTH: Final = 7


def check_law(paged: PagedModel) -> None:
    """Refuse a model whose logits in pages are not those of its own forward.

    Parameters
    ----------
    paged : PagedModel
        The model with our attention.

    Raises
    ------
    ModelFileError
        If they differ by more than rounding.

    Notes
    -----
    In 16-bit types the router of a mixture may send a token elsewhere for a rounding
    error, so that there the median row decides, and in float32 the worst.
    """
    text = [(13 + 7919 * place) % paged.vocab_size for place in range(_LENGTH)]
    model = paged.model
    ids = torch.tensor([text], device=paged.device)
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            expected = model(input_ids=ids, use_cache=False).logits[0].float().cpu().numpy()
    finally:
        model.set_attn_implementation(ATTENTION)
    found = _in_pages(paged, text)
    gaps = np.abs(found - expected).max(axis=1) / max(float(np.abs(expected).max()), 1e-6)
    single = paged.dtype == torch.float32
    gap = float(gaps.max() if single else np.median(gaps))
    limit = logits_limit(paged.dtype)
    if not gap <= limit:
        raise ModelFileError(
            f"{type(model).__name__} scores a text in two passes otherwise than in one: logits "
            f"differ by {gap:.2g} of the largest, expected at most {limit:.2g}; it keeps state "
            "that is not in its attention"
        )


def logits_limit(dtype: Any) -> float:
    """Return how far two logits may be apart that differ by rounding.

    Parameters
    ----------
    dtype : torch.dtype
        Type of the model.

    Returns
    -------
    float
        Relative to the largest logit.
    """
    return _TOLERANCE if dtype.itemsize >= 4 else _TOLERANCE_16_BIT


def _in_pages(paged: PagedModel, text: list[int]) -> NDArray[np.float32]:
    """Score a text in two passes that it shares with another one."""
    page_size = 4
    room = 8 * page_size * paged.dtype.itemsize
    room *= sum(shape.num_elements for shape in paged.shapes)
    pages = KvPages(paged.shapes, room, page_size, paged.dtype, paged.device)
    cache = PagedCache(pages.num_pages, page_size, prefix_caching=False)
    own, other = cache.open(), cache.open()
    found = []
    for begin, end in ((0, 4), (4, len(text))):
        # The neighbour reads the text backwards, and stands first.
        pieces = {other: text[::-1][begin:end], own: text[begin:end]}
        past = cache.lengths((other, own))
        batch = FlatBatch.from_rows(
            [Row(row, piece, begin, (row == own) * len(piece)) for row, piece in pieces.items()]
        )
        for row, piece in pieces.items():
            cache.append(row, piece)
        table = cache.block_table((other, own))
        plan = PassPlan(batch, past, table, page_size, paged.device)
        found.append(paged.run(plan, pages)[0].cpu().numpy())
    return np.concatenate(found)
