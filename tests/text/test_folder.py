"""Tokenizers from a folder with tokenizer.json and its companions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from draftproof.errors import ModelFileError
from draftproof.models import ModelSource
from draftproof.text import Tokenizer, check_same_vocabulary, tokenizer_from_folder

Metadata = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path, byte_level: Metadata) -> Path:
    """The tiny byte-level model, as a folder."""
    texts = byte_level()["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in byte_level()["tokenizer.ggml.merges"]]
    bpe = models.BPE(vocab={text: i for i, text in enumerate(texts)}, merges=merges)
    library = tokenizers.Tokenizer(bpe)
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in texts[:3]])
    library.add_tokens([tokenizers.AddedToken("<tool>", normalized=False)])
    library.enable_truncation(8)
    library.enable_padding(length=8)
    library.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path / "tokenizer_config.json", eos_token={"content": "<|im_end|>"})
    return tmp_path


def write(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")


def test_same_as_from_gguf(folder: Path, tiny: Tokenizer, byte_level: Metadata) -> None:
    (folder / "chat_template.jinja").write_text(byte_level()["tokenizer.chat_template"])
    loaded = Tokenizer.from_source(ModelSource("openvino-ir", folder, "tiny"))
    assert check_same_vocabulary(tiny, loaded, tiny.vocab_size, tiny.vocab_size) == tiny.vocab_size
    assert loaded.eos_token_ids == tiny.eos_token_ids
    for text in ["", "hi the 12", "日本 <tool> é\n", "<|im_start|>hi<|im_end|>", "long " * 30]:
        assert loaded.encode(text) == tiny.encode(text)
        assert loaded.decode(loaded.encode(text)) == text
        messages = [{"role": "user", "content": text}]
        assert loaded.encode_chat(messages) == tiny.encode_chat(messages)
    assert [loaded.token_bytes(i) for i in range(270)] == [tiny.token_bytes(i) for i in range(270)]


def test_end_ids_of_all_files(folder: Path) -> None:
    assert tokenizer_from_folder(folder).eos_token_ids == {2}
    write(folder / "generation_config.json", eos_token_id=[0, 2, 10**6])
    assert tokenizer_from_folder(folder).eos_token_ids == {0, 2}
    write(folder / "config.json", eos_token_id=1)
    assert tokenizer_from_folder(folder).eos_token_ids == {0, 1, 2}
    (folder / "tokenizer_config.json").unlink()
    write(folder / "special_tokens_map.json", eos_token="<|end|>")
    write(folder / "generation_config.json")
    assert tokenizer_from_folder(folder).eos_token_ids == {0, 1}


def test_begin_and_end_from_the_post_processor(folder: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|end|>", special_tokens=[("<|im_start|>", 1), ("<|end|>", 0)]
    )
    library.save(str(folder / "tokenizer.json"))
    loaded = tokenizer_from_folder(folder)
    body = loaded.encode("hi", add_special=False)
    assert loaded.encode("hi") == [1, *body, 0]
    # The flag of the configuration has the last word.
    write(folder / "tokenizer_config.json", bos_token="<|im_start|>", add_bos_token=False)
    assert tokenizer_from_folder(folder).encode("hi") == [*body, 0]


def test_begin_flag_without_a_post_processor(folder: Path) -> None:
    write(folder / "tokenizer_config.json", bos_token="<|im_start|>", add_bos_token=True)
    loaded = tokenizer_from_folder(folder)
    assert loaded.encode("") == [1]


@pytest.mark.parametrize("place", ["string", "list", "json", "jinja"])
def test_places_of_the_chat_template(folder: Path, place: str) -> None:
    source = "<|im_start|>{{ eos_token }}"
    config: dict[str, Any] = {"eos_token": "<|im_end|>"}
    if place == "string":
        config["chat_template"] = source
    elif place == "list":
        config["chat_template"] = [
            {"name": "tool_use", "template": "x"},
            {"name": "default", "template": source},
        ]
    elif place == "json":
        write(folder / "chat_template.json", chat_template=source)
    else:
        (folder / "chat_template.jinja").write_text(source)
    write(folder / "tokenizer_config.json", **config)
    assert tokenizer_from_folder(folder).encode_chat([{"role": "user", "content": "x"}]) == [1, 2]


def test_no_template(folder: Path) -> None:
    assert not tokenizer_from_folder(folder).has_chat_template


def sentencepiece_folder(path: Path, scheme: str) -> Path:
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    texts += ["\u2581", "h", "i", "hi", "\u2581hi", "\n"]
    bpe = models.BPE(
        vocab={text: i for i, text in enumerate(texts)},
        merges=[("h", "i"), ("\u2581", "hi")],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    library = tokenizers.Tokenizer(bpe)
    if scheme == "legacy":
        library.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    else:
        library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    library.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    library.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in texts[:3]])
    library.save(str(path / "tokenizer.json"))
    write(
        path / "tokenizer_config.json",
        bos_token="<s>",
        eos_token="</s>",
        add_bos_token=True,
        chat_template="{{ bos_token }}hi{{ eos_token }}{{ messages[0]['content'] }}",
    )
    return path


@pytest.mark.parametrize(
    ("scheme", "after_control"), [("first", "hi"), ("always", "\u2581hi"), ("legacy", "\u2581hi")]
)
def test_sentencepiece_folder(tmp_path: Path, scheme: str, after_control: str) -> None:
    loaded = tokenizer_from_folder(sentencepiece_folder(tmp_path, scheme))
    ids = {t.text: i for i, t in enumerate(loaded.vocabulary.tokens)}
    assert loaded.encode("hi") == [1, ids["\u2581hi"]]
    assert loaded.token_bytes(3 + 0x41) == b"A"
    assert loaded.decode(loaded.encode("hi é")) == " hi é"
    assert not {1, 2} & set(loaded.encode("<s></s>", add_special=False))
    # In "first", text after a control token is not the first any more, exactly as the
    # library itself decides when it sees the whole text.
    chat = loaded.encode_chat([{"role": "user", "content": "hi"}])
    whole = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert chat == whole.encode("<s>hi</s>hi", add_special_tokens=False).ids
    assert chat[-1] == ids[after_control]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec: spec["model"].update(type="WordPiece"), "kind 'WordPiece', expected 'BPE'"),
        (
            lambda spec: spec.update(decoder={"type": "WordPiece", "prefix": "#", "cleanup": True}),
            "decoder WordPiece, expected ByteLevel",
        ),
        (lambda spec: spec.update(decoder=None), "decoder None"),
        (lambda spec: spec["model"].update(merges=[["q", "zz"]]), "not understood"),
    ],
)
def test_unsupported_kinds_are_named(
    folder: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = folder / "tokenizer.json"
    spec = json.loads(path.read_text())
    change(spec)
    path.write_text(json.dumps(spec))
    with pytest.raises(ModelFileError, match=message) as caught:
        tokenizer_from_folder(folder)
    assert "\n" not in str(caught.value)


def test_missing_and_damaged_files(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json: cannot be read"):
        tokenizer_from_folder(folder)
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ModelFileError, match="holds a list, expected an object"):
        tokenizer_from_folder(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"no tokenizer\.json"):
        tokenizer_from_folder(folder)
