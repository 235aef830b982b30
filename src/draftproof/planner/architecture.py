"""What a model must stream and compute per pass, from its dimensions.

Everything here is *derived* from configuration files, not measured. Embedding tables
are gathered, not streamed: one pass reads one row per token. An output layer is
streamed whole; when it is tied to the embeddings, that one table is streamed.
Norms, biases and rotary tables are left out; they are below 0.1 % of the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from draftproof.errors import ConfigError

__all__ = ["LatentAttention", "ModelShape", "MoeShape"]


@dataclass(frozen=True, slots=True)
class MoeShape:
    """The sparse part of a mixture-of-experts model.

    Parameters
    ----------
    num_experts : int
        Routed experts per sparse layer.
    experts_per_token : int
        Routed experts that each token takes.
    intermediate_size : int
        Width of one routed expert.
    shared_intermediate_size : int
        Total width of the experts that every token takes; 0 for none.
    num_sparse_layers : int
        Layers with experts; the others are dense.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int
    num_sparse_layers: int

    def __post_init__(self) -> None:
        """Check ranges."""
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ConfigError(
                f"experts_per_token {self.experts_per_token}: expected 1 to {self.num_experts}"
            )

    def distinct_experts(self, num_tokens: float) -> float:
        """Return the expected number of distinct experts that a pass touches per layer.

        Parameters
        ----------
        num_tokens : float
            Tokens in the pass, at least 0.

        Returns
        -------
        float
            ``E (1 - (1 - a / E)^n)``: tokens route independently and evenly. Real
            routing is skewed and correlated within a text, which touches fewer.
        """
        share = self.experts_per_token / self.num_experts
        return float(self.num_experts * (1.0 - (1.0 - share) ** num_tokens))


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, 2405.04434, section 2.1).

    Parameters
    ----------
    kv_rank, q_rank : int
        Ranks of the compressed keys and values, and of the queries (0: not compressed).
    rope_dim, nope_dim, v_dim : int
        Per head: rotary part, plain part, value.
    """

    kv_rank: int
    q_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Dimensions of a decoder-only transformer, and how its numbers are held.

    Parameters
    ----------
    name : str
        Name shown to people.
    num_layers, hidden_size : int
        Blocks and width of the residual stream.
    num_heads, num_kv_heads, head_dim : int
        Query heads, key and value heads (fewer under grouped queries), width of a head.
    intermediate_size : int
        Width of a dense feed-forward layer.
    vocab_size : int
        Rows of the output layer.
    tied_embeddings : bool
        Whether the output layer is the embedding table.
    gated_mlp : bool, default True
        Three matrices per feed-forward layer instead of two.
    context_length : int, default 0
        Longest sequence; 0 when the configuration does not say.
    moe : MoeShape, optional
        Experts.
    latent : LatentAttention, optional
        Latent attention in place of grouped queries.
    window, num_windowed_layers : int, default 0
        Sliding window, and how many layers have it.
    weight_bytes_per_param, head_bytes_per_param : float, default 2
        Bytes per weight of the blocks, scales included, and of the output layer.
    kv_bytes_per_element : float, default 2
        Bytes per cached number, scales included.
    exact_bytes : tuple of float, optional
        Bytes of (dense blocks, all experts, output layer, embedding table) where the
        file lists its tensors; they take the place of parameters times bytes.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied_embeddings: bool
    gated_mlp: bool = True
    context_length: int = 0
    moe: MoeShape | None = None
    latent: LatentAttention | None = None
    window: int = 0
    num_windowed_layers: int = 0
    weight_bytes_per_param: float = 2.0
    head_bytes_per_param: float = 2.0
    kv_bytes_per_element: float = 2.0
    exact_bytes: tuple[float, float, float, float] | None = None

    def __post_init__(self) -> None:
        """Refuse dimensions that cannot be."""
        names = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size")
        for name in names:
            if getattr(self, name) < 1:
                raise ConfigError(f"{self.name}: {name} is {getattr(self, name)}; expected >= 1")
        for name in ("weight_bytes_per_param", "head_bytes_per_param", "kv_bytes_per_element"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{self.name}: {name} is {getattr(self, name)}; expected > 0")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.name}: {self.num_heads} heads over {self.num_kv_heads} key heads; "
                "expected a multiple"
            )

    @property
    def attention_params(self) -> int:
        """Weights of one layer's attention projections."""
        d = self.hidden_size
        if self.latent is not None:
            mla = self.latent
            q_width = self.num_heads * (mla.nope_dim + mla.rope_dim)
            q = d * mla.q_rank + mla.q_rank * q_width if mla.q_rank else d * q_width
            kv = d * (mla.kv_rank + mla.rope_dim)
            kv += mla.kv_rank * self.num_heads * (mla.nope_dim + mla.v_dim)
            return q + kv + self.num_heads * mla.v_dim * d
        return 2 * d * self.head_dim * (self.num_heads + self.num_kv_heads)

    @property
    def mlp_matrices(self) -> int:
        """Matrices of a feed-forward layer."""
        return 3 if self.gated_mlp else 2

    @property
    def params_per_dense_layer(self) -> int:
        """Weights of one layer without experts."""
        return self.attention_params + self.mlp_matrices * self.hidden_size * self.intermediate_size

    @property
    def head_params(self) -> int:
        """Weights of the output layer."""
        return self.vocab_size * self.hidden_size

    @property
    def expert_params(self) -> int:
        """Weights of one routed expert in one layer."""
        if self.moe is None:
            return 0
        return self.mlp_matrices * self.hidden_size * self.moe.intermediate_size

    @property
    def dense_block_params(self) -> int:
        """Weights of the blocks that every token passes, routed experts left out."""
        if self.moe is None:
            return self.num_layers * self.params_per_dense_layer
        dense_layers = self.num_layers - self.moe.num_sparse_layers
        shared = self.mlp_matrices * self.hidden_size * self.moe.shared_intermediate_size
        router = self.hidden_size * self.moe.num_experts
        sparse = self.attention_params + shared + router
        return dense_layers * self.params_per_dense_layer + self.moe.num_sparse_layers * sparse

    @property
    def all_expert_params(self) -> int:
        """Weights of all routed experts of all layers."""
        if self.moe is None:
            return 0
        return self.moe.num_sparse_layers * self.moe.num_experts * self.expert_params

    @property
    def total_params(self) -> int:
        """All weights, the embedding table once when it is tied."""
        tables = self.head_params * (1 if self.tied_embeddings else 2)
        return self.dense_block_params + self.all_expert_params + tables

    @property
    def active_params(self) -> int:
        """Weights that one token is multiplied with, the output layer among them."""
        experts = 0
        if self.moe is not None:
            experts = self.moe.num_sparse_layers * self.moe.experts_per_token * self.expert_params
        return self.dense_block_params + experts + self.head_params

    @property
    def streamed_params(self) -> float:
        """Weights that a pass of one token reads: `active_params`."""
        return float(self.active_params)

    def bytes_of_parts(self) -> tuple[float, float, float, float]:
        """Return the bytes of dense blocks, all experts, output layer, embedding table.

        Returns
        -------
        tuple of float
            From the tensor directory of a file, or parameters times bytes each. The
            table has 0 bytes of its own when it is tied.
        """
        if self.exact_bytes is not None:
            return self.exact_bytes
        table = 0.0 if self.tied_embeddings else self.head_params * self.head_bytes_per_param
        return (
            self.dense_block_params * self.weight_bytes_per_param,
            self.all_expert_params * self.weight_bytes_per_param,
            self.head_params * self.head_bytes_per_param,
            table,
        )

    @property
    def stored_bytes(self) -> float:
        """Bytes that all weights take in memory."""
        return sum(self.bytes_of_parts())

    def streamed_bytes(self, num_tokens: float = 1.0) -> float:
        """Return the bytes of weights that one pass reads.

        Parameters
        ----------
        num_tokens : float, default 1
            Tokens in the pass: with experts, more tokens touch more of them.

        Returns
        -------
        float
            Each touched weight once.
        """
        dense, experts, head, _table = self.bytes_of_parts()
        if self.moe is not None:
            experts *= self.moe.distinct_experts(num_tokens) / self.moe.num_experts
        return dense + experts + head

    @property
    def flops_per_token(self) -> float:
        """Arithmetic of one token without attention scores: 2 per multiply-add."""
        return 2.0 * self.active_params

    def attention_flops(self, context: float) -> float:
        """Return the arithmetic of one token's attention over its context.

        Parameters
        ----------
        context : float
            Cached tokens.

        Returns
        -------
        float
            Scores and weighted sums, 2 per multiply-add.
        """
        width = 2 * self.head_dim
        if self.latent is not None:  # keys and values are used compressed
            width = 2 * self.latent.kv_rank + self.latent.rope_dim
        return 2.0 * self.num_heads * width * self.cached_positions(context)

    @property
    def kv_elements_per_layer(self) -> int:
        """Cached numbers per token and layer."""
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope_dim
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of cache per token while no layer's window is full."""
        return self.num_layers * self.kv_elements_per_layer * self.kv_bytes_per_element

    def cached_positions(self, context: float) -> float:
        """Return cached positions summed over the layers; windows cap their own."""
        plain = self.num_layers - self.num_windowed_layers
        return plain * context + self.num_windowed_layers * min(context, self.window or context)

    def kv_bytes(self, context: float) -> float:
        """Return the bytes of one sequence's cache, which one pass over it reads.

        Parameters
        ----------
        context : float
            Cached tokens.

        Returns
        -------
        float
            Keys and values of all layers.
        """
        return (
            self.cached_positions(context)
            * self.kv_elements_per_layer
            * (self.kv_bytes_per_element)
        )

    def quantised(
        self, weight_bits: float | None = None, kv_bits: float | None = None
    ) -> ModelShape:
        """Return the same model with its numbers held in other widths.

        Parameters
        ----------
        weight_bits : float, optional
            Bits per weight, scales included, of blocks and output layer.
        kv_bits : float, optional
            Bits per cached number.

        Returns
        -------
        ModelShape
            Unchanged where None is given.
        """
        changed = self
        if weight_bits is not None:
            held = weight_bits / 8
            changed = replace(
                changed, weight_bytes_per_param=held, head_bytes_per_param=held, exact_bytes=None
            )
        if kv_bits is not None:
            changed = replace(changed, kv_bytes_per_element=kv_bits / 8)
        return changed
