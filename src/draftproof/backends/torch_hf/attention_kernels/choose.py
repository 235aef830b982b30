"""Which kernel carries out the attention of a model, and what is left to others.

A kernel that is named carries out the model, or loading fails with the reason. ``auto``
takes the best one that is installed and passes its trial on this machine. What a kernel
cannot carry out, some layers or passes that branch, is left to torch's own attention, and
that is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, get_args

from draftproof.backends.torch_hf.attention_kernels.dense import ExplicitKernel, SdpaKernel
from draftproof.backends.torch_hf.attention_kernels.flash import FlashAttention2, FlashAttention3
from draftproof.backends.torch_hf.attention_kernels.flash_infer import FlashInferKernel
from draftproof.backends.torch_hf.attention_kernels.flex import FlexKernel
from draftproof.backends.torch_hf.attention_kernels.protocol import (
    AttentionKernel,
    LayerFacts,
    Place,
)
from draftproof.backends.torch_hf.attention_kernels.trial import try_kernel
from draftproof.backends.torch_hf.plan import PassPlan
from draftproof.errors import ConfigError, InvariantError

__all__ = ["ATTENTIONS", "Attention", "AttentionName", "choose_attention"]

#: How scores are computed; see docs/torch.md.
AttentionName = Literal["auto", "sdpa", "explicit", "flash-attn", "flashinfer", "flex"]
ATTENTIONS: Final[tuple[AttentionName, ...]] = get_args(AttentionName)

#: Slots of a page where neither the user nor a kernel says.
_PAGE_SIZE: Final = 16
#: What a kernel of a name is made of, the first that is there.
_MAKERS: Final[Mapping[str, tuple[Callable[[Place], AttentionKernel], ...]]] = {
    "flash-attn": (FlashAttention3, FlashAttention2),
    "flashinfer": (FlashInferKernel,),
    "flex": (FlexKernel,),
}


class Attention:
    """What a model attends with.

    Parameters
    ----------
    kernel : AttentionKernel
        Carries out all layers and passes that it can.
    refused : mapping of int to str
        Layers that it does not carry out, and why.
    passed_over : sequence of str
        Why other kernels were not taken, for people.
    yields : bool
        Whether passes of fixed shapes, which are captured in CUDA graphs, are left to
        torch's own attention where the kernel cannot be captured.
    """

    def __init__(
        self,
        kernel: AttentionKernel,
        refused: Mapping[int, str] | None = None,
        passed_over: Sequence[str] = (),
        *,
        yields: bool = False,
    ) -> None:
        self.kernel = kernel
        #: Carries out everything, where the kernel does not.
        self.fallback: AttentionKernel = SdpaKernel()
        self.refused = dict(refused or {})
        self._passed_over = tuple(passed_over)
        self._yields = yields

    @property
    def capturable(self) -> bool:
        """Return whether passes of fixed shapes may be captured in CUDA graphs.

        True for torch's own attention, and for what ``auto`` chose: `kernel_of` gives
        such passes to a kernel that is capturable. A graph of another kernel would hold
        the tables of the pass in which it was captured.
        """
        return self.kernel.capturable or self._yields

    @property
    def is_plain(self) -> bool:
        """Return whether torch's own attention carries out everything."""
        return isinstance(self.kernel, ExplicitKernel)

    def kernel_of(self, plan: PassPlan) -> AttentionKernel:
        """Return the kernel of a pass, for the layers that it does not refuse.

        Parameters
        ----------
        plan : PassPlan
            The pass.

        Returns
        -------
        AttentionKernel
            The one that was chosen, or the fallback.

        Raises
        ------
        InvariantError
            If a pass of a fixed shape comes to a kernel that cannot be captured.
        """
        if not self.kernel.capturable and any(group.is_fixed for group in plan.groups):
            if not self._yields:
                raise InvariantError(f"{self.kernel.name} cannot carry out passes of fixed shapes")
            return self.fallback
        return self.kernel if self.kernel.refuses_pass(plan) is None else self.fallback

    def page_size(self) -> int:
        """Return the slots of a page that suit the kernel.

        A kernel that was named gets pages that it reads in place. ``auto`` keeps small
        pages, which more sequences can share.
        """
        return _PAGE_SIZE if self._yields else max(_PAGE_SIZE, self.kernel.page_multiple)

    def note(self) -> str:
        """Return the choice and what is left to others, on one line.

        Empty where torch's own attention was asked for, or is all there is on a CPU.
        """
        if self.is_plain and not self._passed_over:
            return ""
        parts = [self.kernel.name]
        for reason in dict.fromkeys(self.refused.values()):
            layers = [layer for layer, why in self.refused.items() if why == reason]
            parts.append(f"{_numbers(layers)} by {self.fallback.name}: {reason}")
        passes = ["that branch"] * isinstance(self.kernel, FlashAttention2 | FlashAttention3)
        passes += ["in CUDA graphs"] * (self._yields and not self.kernel.capturable)
        if passes:
            parts.append(f"passes {' or '.join(passes)} by {self.fallback.name}")
        return "; ".join([*parts, *self._passed_over])


