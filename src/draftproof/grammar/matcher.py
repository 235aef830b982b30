"""The state of one request's grammar, and what it says about drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import llguidance
import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ConfigError, InvariantError
from draftproof.grammar.bridge import VocabularyBridge

__all__ = ["GrammarConstraint"]

Path = tuple[int, ...]
Mask = NDArray[np.bool_]
Answer = TypeVar("Answer")


class _TooComplexError(ConfigError):
    """A limit of the parser was reached."""


class GrammarConstraint:
    """Implements `draftproof.core.constraint.Constraint` over an llguidance parser.

    Parameters
    ----------
    start : llguidance.LLMatcher
        The parser at the start of the grammar. Copied, never advanced: it may be shared.
    bridge : VocabularyBridge
        The tokens of the model.
    compile_anew : callable
        Returns another parser at the start of the same grammar, which shares nothing.

    Notes
    -----
    The parser may stand past the committed output, on a drafted path that was asked
    about; ``_ahead`` says how far. A question about another path rolls it back to where
    the two part, so positions 0 .. K of a draft, or the nodes of a tree in the order of
    a walk, cost one step each. Masks are kept by path; those on the path that is then
    committed are kept on, so a position is never computed twice.

    The parser is never given an end token: its ``rollback`` over an end that follows a
    finished match takes back one token too many (seen with llguidance 1.9.1). Ends are
    decided here, from the mask. Nor is it given a token that its mask lacks, which would
    leave it in an error for good.

    Copies of a parser share one lexer and the limit of what it may hold. Where it ran
    full, perhaps on what others asked, the question is put once more to a parser of its
    own, so that an answer depends on the path alone.
    """

    __slots__ = (
        "_ahead",
        "_bridge",
        "_committed",
        "_compile_anew",
        "_ended",
        "_masks",
        "_parser",
        "_start",
    )

    def __init__(
        self,
        start: llguidance.LLMatcher,
        bridge: VocabularyBridge,
        compile_anew: Callable[[], llguidance.LLMatcher],
    ) -> None:
        self._start: llguidance.LLMatcher | None = start
        self._compile_anew = compile_anew
        self._bridge = bridge
        self._parser: llguidance.LLMatcher | None = start.deep_copy()
        self._committed: list[int] = []
        self._ahead: list[int] = []
        self._ended = False
        self._masks: dict[Path, Mask | None] = {}

    def allowed(self, extra: Sequence[int] = ()) -> Mask | None:
        """Return which tokens may follow the committed output and ``extra``.

        Parameters
        ----------
        extra : sequence of int
            Drafted tokens after the committed ones.

        Returns
        -------
        ndarray of bool, shape (V,), or None
            Read only. None where ``extra`` breaks the grammar. After an end, ends only.

        Raises
        ------
        ConfigError
            If the grammar leads to a place where no token of the model can go on, or
            needs more work than one position may cost.
        """
        path = tuple(extra)
        known = len(path)
        while known and path[:known] not in self._masks:
            known -= 1
        for length in range(known, len(path) + 1):
            if path[:length] not in self._masks:
                self._masks[path[:length]] = self._mask_after(path[:length])
        return self._masks[path]

    def forced(self, limit: int) -> Path:
        """Return the tokens that are certain: at each place the only one allowed.

        Parameters
        ----------
        limit : int
            Most tokens to return.

        Returns
        -------
        tuple of int
            One after the other; an end is not among them.
        """
        path: Path = ()
        while len(path) < limit:
            token = self._only_one(path)
            if token is None:
                break
            path += (token,)
        return path

    def likely(self, limit: int) -> Path:
        """Return tokens to draft: text that is certain, cut as the tokenizer cuts it.

        Parameters
        ----------
        limit : int
            Most tokens to return.

        Returns
        -------
        tuple of int
            One after the other, each allowed by the grammar; an end is not among them.
            Other cuts of the same text are allowed too, so these are drafts, to be judged.
        """
        path: Path = ()
        while len(path) < limit:
            token = self._only_one(path)
            step = (token,) if token is not None else self._certain_text(path)
            if not step:
                break
            path += step
        return path[: max(limit, 0)]

    def advance(self, token: int) -> None:
        """Take in a committed token.

        Parameters
        ----------
        token : int
            The token.

        Raises
        ------
        InvariantError
            If the grammar does not allow it.
        """
        mask = self.allowed()
        if not _holds(mask, token):
            raise InvariantError(
                f"token {token} was committed after {len(self._committed)} tokens of output: "
                "the grammar does not allow it there"
            )
        if self._bridge.is_end(token):
            self._ended = True
            self._masks = {}
            return
        if self._ahead[:1] != [token]:
            self._ask((token,), lambda _: None)
        del self._ahead[0]
        self._committed.append(token)
        self._masks = {p[1:]: mask for p, mask in self._masks.items() if p[:1] == (token,)}

    @property
    def is_complete(self) -> bool:
        """Whether the output matches and nothing but an end may follow."""
        return self._ended or self._ends_only(())

    def _mask_after(self, path: Path) -> Mask | None:
        if self._ended:
            return self._bridge.ends if all(map(self._bridge.is_end, path)) else None
        if path:
            if not _holds(self._masks[path[:-1]], path[-1]):
                return None
            if self._bridge.is_end(path[-1]):
                return self._bridge.ends
        return self._bridge.unpack(self._ask(path, lambda parser: parser.compute_bitmask()))

    def _ask(self, path: Path, question: Callable[[llguidance.LLMatcher], Answer]) -> Answer:
        """Return what the parser says at the end of an allowed path."""
        try:
            return self._ask_once(path, question)
        except _TooComplexError:
            return self._ask_once(path, question)

    def _ask_once(self, path: Path, question: Callable[[llguidance.LLMatcher], Answer]) -> Answer:
        parser = self._stand_at(path)
        answer = question(parser)
        # A place with no way on reads as an end in llguidance's mask; only the error tells.
        if parser.is_error():
            raise self._stuck(path, parser)
        return answer

    def _stand_at(self, path: Path) -> llguidance.LLMatcher:
        parser = self._parser
        if parser is None:
            if self._start is None:
                self._start = self._compile_anew()
            parser = self._start.deep_copy()
            if not parser.consume_tokens(self._committed):
                raise self._stuck((), parser)
            self._parser = parser
        shared = 0
        for here, wanted in zip(self._ahead, path, strict=False):
            if here != wanted:
                break
            shared += 1
        if shared < len(self._ahead):
            parser.rollback(len(self._ahead) - shared)
            del self._ahead[shared:]
        for token in path[shared:]:
            if not parser.consume_token(token):
                raise self._stuck(path, parser)
            self._ahead.append(token)
        return parser

    def _stuck(self, path: Path, parser: llguidance.LLMatcher) -> ConfigError:
        # An error is for good in llguidance: the next question starts a new parser.
        self._parser = None
        self._ahead = []
        place = f"after {len(self._committed) + len(path)} tokens of output"
        reason = (parser.get_error().splitlines() or ["unknown error"])[0]
        if reason.startswith("NoExtension"):
            return ConfigError(f"the grammar cannot go on {place}: no token of the model fits it")
        self._start = None
        return _TooComplexError(f"the grammar is too complex {place}: the parser ran into a limit")

    def _only_one(self, path: Path) -> int | None:
        mask = self.allowed(path)
        if mask is None or np.count_nonzero(mask) != 1:
            return None
        token = int(mask.argmax())
        return None if self._bridge.is_end(token) else token

    def _ends_only(self, path: Path) -> bool:
        mask = self.allowed(path)
        return mask is not None and not np.greater(mask, self._bridge.ends).any()

    def _certain_text(self, path: Path) -> Path:
        if self._ended or self._ends_only(path):
            return ()
        certain = self._ask(path, lambda parser: parser.compute_ff_bytes())
        tokens = self._bridge.tokens_of(certain)
        if not tokens or self.allowed(path + tokens) is None:
            return ()
        # What comes next may belong into one token with the end of this text.
        return tokens if self._ends_only(path + tokens) else tokens[:-1]


def _holds(mask: Mask | None, token: int) -> bool:
    return mask is not None and 0 <= token < len(mask) and bool(mask[token])
