"""A head that a training starts from, in place of the linear guess.

A head predicts hidden states, and its draft vocabulary only says which rows of the target's
output layer are read. So a trained head is a start for any other choice of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import file_digest
from typing import Final

from draftproof.backends.fingerprint import TARGET_FINGERPRINT, is_like
from draftproof.errors import ConfigError, IncompatibleModelsError
from draftproof.models.head_files import (
    HeadShape,
    HeadWeights,
    find_head,
    is_own_head,
    read_head,
    weights_file,
)

__all__ = ["StartHead", "read_start"]

#: How much of the hash of its weights names a head.
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, eq=False)
class StartHead:
    """A trained head of the kind that is trained here.

    Parameters
    ----------
    name : str
        What the user called it, and the beginning of the hash of its weights.
    head : HeadWeights
        The head.
    """

    name: str
    head: HeadWeights

    def check(self, shape: HeadShape, target: str, embedding: str) -> None:
        """Refuse a target that the head was not trained for.

        Parameters
        ----------
        shape : HeadShape
            Of a head for the target, with any draft vocabulary.
        target : str
            Name of the target.
        embedding : str
            `draftproof.backends.fingerprint.fingerprint` of its embedding.

        Raises
        ------
        IncompatibleModelsError
            If the shape is another one, or the head's fingerprint, where it has one, is not
            that of the target.
        """
        found = replace(self.head.shape, draft_vocab_size=shape.draft_vocab_size)
        if found != shape:
            raise IncompatibleModelsError(
                f"--start {self.name} is a head of {found}; expected one of {shape} for {target}"
            )
        trained_for = str(self.head.notes.get(TARGET_FINGERPRINT, ""))
        if trained_for and not is_like(trained_for, embedding):
            raise IncompatibleModelsError(
                f"--start {self.name} was trained for {self.head.target}, whose weights are not "
                f"those of {target}; expected a head of the same model"
            )


def read_start(ref: str) -> StartHead:
    """Read a head to start from.

    Parameters
    ----------
    ref : str
        A built-in name such as ``"smollm2-head"``, or a folder that ``distill`` made.

    Returns
    -------
    StartHead
        The head.

    Raises
    ------
    ConfigError
        If it is a published head, which is built otherwise.
    ModelFileError
        If there is no head, or a damaged one.
    """
    folder = find_head(ref)
    if not is_own_head(folder):
        raise ConfigError(
            f"--start {ref}: a published head; expected one that draftproof distill made"
        )
    head = read_head(folder)
    with weights_file(folder).open("rb") as stream:
        digest = file_digest(stream, "sha256").hexdigest()
    return StartHead(f"{ref} ({digest[:_DIGITS]})", head)
