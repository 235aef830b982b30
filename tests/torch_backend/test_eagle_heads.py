"""Published EAGLE-3 heads: the runner against a plain forward, and drafts in the engine."""

from __future__ import annotations

from dataclasses import replace

import eagle_kit as kit
import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'draftproof[torch]'")

import torch

from draftproof.backends.torch_hf import TorchHead, load_torch, load_torch_head
from draftproof.backends.torch_hf.head_weights import read_eagle_weights
from draftproof.core.history import History
from draftproof.core.policy import SamplingParams
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.core.types import Draft, FlatBatch, Row
from draftproof.engine import EngineCore, GenerateRequest, SchedulerConfig
from draftproof.errors import BackendError
from draftproof.models.eagle_config import read_eagle_config
from draftproof.proposers.draft_head import DraftHeadProposer

WARM = SamplingParams(temperature=0.9)


def load_target(model, layers=kit.READ, **options):
    options = {"kv_cache_bytes": 1 << 20, "hidden_layers": layers, **options}
    return load_torch(model, **options)


@pytest.fixture(scope="module")
def plain():
    """Return the target as transformers runs it."""
    return kit.target_model()


@pytest.fixture(scope="module")
def target():
    return load_target(kit.target_model())


def tell(target, tokens, widths=None):
    """Return what a target tells of a text that comes in passes of some widths."""
    sequence, told, begin = target.open(), [], 0
    for width in widths or [len(tokens)]:
        row = Row(sequence, list(tokens[begin : begin + width]), begin, 0)
        target.forward(FlatBatch.from_rows([row]))
        told.append(target.hidden())
        begin += width
    target.close(sequence)
    return np.concatenate(told)


TEXT = np.random.default_rng(3).integers(0, kit.VOCAB, 30).tolist()


@pytest.mark.parametrize(
    ("layers", "numbers", "num_layers"),
    [("eagle3", (2, 4, 5), 8), ((0, 3), (0, 3), 4), ((1, 2, 3), (1, 2, 3), 4)],
)
def test_states_are_what_the_layers_read(layers, numbers, num_layers):
    model = kit.target_model(layers=num_layers)
    expected = kit.states(model, TEXT, numbers)
    others = kit.states(model, TEXT, [(n + 1) % num_layers for n in numbers])
    target = load_target(model, layers)
    assert target.info.hidden_size == len(numbers) * kit.WIDTH
    np.testing.assert_allclose(tell(target, TEXT, [17, 1, 12]), expected, atol=2e-4)
    assert np.abs(others - expected).max() > 0.1


@pytest.mark.parametrize("family", ["gpt2", "gemma3", "deepseek-v3", "phi"], indirect=True)
def test_states_of_other_families(family, references, build_model, tokens):
    expected = kit.states(references(family).model, tokens, (0, 1))
    target = load_target(build_model(family), (0, 1))
    np.testing.assert_allclose(tell(target, tokens, [40, 20]), expected, atol=2e-4)


def test_the_last_state_is_taken_before_the_final_norm(plain):
    target = load_target(kit.target_model(), (kit.LAYERS,))
    with torch.inference_mode():
        normed = plain.model.norm(torch.from_numpy(tell(target, TEXT))).numpy()
    np.testing.assert_allclose(normed, kit.states(plain, TEXT, (kit.LAYERS,)), atol=2e-4)


def test_neighbours_and_a_failed_pass_do_not_mix_states(plain, target):
    one, two = target.open(), target.open()
    rows = [Row(one, TEXT[:9], 0, 0), Row(two, TEXT[9:14], 0, 1)]
    target.forward(FlatBatch.from_rows(rows))
    told = target.hidden()
    np.testing.assert_allclose(told[:9], kit.states(plain, TEXT[:9], kit.READ), atol=2e-4)
    np.testing.assert_allclose(told[9:], kit.states(plain, TEXT[9:14], kit.READ), atol=2e-4)

    def fail(*_arguments):
        raise RuntimeError("no power")

    hook = target.model.layers()[3].register_forward_pre_hook(fail)
    with pytest.raises(BackendError, match="no power"):
        target.forward(FlatBatch.from_rows([Row(one, [1], 9, 1)]))
    hook.remove()
    np.testing.assert_array_equal(target.hidden(), told)
    assert all(not layer._forward_pre_hooks for layer in target.model.layers())
    target.close(one)
    target.close(two)


OPTIONS = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"layer": {"attention_bias": True, "mlp_bias": True}},
    {"own_embedding": False},
]


def write(folder, form, options):
    """Write a head; return its folder, its weights, and what the reference is told."""
    options = dict(options)
    layer = options.get("layer", {})
    held = kit.tensors(
        own_embedding=options.pop("own_embedding", True),
        norm_before_fc=options.get("norm_before_fc", False),
        **layer,
    )
    if form == "speculators":
        kit.write_speculators(folder, held, layers=kit.READ, **options)
    else:
        options["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": kit.NAMED}
        kit.write_original(folder, held, pickled=form == "pickled", **options)
    return held, {"norm_before_residual": options.get("norm_before_residual", False)}


