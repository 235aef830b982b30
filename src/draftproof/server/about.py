"""What is loaded: the model, its cache, and how many requests fit at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from draftproof.server.metrics import cache_usage

if TYPE_CHECKING:
    from draftproof.server.app import Service

__all__ = ["model_document"]

#: Lengths for which concurrency is told, beside the whole context.
_LENGTHS = (256, 1024, 4096)


def model_document(service: Service) -> dict[str, Any]:
    """Return the entry of ``/v1/models``.

    Parameters
    ----------
    service : Service
        The service.

    Returns
    -------
    dict
        OpenAI's four fields, vLLM's ``max_model_len``, and ours below ``draftproof``.
    """
    core, config = service.engine.core, service.config
    info = core.target.info
    return {
        "id": config.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "draftproof",
        "max_model_len": info.context_length,
        "draftproof": {
            "name": info.name,
            "runtime": info.runtime,
            "precision": info.precision,
            "vocab_size": info.vocab_size,
            "context_length": info.context_length,
            "drafters": list(core.proposers),
            "default_drafter": core.default_proposer,
            "num_speculative_tokens": config.default_kappa,
            "chooses_lengths": core.chooses_lengths,
            "kv_bytes_per_token": info.kv_bytes_per_token,
            "kv_cache": _cache(service),
            "max_running": config.max_running,
            "max_queue": config.max_queue,
        },
    }


def _cache(service: Service) -> dict[str, Any] | None:
    """Return the size of the cache, and how many sequences of some lengths it holds."""
    info = service.engine.core.target.info
    usage = cache_usage(service.engine.core.target)
    if usage is None or not info.page_size:
        return None

    def fits(length: int, kappa: int) -> int:
        # A step writes the pending token and its drafts past the cached tokens.
        pages = -(-min(length + kappa + 1, info.context_length) // info.page_size)
        return int(usage.total_pages // pages)

    lengths = [*(length for length in _LENGTHS if length < info.context_length)]
    return {
        "total_bytes": usage.total_bytes,
        "total_tokens": usage.total_pages * info.page_size,
        "page_size": info.page_size,
        "pages": {
            "total": usage.total_pages,
            "held": usage.held_pages,
            "free": usage.free_pages,
            "evictable": usage.evictable_pages,
        },
        "num_sequences": usage.num_sequences,
        "max_concurrency": [
            {
                "num_tokens": length,
                "plain": fits(length, 0),
                "speculative": fits(length, service.config.default_kappa),
            }
            for length in (*lengths, info.context_length)
        ],
    }
