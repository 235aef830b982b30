"""Packages of attention kernels in plain torch: their signatures, meaning and refusals.

Written from what the packages publish: flash-attn 2.8.3 (``flash_attn/flash_attn_interface.py``
and ``csrc/flash_attn/flash_api.cpp``), flash-attn 3 (``hopper/flash_attn_interface.py``) and
FlashInfer 0.6 (``flashinfer/prefill.py``). Where the real ones leave memory as they found it
the stand-ins leave NaN, and an argument that the real ones do not know is a TypeError here too.
"""

from __future__ import annotations

from types import ModuleType

import torch


def attend(q, k, v, *, scale, causal, window, softcap, mask=None):
    """Attend with one row: q (n, H, D), k (T, G, D), v (T, G, V), corner at the bottom right."""
    num_tokens, num_heads, _ = q.shape
    repeat = num_heads // k.shape[1]
    keys = k.float().repeat_interleave(repeat, 1)
    values = v.float().repeat_interleave(repeat, 1)
    scores = torch.einsum("nhd,thd->hnt", q.float(), keys) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    token = torch.arange(num_tokens)[:, None] + len(k) - num_tokens
    slot = torch.arange(len(k))[None, :]
    left, right = window
    seen = torch.ones(num_tokens, len(k), dtype=torch.bool) if mask is None else mask
    if causal:
        right = 0
    if left >= 0:
        seen = seen & (slot >= token - left)
    if right >= 0:
        seen = seen & (slot <= token + right)
    scores = scores.masked_fill(~seen[None], float("-inf"))
    weights = torch.nan_to_num(torch.softmax(scores, dim=-1))  # a row that sees nothing gives 0
    return torch.einsum("hnt,thd->nhd", weights, values).to(q.dtype)


def check(holds, message):
    if not holds:
        raise RuntimeError(message)


def check_flash(q, k, v, begins):
    check(q.dtype in (torch.float16, torch.bfloat16), "only support fp16 and bf16 data type")
    check(k.dtype == q.dtype, "query and key must have the same dtype")
    check(v.dtype == q.dtype, "query and value must have the same dtype")
    check(begins.dtype == torch.int32, "cu_seqlens_q must have dtype int32")
    check(begins.is_contiguous(), "cu_seqlens_q must be contiguous")
    check(len(begins) > 1, "batch size must be positive")
    for tensor in (q, k, v):
        check(tensor.stride(-1) == 1, "Input tensor must have contiguous last dimension")
    check(q.shape[-1] <= 256, "only supports head dimension at most 256")
    check(q.shape[1] % k.shape[-2] == 0, "Number of heads in key/value must divide")
    check(k.shape == v.shape, "k and v must have the same shape")
    check(q.shape[-1] == k.shape[-1], "q and k must have the same head size")


def from_pages(pages, table, length):
    """Return the first tokens of a row."""
    check(int(table.max()) < len(pages), "an illegal memory access was encountered")
    return pages[table.long()].flatten(0, 1)[:length]


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    check_flash(q, k, v, cu_seqlens_q)
    check(cu_seqlens_k.dtype == torch.int32, "cu_seqlens_k must have dtype int32")
    check(cu_seqlens_k.shape == cu_seqlens_q.shape, "cu_seqlens_k must have shape (batch + 1)")
    if block_table is not None:
        check(block_table.dtype == torch.int32, "block_table must have dtype torch.int32")
        check(k.dim() == 4, "k must have shape (num_blocks, page_block_size, heads, head_size)")
        check(k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
        check(len(block_table) == len(cu_seqlens_q) - 1, "block_table must have shape (batch, ..)")
    else:
        check(k.dim() == 3, "k must have shape (total_k, heads, head_size)")
    output = torch.full_like(q, float("nan"))
    begins, ends = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for row in range(len(begins) - 1):
        length = ends[row + 1] - ends[row]
        if block_table is None:
            keys, values = (tensor[ends[row] : ends[row + 1]] for tensor in (k, v))
        else:
            keys, values = (from_pages(tensor, block_table[row], length) for tensor in (k, v))
        end = min(begins[row + 1], begins[row] + max_seqlen_q)
        check(length <= max_seqlen_k, "a row is longer than max_seqlen_k")
        found = attend(
            q[begins[row] : begins[row + 1]],
            keys,
            values,
            scale=q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
            causal=causal,
            window=window_size,
            softcap=softcap,
        )
        output[begins[row] : end] = found[: end - begins[row]]
    return output


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
):
    check_flash(q, k_cache, v_cache, cu_seqlens_q)
    check(cache_seqlens.dtype == torch.int32, "seqused_k must have dtype int32")
    check(page_table.dtype == torch.int32, "page_table must have dtype torch.int32")
    check(max_seqlen_q is not None, "max_seqlen_q must be given with cu_seqlens_q")
    output = torch.full_like(q, float("nan"))
    begins = cu_seqlens_q.tolist()
    for row, length in enumerate(cache_seqlens.tolist()):
        end = min(begins[row + 1], begins[row] + max_seqlen_q)
        found = attend(
            q[begins[row] : begins[row + 1]],
            from_pages(k_cache, page_table[row], length),
            from_pages(v_cache, page_table[row], length),
            scale=q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
            causal=causal,
            window=window_size,
            softcap=softcap,
        )
        output[begins[row] : end] = found[: end - begins[row]]
    return output


