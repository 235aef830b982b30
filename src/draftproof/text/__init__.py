"""Text: tokenizers, streamed detokenization, stop strings, vocabularies.

This room knows tokens and characters. It runs no model.
"""

from draftproof.text.bridge import TextBridge
from draftproof.text.chat import ChatTemplate
from draftproof.text.detokenize import TextStream
from draftproof.text.from_folder import tokenizer_from_folder
from draftproof.text.from_gguf import tokenizer_from_gguf
from draftproof.text.stop import StopMatcher, StopUpdate
from draftproof.text.tokenizer import Tokenizer
from draftproof.text.vocabulary import Token, Vocabulary, check_same_vocabulary

__all__ = [
    "ChatTemplate",
    "StopMatcher",
    "StopUpdate",
    "TextBridge",
    "TextStream",
    "Token",
    "Tokenizer",
    "Vocabulary",
    "check_same_vocabulary",
    "tokenizer_from_folder",
    "tokenizer_from_gguf",
]