def choose_attention(
    name: AttentionName, layers: Sequence[LayerFacts], place: Place, page_size: int | None = None
) -> Attention:
    """Return what a model attends with.

    Parameters
    ----------
    name : {"auto", "sdpa", "explicit", "flash-attn", "flashinfer", "flex"}
        The kernel; ``"auto"`` is sdpa on the CPU, and on CUDA the best that is there.
    layers : sequence of LayerFacts
        All layers of the model.
    place : Place
        Where the model computes.
    page_size : int, optional
        Slots of a page; what suits the kernel when None.

    Returns
    -------
    Attention
        The kernel, and what is left to others.

    Raises
    ------
    ConfigError
        If the name is unknown, or a kernel that is named is not installed, cannot carry
        out a layer, or fails its trial.
    """
    if name not in ATTENTIONS:
        raise ConfigError(f"attention is {name!r}, expected one of {', '.join(ATTENTIONS)}")
    if name == "explicit":
        return Attention(ExplicitKernel())
    if name == "sdpa" or (name == "auto" and place.kind != "cuda"):
        return Attention(SdpaKernel())
    if name == "auto":
        return _best(layers, place, page_size)
    kernel = _make(name, place)
    for number, layer in enumerate(layers):
        reason = kernel.refuses(layer)
        if reason is not None:
            raise ConfigError(
                f"attention is {name!r}, but {kernel.name} cannot carry out layer {number} "
                f"({reason}); expected auto, sdpa or explicit"
            )
    try:
        return _tried(kernel, layers, place, page_size or Attention(kernel).page_size())
    except ConfigError as error:
        raise ConfigError(f"attention is {name!r}, but {error}") from error


def _best(layers: Sequence[LayerFacts], place: Place, page_size: int | None) -> Attention:
    """Return the first kernel that carries out the most layers, or torch's own attention.

    FlexAttention has to be compiled for every kind of layer, and has not been timed. It is
    taken only for a model with softcaps or sinks, which torch's fused kernel has not.
    """
    makers = [*_MAKERS["flash-attn"], *_MAKERS["flashinfer"]]
    if any(layer.softcap is not None or layer.has_sinks for layer in layers):
        makers += _MAKERS["flex"]
    best: Attention | None = None
    passed_over: list[str] = []
    for maker in makers:
        try:
            attention = _tried(maker(place), layers, place, page_size or _PAGE_SIZE)
        except ConfigError as error:
            passed_over.append(f"not taken: {error}")
            continue
        if best is None or len(attention.refused) < len(best.refused):
            best = attention
        if not best.refused:
            break
    if best is None:
        return Attention(SdpaKernel(), passed_over=passed_over)
    return Attention(best.kernel, best.refused, passed_over, yields=True)


def _tried(
    kernel: AttentionKernel, layers: Sequence[LayerFacts], place: Place, page_size: int
) -> Attention:
    """Return a kernel with the layers that it refuses, or raise if it is of no use."""
    reasons = {number: kernel.refuses(layer) for number, layer in enumerate(layers)}
    refused = {number: reason for number, reason in reasons.items() if reason is not None}
    taken = [layer for number, layer in enumerate(layers) if number not in refused]
    if not taken:
        raise ConfigError(f"{kernel.name} cannot carry out any layer ({refused[0]})")
    wrong = try_kernel(kernel, taken, place, page_size)
    if wrong is not None:
        raise ConfigError(f"{kernel.name} is unusable here: {wrong}")
    return Attention(kernel, refused)


def _make(name: str, place: Place) -> AttentionKernel:
    """Return the kernel of a name, or raise with everything that is missing."""
    reasons = []
    for maker in _MAKERS[name]:
        try:
            return maker(place)
        except ConfigError as error:
            reasons.append(str(error))
    raise ConfigError(f"attention is {name!r}, but {'; '.join(reasons)}")


def _numbers(layers: Sequence[int]) -> str:
    """Return layers in words, few of them by number."""
    if len(layers) > 4:
        return f"{len(layers)} layers"
    word = "layer" if len(layers) == 1 else "layers"
    return f"{word} {', '.join(map(str, layers))}"