class BatchPrefillWithPagedKVCacheWrapper:
    """FlashInfer's; ``is_hopper`` decides what its backend ``auto`` becomes."""

    is_hopper = False

    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        paged_kv_indptr_buf=None,
        paged_kv_indices_buf=None,
        paged_kv_last_page_len_buf=None,
        custom_mask_buf=None,
        mask_indptr_buf=None,
        backend="auto",
        jit_args=None,
        jit_kwargs=None,
    ):
        if kv_layout not in ("NHD", "HND"):
            raise KeyError(f"Invalid kv_layout {kv_layout}")
        check(float_workspace_buffer.dtype == torch.uint8, "the workspace holds bytes")
        self._layout, self._backend, self._planned = kv_layout, backend, None

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        non_blocking=True,
        prefix_len_ptr=None,
        token_pos_in_items_ptr=None,
        token_pos_in_items_len=0,
        max_item_len_ptr=None,
        seq_lens=None,
        seq_lens_q=None,
        block_tables=None,
        max_token_per_sequence=None,
        max_sequence_kv=None,
        fixed_split_size=None,
        disable_split_kv=False,
    ):
        if self._backend == "auto":  # decided once, by the first plan
            masked = custom_mask is not None
            self._backend = "fa3" if self.is_hopper and not masked else "fa2"
        check(not (self._backend == "fa3" and custom_mask is not None), "fa3 has no custom mask")
        for tensor in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len):
            check(tensor.dtype == torch.int32, "indices are int32")
        check(len(qo_indptr) == len(paged_kv_indptr), "qo_indptr and paged_kv_indptr differ")
        last, size = paged_kv_last_page_len, page_size
        check(bool(((last >= 1) & (last <= size)).all()), "a last page holds 1 to page_size")
        lengths = (paged_kv_indptr.diff() - 1) * size + last
        if custom_mask is not None:
            check(custom_mask.dtype == torch.bool, "the mask is bool")
            check(custom_mask.numel() == int((qo_indptr.diff() * lengths).sum()), "mask size")
        self._planned = {
            "begins": qo_indptr.tolist(),
            "pages": paged_kv_indices.split(paged_kv_indptr.diff().tolist()),
            "lengths": lengths.tolist(),
            "heads": (num_qo_heads, num_kv_heads, head_dim_qk),
            "page_size": page_size,
            "mask": custom_mask,
            "causal": causal and custom_mask is None,
            "scale": head_dim_qk**-0.5 if sm_scale is None else sm_scale,
            "window": (window_left, -1),
            "softcap": logits_soft_cap or 0.0,
            "dtype": getattr(torch, q_data_type) if isinstance(q_data_type, str) else q_data_type,
        }

    def run(
        self,
        q,
        paged_kv_cache,
        *args,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        enable_pdl=None,
        window_left=None,
        sinks=None,
    ):
        planned = self._planned
        check(planned is not None, "run before plan")
        k, v = paged_kv_cache
        if q.dtype != planned["dtype"] or k.dtype != planned["dtype"]:
            raise ValueError("The dtype of q does not match that specified in plan function")
        check(q.dtype in (torch.float16, torch.bfloat16), "no such kernel")
        check((q.shape[1], k.shape[2], q.shape[2]) == planned["heads"], "other heads than planned")
        check(k.shape[1] == planned["page_size"], "another page size than planned")
        check(k.stride() == v.stride(), "k/v strides must be identical")
        begins, offset = planned["begins"], 0
        output = torch.full_like(q, float("nan"))
        for row, (pages, length) in enumerate(
            zip(planned["pages"], planned["lengths"], strict=True)
        ):
            count = begins[row + 1] - begins[row]
            mask = planned["mask"]
            if mask is not None:
                mask = mask[offset : offset + count * length].view(count, length)
            offset += count * length
            output[begins[row] : begins[row + 1]] = attend(
                q[begins[row] : begins[row + 1]],
                from_pages(k, pages, length),
                from_pages(v, pages, length),
                scale=planned["scale"],
                causal=planned["causal"],
                window=planned["window"],
                softcap=planned["softcap"],
                mask=mask,
            )
        return output


class HopperWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """The same on a Hopper device."""

    is_hopper = True


def make_packages():
    """Return the stand-ins, by the name of their module."""
    made = {}
    for name, members in {
        "flash_attn": {"flash_attn_varlen_func": flash_attn_varlen_func},
        "flash_attn_interface": {"flash_attn_with_kvcache": flash_attn_with_kvcache},
        "flashinfer": {"BatchPrefillWithPagedKVCacheWrapper": BatchPrefillWithPagedKVCacheWrapper},
    }.items():
        made[name] = ModuleType(name)
        made[name].__dict__.update(members, __version__="1.2.3")
    return made
