"""Behaviour that all heads share: loss, training, saving, loading, directions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DynamicCache,
)

from models.conftest import HEADS, STACKS
from synthetic_attention.models import SynthesizerConfig, SynthesizerModel

Rows = tuple[Tensor, Tensor]
AUTO = {
    "seq2seq": AutoModelForSeq2SeqLM,
    "causal": AutoModelForCausalLM,
    "classifier": AutoModelForSequenceClassification,
    "masked": AutoModelForMaskedLM,
    "tagger": AutoModelForTokenClassification,
}
# The heads whose models differ, and those with an output projection.
KINDS, LANGUAGE_MODELS = ["seq2seq", "causal", "classifier"], ["seq2seq", "causal", "masked"]
MIXED = ["random+vanilla", "factorized_dense"]
# The encoder has two layers, and so has the decoder.
SIDES = {"encoder": ["random+vanilla", "dense"], "decoder": ["factorized_dense+vanilla", "fixed_random"]}
BASELINES = {"encoder": ["linformer", "dynamic_conv"], "decoder": ["local_dense", "lightweight_conv"]}
RECORD = ["output_attentions", "output_hidden_states"]
CHECKPOINTS = Path(__file__).parent / "checkpoints"


@pytest.fixture
def batch(rows: Rows) -> Callable[[str], dict[str, Tensor]]:
    """Inputs and labels of a head."""
    ids, mask = rows
    labels = {
        "seq2seq": torch.randint(3, 53, (4, 5)),
        "causal": ids.masked_fill(mask == 0, -100),
        "classifier": torch.tensor([1, 0, -100, 1]),
        "masked": ids.where((mask == 1) & (torch.arange(7) % 3 > 0), -100),
        "tagger": (ids % 2).masked_fill(mask == 0, -100),
    }
    labels["seq2seq"][1, 3:] = -100
    return lambda head: {"input_ids": ids, "attention_mask": mask, "labels": labels[head]}


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "relative", "rotary"])
@pytest.mark.parametrize("stack", [*STACKS, "others"])
@pytest.mark.parametrize("head", KINDS)
def test_a_padded_row_equals_the_row_alone(head: str, stack: str, positions: str, build: Callable, rows: Rows) -> None:
    others = {"seq2seq": SIDES, "causal": MIXED, "classifier": "linformer"}
    fields: dict[str, Any] = STACKS.get(stack, {"synthesizer": others[head], "pre_norm": False})
    if head == "classifier":
        fields = {**fields, "type_vocab_size": 2, "classifier_pooling": "first" if stack == "windows" else "mean"}
    model, record = build(head, **fields | {"position_embedding_type": positions}), dict.fromkeys(RECORD, True)
    ids, real, inputs = rows[0], rows[1].bool(), {}
    target = torch.ones(4, 5, dtype=torch.bool)
    target[[0, 0, 1, 2], [0, 1, 2, 4]] = False
    sides = {"": real}
    if head == "seq2seq":
        inputs = {"decoder_input_ids": torch.randint(3, 53, (4, 5)), "decoder_attention_mask": target}
        sides = {"encoder_": real, "decoder_": target}
    elif head == "classifier":
        inputs = {"token_type_ids": torch.randint(0, 2, ids.shape)}
    together = model(ids, real, **inputs, **record)
    for row in range(4):
        kept = target[row] if head == "seq2seq" else real[row]
        own = {name: x[row : row + 1, kept] for name, x in inputs.items()}
        alone = model(ids[row : row + 1, real[row]], **own, **record)
        logits = together.logits[row] if head == "classifier" else together.logits[row, kept]
        torch.testing.assert_close(logits, alone.logits[0])
        for side, mask in sides.items():
            for mine, other in zip(together[f"{side}hidden_states"], alone[f"{side}hidden_states"], strict=True):
                torch.testing.assert_close(mine[row, mask[row]], other[0])
            for mine, other in zip(together[f"{side}attentions"], alone[f"{side}attentions"], strict=True):
                torch.testing.assert_close(mine[row][:, mask[row]][..., mask[row]], other[0])
        if head == "seq2seq":
            for mine, other in zip(together.cross_attentions, alone.cross_attentions, strict=True):
                torch.testing.assert_close(mine[row][:, kept][..., real[row]], other[0])


def _scored(batch: dict[str, Tensor], head: str) -> int:
    # The first token of each row is predicted by none.
    return int((batch["labels"] != -100).sum()) - (4 if head == "causal" else 0)


@pytest.mark.parametrize("head", HEADS)
def test_micro_batches_add_up_to_the_batch(head: str, build: Callable, batch: Callable) -> None:
    model, inputs = build(head, dropout_rate=0.0).train(), batch(head)
    parts = [
        model(**{name: x[some] for name, x in inputs.items()}, num_items_in_batch=_scored(inputs, head)).loss
        for some in (slice(0, 1), slice(1, 4))
    ]
    torch.testing.assert_close(sum(parts), model(**inputs).loss)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("head", LANGUAGE_MODELS)
def test_the_fused_loss_equals_the_reference(head: str, tied: bool, build: Callable, batch: Callable) -> None:
    model, inputs = build(head, synthesizer=MIXED, dropout_rate=0.0, tie_word_embeddings=tied).train(), batch(head)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    fused = model(**inputs, smoothing=0.1)
    model.config.fused_loss = False
    eager = model(**inputs, smoothing=0.1)
    assert fused.logits is None
    assert fused.get("past_key_values") is None
    torch.testing.assert_close(fused.loss, eager.loss)
    torch.testing.assert_close(*[torch.autograd.grad(out.loss, list(model.parameters())) for out in (fused, eager)])
    # Row 0 has no padding.
    logits, labels = eager.logits[:1], inputs["labels"][:1]
    if head == "causal":
        logits, labels = logits[:, :-1], labels[:, 1:]
    alone = model(**{name: x[:1] for name, x in inputs.items()}, smoothing=0.1).loss
    torch.testing.assert_close(alone, F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "options",
    [
        {"position_embedding_type": "learned", "pre_norm": False},
        {"position_embedding_type": "relative", "norm_type": "rms_norm", "use_bias": False},
        {"feed_forward_proj": "gated-gelu", "scale_embedding": False, "d_kv": 5},
        {"tie_word_embeddings": True, "attention_dropout_rate": 0.1},
    ],
)
def test_every_option_trains_every_parameter(
    head: str, options: dict[str, object], build: Callable, batch: Callable
) -> None:
    fields = {"synthesizer": SIDES} if head == "seq2seq" else {"synthesizer": MIXED, "type_vocab_size": 2}
    model, inputs = build(head, **fields, **options).train(), batch(head)
    if head != "seq2seq":
        inputs["token_type_ids"] = (torch.arange(7) > 3).long().expand(4, -1)
    model(**inputs).loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
    assert [n for n, p in model.named_parameters() if p.dim() > 1 and not p.grad.any()] == []


@pytest.mark.parametrize("head", HEADS)
def test_dropout_in_training_only(head: str, build: Callable, batch: Callable) -> None:
    model = build(head, dropout_rate=0.5, attention_dropout_rate=0.5)
    for training in (False, True):
        assert torch.equal(*[model.train(training)(**batch(head)).loss for _ in range(2)]) != training


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    ("head", "synthesizer"), [("seq2seq", SIDES), ("seq2seq", BASELINES), ("causal", MIXED)], ids=str
)
def test_gradient_checkpointing_changes_nothing(
    head: str, synthesizer: object, reentrant: bool, build: Callable, batch: Callable
) -> None:
    model = build(head, synthesizer=synthesizer, position_embedding_type="relative", dropout_rate=0.3).train()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(1)
        model.zero_grad()
        model(**batch(head)).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    # Stacks whose layers have no logits have no relative bias either.
    assert all(gradient is not None for gradient in gradients[0])
    torch.testing.assert_close(*gradients)
    with pytest.raises(ValueError, match="gradient checkpointing"):
        model(**batch(head), use_cache=True)


@pytest.mark.parametrize("head", HEADS)
def test_saved_and_loaded_by_the_auto_class(head: str, build: Callable, batch: Callable, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"synthesizer": ["random+vanilla", "fixed_random"], "tie_word_embeddings": True}
    if head in ("classifier", "tagger"):
        names = {0: "good", 1: "bad", 2: "neither"}
        fields |= {"id2label": names, "label2id": {name: index for index, name in names.items()}}
        fields |= {"problem_type": "single_label_classification", "classifier_pooling": "first", "type_vocab_size": 2}
    model = build(head, **fields)
    model.save_pretrained(tmp_path)
    loaded, report = AUTO[head].from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is HEADS[head]
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert torch.equal(loaded(**batch(head)).logits, model(**batch(head)).logits)
    if head in ("classifier", "tagger"):
        assert (loaded.config.id2label, loaded.config.label2id["bad"]) == (names, 1)
    else:
        assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is SynthesizerModel
    # The tables of fixed_random are among the buffers.
    assert all(torch.equal(base.state_dict()[name], tensor) for name, tensor in model.model.state_dict().items())


@pytest.mark.parametrize("synthesizer", [SIDES, BASELINES], ids=["functions", "baselines"])
def test_weights_of_a_checkpoint_stay_when_it_lacks_others(
    synthesizer: object, build: Callable, tiny_config: Callable, tmp_path: Path
) -> None:
    model = build("seq2seq", synthesizer=synthesizer, use_bias=False)
    model.save_pretrained(tmp_path)
    config = tiny_config(synthesizer=synthesizer, use_bias=True)
    loaded, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, config=config, output_loading_info=True)
    assert report["missing_keys"]
    assert all("bias" in name for name in report["missing_keys"])
    for name, parameter in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter), name


def test_resized_embeddings_stay_tied(build: Callable, tmp_path: Path) -> None:
    tied, untied = build("seq2seq", tie_word_embeddings=True), build("seq2seq", bos_token_id=52)
    assert untied.num_parameters() - tied.num_parameters() == 53 * 22
    tied.resize_token_embeddings(59, mean_resizing=False)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert tied.lm_head.weight.shape == (59, 22)
    untied.resize_token_embeddings(50, mean_resizing=False)
    untied.save_pretrained(tmp_path)
    assert type(untied).from_pretrained(tmp_path).config.vocab_size == 50


@pytest.mark.parametrize(
    ("saved", "head", "new"),
    [
        ("seq2seq", "classifier", {"classifier.weight", "classifier.bias"}),
        ("causal", "classifier", {"classifier.weight", "classifier.bias"}),
        ("causal", "tagger", {"classifier.weight", "classifier.bias"}),
        ("seq2seq", "masked", set()),
        ("masked", "tagger", {"classifier.weight", "classifier.bias"}),
        ("tagger", "masked", {"lm_head.weight"}),
    ],
)
def test_checkpoints_move_between_heads(
    saved: str, head: str, new: set[str], build: Callable, rows: Rows, tmp_path: Path
) -> None:
    sides = {"synthesizer": {"encoder": MIXED, "decoder": "vanilla"}, "num_decoder_layers": 3}
    pretrained = build(saved, **(sides if saved == "seq2seq" else {"synthesizer": MIXED}))
    pretrained.save_pretrained(tmp_path)
    model, report = AUTO[head].from_pretrained(tmp_path, output_loading_info=True)
    assert report["missing_keys"] == new
    side = "decoder" if saved == "causal" else "encoder"
    assert model.config.synthesizers(side) == MIXED
    assert bool(model.config.is_decoder) == (saved == "causal")
    for name, parameter in getattr(pretrained.model, side).named_parameters():
        assert torch.equal(getattr(model.model, side).get_parameter(name), parameter), name
    ids, mask = rows
    if (saved, head) == ("causal", "classifier"):
        # A causal stack has seen the whole text at its last real token.
        for row, real in enumerate(mask.bool()):
            hidden = pretrained.model(ids[row : row + 1, real]).last_hidden_state[:, -1]
            torch.testing.assert_close(model(ids, mask).logits[row : row + 1], model.classifier(hidden))


@pytest.mark.parametrize(
    ("saved", "head", "reason"),
    [
        ("classifier", "causal", "is_decoder=False"),
        ("masked", "seq2seq", "is_encoder_decoder=False"),
        ("causal", "masked", "is_decoder=True"),
        ("seq2seq", "causal", r"encoder-decoder \(SynthesizerForConditionalGeneration\)"),
    ],
)
def test_heads_refuse_a_stack_of_the_other_direction(
    saved: str, head: str, reason: str, build: Callable, tmp_path: Path
) -> None:
    build(saved, synthesizer="dense").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=reason):
        AUTO[head].from_pretrained(tmp_path)


def test_what_transformers_offers_and_these_models_lack_is_refused(build: Callable) -> None:
    with pytest.raises(ValueError, match="one stack"):
        build("causal", synthesizer={"encoder": "dense", "decoder": "random"})
    with pytest.raises(ValueError, match="support"):
        build("masked", synthesizer="vanilla").set_attn_implementation("flash_attention_2")


@pytest.mark.parametrize("head", HEADS)
def test_heads_refuse_what_does_not_fit(head: str, build: Callable, batch: Callable) -> None:
    model, inputs, long = build(head, synthesizer="random"), batch(head), torch.ones(4, 20).long()
    reasons: dict[str, dict[str, Any]] = {
        "both or neither of input_ids and inputs_embeds": {"input_ids": None},
        "20 slots in the (en|de)coder.* 19": {"input_ids": long, "attention_mask": None, "labels": long},
        "attention_mask of shape": {"attention_mask": inputs["attention_mask"][:, 1:]},
        r"labels of shape \(3,": {"labels": inputs["labels"][:3], "decoder_input_ids": torch.ones(4, 5).long()},
    }
    if head != "seq2seq":
        del reasons[r"labels of shape \(3,"]["decoder_input_ids"]
    for reason, change in reasons.items():
        with pytest.raises(ValueError, match=reason):
            model(**{**inputs, **change})


def test_heads_refuse_segments_and_caches_that_they_would_ignore(build: Callable, rows: Rows) -> None:
    ids, _ = rows
    for head, name, error in (
        ("seq2seq", "segment_ids", ValueError),
        ("classifier", "segment_ids", TypeError),
        ("classifier", "past_key_values", TypeError),
    ):
        with pytest.raises(error, match=name):
            build(head)(ids, labels=torch.ones_like(ids), **{name: torch.ones_like(ids)})
    with pytest.raises(ValueError, match=r"past_key_values.*bidirectional"):
        build("classifier").model(ids, past_key_values=DynamicCache())


def test_the_base_model_has_the_stacks_of_its_configuration(tiny_config: Callable, rows: Rows) -> None:
    ids, mask = rows
    one = {"is_encoder_decoder": False, "synthesizer": "vanilla"}
    for fields, names in (({}, ["encoder", "decoder"]), (one, ["encoder"]), ({**one, "is_decoder": True}, ["decoder"])):
        model = SynthesizerModel(tiny_config(**fields)).eval()
        assert [name for name, _ in model.named_children() if name != "embed_tokens"] == names
        inputs = {"decoder_input_ids": ids[:, :3]} if len(names) == 2 else {}
        assert model(ids, mask, **inputs).last_hidden_state.shape == (4, 3 if inputs else 7, 22)
        # Only a causal stack hides later tokens.
        changed = torch.cat([ids[:1, :6], ids[:1, 6:] + 1 - 2 * (ids[:1, 6:] > 9).long()], dim=1)
        if len(names) == 1:
            first, second = (model(x).last_hidden_state[0, :6] for x in (ids[:1], changed))
            assert torch.allclose(first, second) == (names == ["decoder"])
    with pytest.raises(ValueError, match="one stack"):
        model(ids, decoder_input_ids=ids)


@pytest.mark.parametrize("head", sorted(folder.name for folder in CHECKPOINTS.iterdir()))
def test_committed_checkpoints_load_for_ever(head: str) -> None:
    folder = CHECKPOINTS / head
    model, report = AUTO[head].from_pretrained(folder, output_loading_info=True)
    assert type(model) is HEADS[head]
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert isinstance(model.config, SynthesizerConfig)
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    inputs = {name: torch.tensor(values) for name, values in expected["inputs"].items()}
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits, torch.tensor(expected["logits"]), atol=1e-5, rtol=1e-4)
