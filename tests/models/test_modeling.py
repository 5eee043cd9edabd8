"""The sequence-to-sequence model: padding, training, options, saving."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache

from synthetic_attention.models import SynthesizerForConditionalGeneration

Source = tuple[Tensor, Tensor]

MIXED = {"encoder": ["random+vanilla", "dense"], "decoder": ["factorized_dense+vanilla", "fixed_random"]}
# Each in the place of a synthesizer; the encoder has two layers, and so has the decoder.
OTHERS = {"encoder": ["linformer", "dynamic_conv"], "decoder": ["local_dense", "lightweight_conv"]}
POSITIONS = ["sinusoidal", "learned", "relative"]


@pytest.fixture
def labels() -> Tensor:
    labels = torch.randint(3, 53, (3, 5))
    labels[1, 3:] = -100
    return labels


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("pre_norm", [True, False])
def test_a_padded_row_equals_the_row_alone(positions: str, pre_norm: bool, tiny: Callable, source: Source) -> None:
    model = tiny(synthesizer=MIXED, position_embedding_type=positions, pre_norm=pre_norm)
    ids, mask = source
    target, target_mask = torch.randint(3, 53, (3, 5)), torch.ones(3, 5, dtype=torch.long)
    target_mask[0, :2] = 0
    target_mask[1, 2] = 0
    target_mask[2, 4:] = 0
    together = model(ids, mask, target, target_mask, output_attentions=True, output_hidden_states=True)
    for row in range(3):
        real, real_target = mask[row].bool(), target_mask[row].bool()
        alone = model(
            ids[row : row + 1, real],
            decoder_input_ids=target[row : row + 1, real_target],
            output_attentions=True,
            output_hidden_states=True,
        )
        torch.testing.assert_close(together.logits[row, real_target], alone.logits[0])
        for name in ("encoder_hidden_states", "decoder_hidden_states"):
            kept = real if name.startswith("encoder") else real_target
            for mine, other in zip(together[name], alone[name], strict=True):
                torch.testing.assert_close(mine[row, kept], other[0])
        for name, rows, columns in (
            ("encoder_attentions", real, real),
            ("decoder_attentions", real_target, real_target),
            ("cross_attentions", real_target, real),
        ):
            for mine, other in zip(together[name], alone[name], strict=True):
                torch.testing.assert_close(mine[row][:, rows][..., columns], other[0])


def test_the_states_and_weights_of_every_layer(tiny: Callable, source: Source) -> None:
    model = tiny(synthesizer="random", num_decoder_layers=3)
    ids, mask = source
    out = model(ids, mask, decoder_input_ids=ids[:, :5], output_attentions=True, output_hidden_states=True)
    assert [len(out[name]) for name in ("encoder_attentions", "decoder_attentions", "cross_attentions")] == [2, 3, 3]
    assert [len(out[name]) for name in ("encoder_hidden_states", "decoder_hidden_states")] == [3, 4]
    assert out.cross_attentions[0].shape == (3, 2, 5, 7)
    torch.testing.assert_close(out.encoder_hidden_states[-1], out.encoder_last_hidden_state)
    torch.testing.assert_close(model.lm_head(out.decoder_hidden_states[-1]), out.logits)


@pytest.mark.parametrize(
    "options",
    [
        {"position_embedding_type": "learned", "pre_norm": False},
        {"position_embedding_type": "relative", "norm_type": "rms_norm", "use_bias": False},
        {"feed_forward_proj": "gated-gelu", "scale_embedding": False, "d_kv": 5},
        {"tie_word_embeddings": True, "label_smoothing": 0.1, "attention_dropout_rate": 0.1},
    ],
)
def test_every_option_trains_every_parameter(
    options: dict[str, object], tiny: Callable, source: Source, labels: Tensor
) -> None:
    model = tiny(synthesizer=MIXED, **options).train()
    out = model(*source, labels=labels)
    assert out.logits is None
    assert out.past_key_values is None
    out.loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
    assert [name for name, p in model.named_parameters() if p.dim() > 1 and not p.grad.any()] == []


def test_the_loss_is_the_twins(tiny: Callable, source: Source, labels: Tensor) -> None:
    model = tiny(synthesizer=MIXED, dropout_rate=0.0, label_smoothing=0.1, tie_word_embeddings=True).train()
    fused = model(*source, labels=labels)
    eager = model(*source, labels=labels, return_logits=True)
    torch.testing.assert_close(fused.loss, eager.loss)
    expected = torch.nn.functional.cross_entropy(eager.logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    torch.testing.assert_close(eager.loss, expected)
    gradients = [torch.autograd.grad(out.loss, list(model.parameters())) for out in (fused, eager)]
    torch.testing.assert_close(*gradients)
    # Evaluation reports the plain loss, with logits.
    out = model.eval()(*source, labels=labels)
    torch.testing.assert_close(out.loss, torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), labels.flatten()))


def test_micro_batches_add_up_to_the_batch(tiny: Callable, source: Source, labels: Tensor) -> None:
    model = tiny(dropout_rate=0.0).train()
    ids, mask = source
    items = (labels != -100).sum()
    parts = [
        model(ids[rows], mask[rows], labels=labels[rows], num_items_in_batch=items).loss
        for rows in (slice(0, 1), slice(1, 3))
    ]
    torch.testing.assert_close(sum(parts), model(ids, mask, labels=labels).loss)


def test_dropout_in_training_only(tiny: Callable, source: Source, labels: Tensor) -> None:
    model = tiny(dropout_rate=0.5, attention_dropout_rate=0.5)
    losses = [model(*source, labels=labels).loss for _ in range(2)]
    assert torch.equal(*losses)
    model.train()
    losses = [model(*source, labels=labels).loss for _ in range(2)]
    assert not torch.equal(*losses)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("synthesizer", [MIXED, OTHERS], ids=["mixed", "others"])
def test_gradient_checkpointing_changes_nothing(
    synthesizer: object, reentrant: bool, tiny: Callable, source: Source, labels: Tensor
) -> None:
    model = tiny(synthesizer=synthesizer, position_embedding_type="relative", dropout_rate=0.3).train()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model._set_gradient_checkpointing(
                True, lambda f, *a: torch.utils.checkpoint.checkpoint(f, *a, use_reentrant=reentrant)
            )
        torch.manual_seed(1)
        model.zero_grad()
        model(*source, labels=labels).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    # Where no layer has logits to add it to, there is no bias of positions either.
    assert all(gradient is not None for gradient in gradients[0])
    torch.testing.assert_close(*gradients)
    with pytest.raises(ValueError, match="fill it twice"):
        model(*source, labels=labels, use_cache=True)


def test_tied_and_untied_embeddings(tiny: Callable) -> None:
    tied, untied = tiny(tie_word_embeddings=True), tiny(tie_word_embeddings=False)
    assert tied.lm_head.weight is tied.encoder.embed_tokens.weight
    assert untied.lm_head.weight is not untied.encoder.embed_tokens.weight
    assert untied.num_parameters() - tied.num_parameters() == 53 * 22
    tied.resize_token_embeddings(59, mean_resizing=False)
    assert tied.lm_head.weight is tied.encoder.embed_tokens.weight
    assert tied.lm_head.weight.shape == (59, 22)


def test_saved_and_loaded_by_the_auto_classes_in_a_fresh_process(
    tiny: Callable, source: Source, tmp_path: Path
) -> None:
    model = tiny(synthesizer=MIXED, tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    ids, mask = source
    script = (
        "import json, sys, torch, synthetic_attention\n"
        "from transformers import AutoConfig, AutoModelForSeq2SeqLM\n"
        "ids, mask = (torch.tensor(x) for x in json.loads(sys.argv[2]))\n"
        "model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1])\n"
        "assert not model.training and type(model.config) is type(AutoConfig.from_pretrained(sys.argv[1]))\n"
        "print(json.dumps(model.generate(ids, attention_mask=mask, max_new_tokens=9).tolist()))\n"
    )
    arguments = [str(tmp_path), json.dumps([ids.tolist(), mask.tolist()])]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == model.generate(ids, attention_mask=mask, max_new_tokens=9).tolist()


def test_fixed_random_is_saved_and_never_trained(tiny: Callable, tmp_path: Path) -> None:
    model = tiny(synthesizer="fixed_random")
    tables = {name: table for name, table in model.named_buffers() if "function" in name}
    assert len(tables) == 4
    assert not set(tables) & {name for name, _ in model.named_parameters()}
    model.save_pretrained(tmp_path)
    loaded, report = SynthesizerForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    again = dict(loaded.named_buffers())
    assert all(torch.equal(table, again[name]) for name, table in tables.items())


@pytest.mark.parametrize("synthesizer", [MIXED, OTHERS], ids=["mixed", "others"])
def test_weights_that_a_checkpoint_has_stay_when_it_lacks_others(
    synthesizer: object, tiny: Callable, tiny_config: Callable, tmp_path: Path
) -> None:
    model = tiny(synthesizer=synthesizer, use_bias=False)
    model.save_pretrained(tmp_path)
    config = tiny_config(synthesizer=synthesizer, use_bias=True)
    loaded, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, config=config, output_loading_info=True)
    assert report["missing_keys"]
    assert all("bias" in name for name in report["missing_keys"])
    for name, parameter in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter), name


def test_a_cache_that_would_find_itself_empty_is_refused(tiny: Callable, source: Source) -> None:
    model, (ids, mask) = tiny(synthesizer="random"), source
    plain = EncoderDecoderCache(DynamicCache(), DynamicCache())
    with pytest.raises(ValueError, match=r"no layer for layer 0.*DynamicCache\(config=model\.config\)"):
        model(ids, mask, decoder_input_ids=ids[:, :1], past_key_values=plain)
    vanilla = tiny(synthesizer="vanilla")
    assert vanilla(ids, mask, decoder_input_ids=ids[:, :1], past_key_values=plain).logits.shape[1] == 1


def test_logits_in_training_where_the_configuration_asks(tiny: Callable, source: Source, labels: Tensor) -> None:
    out = tiny(fused_loss=False).train()(*source, labels=labels)
    assert out.logits is not None
    assert out.logits.shape[:2] == labels.shape


def test_weights_that_a_checkpoint_lacks_are_initialised(tiny: Callable, tiny_config: Callable, tmp_path: Path) -> None:
    model = tiny(synthesizer="random")
    model.save_pretrained(tmp_path)
    longer = tiny_config(synthesizer="random", max_position_embeddings=23)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, config=longer, ignore_mismatched_sizes=True)
    for name, parameter in loaded.named_parameters():
        if name.endswith("table"):
            assert parameter.shape == (2, 23, 23)
            assert 0.8 * 0.003 < parameter.std() < 1.2 * 0.003
        else:
            assert torch.equal(parameter, model.get_parameter(name))


def test_construction_on_the_meta_device(tiny_config: Callable) -> None:
    with torch.device("meta"):
        model = SynthesizerForConditionalGeneration(tiny_config(synthesizer=MIXED))
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"meta"}


@pytest.mark.parametrize("training", [False, True])
def test_compiles_to_one_graph(training: bool, tiny: Callable, source: Source, labels: Tensor) -> None:
    model = tiny(synthesizer="random+vanilla", num_layers=1, dropout_rate=0.0, label_smoothing=0.1).train(training)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    ids, mask = source
    targets = {"labels": labels} if training else {"decoder_input_ids": ids}
    expected, actual = model(ids, mask, **targets), compiled(ids, mask, **targets)
    if training:
        torch.testing.assert_close(actual.loss, expected.loss)
        actual.loss.backward()
    else:
        torch.testing.assert_close(actual.logits, expected.logits)


def test_labels_are_shifted_right(tiny: Callable, labels: Tensor) -> None:
    shifted = tiny(bos_token_id=None, decoder_start_token_id=4).prepare_decoder_input_ids_from_labels(labels)
    assert shifted[:, 0].tolist() == [4, 4, 4]
    assert torch.equal(shifted[0, 1:], labels[0, :-1])
    assert shifted[1].tolist() == [4, *labels[1, :3].tolist(), 0]


def test_bad_input(tiny: Callable, source: Source, labels: Tensor) -> None:
    model = tiny(synthesizer="random")
    ids, mask = source
    with pytest.raises(ValueError, match=r"20 slots in the encoder; expected at most max_position_embeddings = 19"):
        model(torch.ones(1, 20, dtype=torch.long), labels=labels[:1])
    with pytest.raises(ValueError, match="input_ids and inputs_embeds"):
        model(labels=labels)
    with pytest.raises(ValueError, match="or labels"):
        model(ids, mask)
    with pytest.raises(ValueError, match="one label per target token"):
        model(ids, mask, decoder_input_ids=ids, labels=labels)
    with pytest.raises(ValueError, match="attention_mask of shape"):
        model(ids, mask[:, :5], labels=labels)
    with pytest.raises(ValueError, match="expected an EncoderDecoderCache"):
        model(ids, mask, decoder_input_ids=ids, past_key_values=DynamicCache(config=model.config))
    start_less = tiny(bos_token_id=None, pad_token_id=None)
    with pytest.raises(ValueError, match="decoder_start_token_id=None"):
        start_less(ids, mask, labels=labels)