def embedding_of(held, model):
    own = held.get("embed_tokens.weight")
    found = model.get_input_embeddings().weight.detach() if own is None else own
    return found.double().numpy()


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "usual")
@pytest.mark.parametrize("form", ["speculators", "original"])
def test_the_runner_is_the_plain_forward_of_the_same_weights(
    tmp_path, plain, target, form, options
):
    held, switches = write(tmp_path, form, options)
    head = load_torch_head(tmp_path, target)
    assert head.draft_ids.tolist() == kit.drafted_ids(held).tolist()
    told, embedding = kit.states(plain, TEXT, kit.READ), embedding_of(held, plain)
    begin, cached = 1, [np.zeros((1, kit.KV_HEADS, 0, kit.DIM), np.float32)] * 2
    for end in (2, 3, 12, 20, 30):  # one pass each, over what the passes before it left
        count = end - begin
        mask = np.full((1, count, end - 1), -1e9, np.float32)
        for row in range(count):
            mask[0, row, : begin + row] = 0.0
        state, logits, *made = head.run(
            told[None, begin - 1 : end - 1].astype(np.float32),
            np.array([TEXT[begin:end]]),
            np.arange(begin, end)[None],
            *cached,
            mask,
        )
        cached = [np.concatenate(pair, axis=2) for pair in zip(cached, made, strict=True)]
        expected, x = kit.reference(held, embedding, told, TEXT[:end], **switches)
        np.testing.assert_allclose(logits, expected, atol=2e-4)
        np.testing.assert_allclose(state, x, atol=2e-4)
        begin = end
    assert np.std(expected) > 0.3


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_head_has_the_type_of_its_target(tmp_path, kind):
    target = load_target(kit.target_model().to(kind))
    held, _switches = write(tmp_path, "original", {})
    head = load_torch_head(tmp_path, target)
    told = tell(target, TEXT)
    assert told.dtype == np.float32
    mask = np.triu(np.full((1, 29, 29), -1e9, np.float32), 1)
    nothing = np.zeros((1, kit.KV_HEADS, 0, kit.DIM), np.float32)
    _state, logits, *_made = head.run(
        told[None, :-1], np.array([TEXT[1:]]), np.arange(1, 30)[None], nothing, nothing, mask
    )
    expected, _ = kit.reference(held, embedding_of(held, None), told, TEXT)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, atol=0.1)


# In the engine: every draft against the reference, and against a fresh head.


class Watched(DraftHeadProposer):
    """Compares each draft with that of a fresh drafter, and notes its laws.

    Every third round it is not asked, which is what kappa 0 looks like to a drafter.
    """

    def __init__(self, runner):
        super().__init__(runner)
        self.told, self.seen = {}, []
        self.num_rounds = self.num_compared = 0

    def observe(self, request_id, start, hidden):
        self.told.setdefault(request_id, []).append((start, hidden.copy()))
        super().observe(request_id, start, hidden)

    def propose(self, requests):
        self.num_rounds += 1
        if self.num_rounds % 3 == 0 or self.num_rounds in range(8, 14):
            return [Draft(proposer=self.name)] * len(requests)
        drafts = super().propose(requests)
        for request, draft in zip(requests, drafts, strict=True):
            fresh = DraftHeadProposer(self._runner)
            for start, hidden in self.told[request.request_id]:
                fresh.observe(request.request_id, start, hidden)
            (expected,) = fresh.propose([request])
            assert draft.token_ids == expected.token_ids
            for left, right in zip(draft.laws or (), expected.laws or (), strict=True):
                np.testing.assert_allclose(left.dense(), right.dense(), atol=2e-5)
            first = len(request.token_ids) - request.history.num_generated
            self.seen.append((first, tuple(request.token_ids), draft))
            self.num_compared += len(draft)
        return drafts


def drive(target, head, *, length=16, count=3):
    """Generate with a head and return the watching drafter and the results."""
    proposer = Watched(head)
    core = EngineCore(
        target, proposers=[proposer], kappa=3, rule="block", scheduler=SchedulerConfig(max_rows=2)
    )
    generator = np.random.default_rng(5)
    for index in range(count):
        prompt = tuple(generator.integers(0, kit.VOCAB, 9 + index).tolist())
        core.submit(
            GenerateRequest(prompt, WARM, max_tokens=length, seed=index, request_id=f"r{index}")
        )
    results = core.run()
    for result in results.values():
        if result.error is not None:
            raise result.error
    assert not [note for result in results.values() for note in result.notes if "Error" in note]
    return proposer, results, core


def gap(seen, plain, held, window=10**9, **switches):
    """Return the largest difference of a law of a draft from the reference's."""
    embedding, ids = embedding_of(held, plain), kit.drafted_ids(held)
    found = 0.0
    for first, tokens, draft in seen:
        if not draft.laws:
            continue
        told = kit.states(plain, tokens, kit.READ)
        rows, _ = kit.reference(
            held, embedding, told, tokens, first=first, drafts=draft.token_ids[:-1],
            window=window, **switches,
        )  # fmt: skip
        for logits, law in zip(rows, draft.laws, strict=True):
            expected = np.zeros(kit.VOCAB)
            expected[ids] = np.exp((logits - logits.max()) / WARM.temperature)
            found = max(found, float(np.abs(law.dense() - expected / expected.sum()).max()))
    return found


@pytest.mark.parametrize("form", ["speculators", "pickled"])
def test_drafts_are_those_of_the_reference_and_of_a_fresh_head(tmp_path, plain, target, form):
    held, switches = write(tmp_path, form, {})
    proposer, results, _core = drive(target, load_torch_head(tmp_path, target))
    assert proposer.num_compared > 30
    assert any(r.stats.num_accepted_tokens < r.stats.num_draft_tokens for r in results.values())
    assert gap(proposer.seen, plain, held, **switches) < 5e-4


def test_a_window_hides_what_is_further_back(tmp_path, plain, target):
    held, _switches = write(tmp_path, "original", {})
    proposer, _results, _core = drive(target, load_torch_head(tmp_path, target, window=4), count=1)
    assert gap(proposer.seen, plain, held, window=4) < 5e-4
    assert gap(proposer.seen, plain, held) > 1e-2


def test_a_request_that_was_preempted_drafts_as_before(tmp_path, plain):
    # Room for two prompts and the first of their answers.
    target = load_target(kit.target_model(), kv_cache_bytes=12 * 4 * 512, page_size=4)
    held, switches = write(tmp_path, "original", {})
    proposer, _results, core = drive(target, load_torch_head(tmp_path, target), length=24)
    assert core.num_preemptions > 0
    assert proposer.num_compared > 30
    assert gap(proposer.seen, plain, held, **switches) < 5e-4


def head_with(folder, target, change=lambda held: held, ids=None, kind=TorchHead):
    """Return the head of a folder with changed weights, map of tokens or code."""
    config = read_eagle_config(folder / "config.json")
    found = read_eagle_weights(folder, config)
    found = replace(found, tensors=change(dict(found.tensors)))
    if ids is not None:
        found = replace(found, draft_ids=ids(found.draft_ids))
    model = target.model
    return kind(
        config, found, embedding=model.embedding(), vocab_size=target.info.vocab_size,
        device=model.device, dtype=model.dtype,
    )  # fmt: skip


def swap(held):
    names = "input_layernorm.weight", "hidden_norm.weight"
    return held | {names[0]: held[names[1]], names[1]: held[names[0]]}


class Reversed(TorchHead):
    """Reads [norm(hidden), norm(embedding)]."""

    def _fused(self, features, embedded):
        read, stream = super()._fused(features, embedded)
        return torch.cat(read.chunk(2, -1)[::-1], -1), stream


class Normed(TorchHead):
    """Feeds the state behind its norm back, as heads of type eagle do."""

    def _pass(self, *given):
        x, *others = super()._pass(*given)
        return self._norm(x, "norm"), *others


def drafts(target, head, num_texts=3):
    """Return drafts behind texts that the target is told of, as `gap` takes them."""
    found = []
    for end in range(20, 20 + num_texts):
        proposer = DraftHeadProposer(head)
        proposer.observe("r", 0, tell(target, TEXT[: end - 1]))
        history = History(TEXT[:9])
        for token in TEXT[9:end]:
            history.append(token)
        coins = CoinSource(end).round(end)
        request = ProposalRequest("r", TEXT[:end], 3, WARM, history, coins)
        found.append((9, TEXT[:end], *proposer.propose([request])))
    assert all(len(draft) == 3 for *_, draft in found)
    return found


@pytest.fixture(scope="module")
def others():
    """Return targets that tell other states, by those states."""
    layers = ((0, 1, 2), (2, 3, 4), (1, 2, 4))
    return {numbers: load_target(kit.target_model(), numbers) for numbers in layers}


@pytest.mark.parametrize(
    ("layers", "options"),
    [
        (kit.READ, {}),
        ((0, 1, 2), {}),
        ((2, 3, 4), {}),
        ((1, 2, 4), {}),
        (kit.READ, {"ids": lambda ids: np.arange(len(ids))}),
        (kit.READ, {"change": swap}),
        (kit.READ, {"kind": Reversed}),
        (kit.READ, {"kind": Normed}),
    ],
    ids=["healthy", "layer before", "layer behind", "one layer", "no offset", "norms swapped",
         "halves swapped", "state normed"],
)  # fmt: skip
def test_faults_are_seen(tmp_path, plain, target, others, layers, options):
    held, switches = write(tmp_path, "original", {})
    told = others.get(layers, target)
    seen = drafts(told, head_with(tmp_path, told, **options))
    found = gap(seen, plain, held, **switches)
    if layers == kit.READ and not options:
        assert found < 5e-4
    else:
        assert found > 1e-2
