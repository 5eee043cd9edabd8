"""`convert`: where models come from, what stays, and what is refused."""

import copy
import json
import re
import runpy
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForNextSentencePrediction,
    MarianMTModel,
    PreTrainedModel,
    ViTConfig,
    ViTModel,
)

from conversion.conftest import make_source
from documents import ROOT
from models.conftest import word_tokenizer
from synthesizer_lab.compare.documents import condense
from synthesizer_lab.compare.results import read_results
from synthesizer_lab.heads import run
from synthetic_attention import SynthesizerConfig, SynthesizerForCausalLM, convert, export_model
from tasks.glue_files import write_glue

Sources = Callable[[str], PreTrainedModel]
IDS, MASK = torch.arange(3, 17).view(2, 7), torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
TARGET = {"decoder_input_ids": torch.arange(3, 11).view(2, 4)}


@torch.no_grad()
def output(model: Any, **inputs: Tensor) -> Tensor:
    y: Tensor = model(input_ids=IDS, attention_mask=MASK, **inputs)[0]
    return y


@pytest.mark.parametrize(
    ("name", "auto", "inputs"),
    [
        ("t5", AutoModelForSeq2SeqLM, TARGET),
        ("marian", AutoModelForSeq2SeqLM, TARGET),
        ("bert", AutoModelForMaskedLM, {}),
        ("roberta-classifier", AutoModelForSequenceClassification, {}),
        ("t5-encoder", AutoModel, {}),
    ],
)
def test_from_a_folder_and_back(name: str, auto: Any, inputs: Any, sources: Sources, tmp_path: Path) -> None:
    sources(name).save_pretrained(tmp_path / "theirs")
    ours = convert(tmp_path / "theirs", "random+vanilla")
    ours.save_pretrained(tmp_path / "ours")
    loaded, report = auto.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(loaded) is type(ours)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    expected = output(ours, **inputs)
    torch.testing.assert_close(output(loaded, **inputs), expected)
    real = MASK.bool() if expected.shape[:2] == MASK.shape else ...
    torch.testing.assert_close(expected[real], output(sources(name), **inputs)[real], atol=1e-5, rtol=1e-5)
    if ours.can_generate():
        assert loaded.generation_config.decoder_start_token_id == ours.config.decoder_start_token_id


def test_a_model_of_ours(sources: Sources, tmp_path: Path) -> None:
    vanilla = convert(sources("gpt2"))
    vanilla.save_pretrained(tmp_path)
    for model in (vanilla, str(tmp_path)):
        again = convert(model, max_length=11)
        assert again.config.max_position_embeddings == 11
        torch.testing.assert_close(output(again), output(vanilla))
    assert vanilla.config.max_position_embeddings == 17


def test_what_is_kept(sources: Sources) -> None:
    theirs = copy.deepcopy(sources("bart")).to(torch.bfloat16).train()
    theirs.generation_config.update(num_beams=4, max_length=16, forced_bos_token_id=0)
    ours = convert(theirs)
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16} == {ours.config.dtype}
    assert ours.training
    assert ours.generation_config.to_dict() == theirs.generation_config.to_dict()
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "max_position_embeddings"):
        assert getattr(ours.config, name) == getattr(theirs.config, name)
    # The bias of BART is drawn in the tests; most models have zeros.
    assert ours.config.lm_head_bias
    theirs.final_logits_bias.zero_()
    assert not convert(theirs).config.lm_head_bias
    assert ours.lm_head.weight is ours.model.embed_tokens.weight
    half = make_source("t5").half()
    half.encoder.block[0].layer[-1].DenseReluDense.wo.float()
    assert convert(half).dtype == convert(half).config.dtype == torch.float32
    theirs = make_source("bart", tie_word_embeddings=False)
    # The third embedding, `shared`, is not used.
    theirs.model.decoder.embed_tokens = theirs.model.encoder.embed_tokens
    untied = convert(theirs)
    assert not untied.config.tie_word_embeddings
    torch.testing.assert_close(output(untied, **TARGET), output(theirs, **TARGET), atol=1e-5, rtol=1e-5)
    labels: dict[str, Any] = {"id2label": dict(enumerate("abcde")), "problem_type": "multi_label_classification"}
    classifier = convert(make_source("bert-classifier", **labels)).config
    assert {name: getattr(classifier, name) for name in labels} == labels
    # transformers keeps unknown fields of a configuration; models do not read them.
    stray = convert(make_source("gpt2", hidden_act="relu", dropout_rate=0.5, attn_pdrop=0.25, bos_token_id=99)).config
    # A token that the vocabulary lacks is none.
    assert (stray.feed_forward_proj, stray.attention_dropout_rate, stray.bos_token_id) == ("gelu_new", 0.25, None)


def test_the_maximum_length(sources: Sources) -> None:
    assert convert(sources("t5"), "random").config.max_position_embeddings == 512
    assert convert(sources("roberta")).config.max_position_embeddings == 17
    longer = convert(sources("marian"), "random+vanilla", max_length=29)
    assert longer.config.max_position_embeddings == 29
    assert longer.model.encoder.layers[0].self_attn.max_length == 29
    theirs = copy.deepcopy(sources("gpt2"))
    theirs.generation_config.max_length = 17
    shorter = convert(theirs, max_length=7)
    assert shorter.generation_config.max_length == 7
    torch.testing.assert_close(output(shorter)[0], output(theirs)[0], atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="got max_length=18 for a model with 17 learned positions"):
        convert(theirs, max_length=18)
    with pytest.raises(ValueError, match="max_length=0"):
        convert(theirs, max_length=0)


def test_a_subclass_is_converted_as_its_parent(sources: Sources) -> None:
    theirs = copy.deepcopy(sources("gpt2"))
    theirs.__class__ = type("WithItsOwnLoss", (type(theirs),), {})
    torch.testing.assert_close(output(convert(theirs))[0], output(theirs)[0], atol=1e-5, rtol=1e-5)


def refused(model: Any, *facts: str, **arguments: Any) -> None:
    with pytest.raises(ValueError, match=f".*{'.*'.join(map(re.escape, facts))}") as caught:
        convert(model, **arguments)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 400


def test_what_cannot_be_converted(sources: Sources, tmp_path: Path) -> None:
    sizes = {"hidden_size": 22, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 31}
    refused(torch.nn.Linear(2, 2), "got a Linear", "a model of transformers")
    refused(ViTModel(ViTConfig(**sizes)), "ViTModel", "expected one of: T5, MT5, BART, Marian, GPT2, BERT")
    config = BertConfig(**sizes, vocab_size=53)
    refused(BertForNextSentencePrediction(config), "BertForNextSentencePrediction", "BertForMaskedLM")
    refused(make_source("bert", is_decoder=True), "bert model with is_decoder=True", "expected False")
    bert = make_source("bert")
    bert.config.position_embedding_type = "relative_key"
    refused(bert, "position_embedding_type='relative_key'", "'absolute'")
    bart = make_source("bart", encoder_attention_heads=1)
    refused(bart, "encoder_attention_heads=1", "2, as decoder_attention_heads")
    refused(make_source("gpt2", scale_attn_weights=False), "scale_attn_weights=False", "True")
    refused(make_source("opt", do_layer_norm_before=False), "do_layer_norm_before=False", "True")
    # Also a window that is not shorter than what is configured: rotary positions have no maximum.
    refused(make_source("mistral", sliding_window=37), "sliding_window=37;", "sliding_window=None")
    scaled = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
    refused(make_source("llama", rope_parameters=scaled), "rope_type='dynamic'", "expected one of: default, linear")
    untied = make_source("t5")
    untied.decoder.embed_tokens = torch.nn.Embedding(53, 22)
    refused(untied, "model.embed_tokens.weight", "one embedding")
    adapted = make_source("bert")
    adapted.extra = torch.nn.Linear(2, 2)
    refused(adapted, "extra.bias", "merge adapters")
    refused(make_source("gpt2"), "'lightweight_conv'", synthesizer="lightweight_conv")
    config = SynthesizerConfig(vocab_size=9, d_model=4, num_heads=2, d_ff=4, num_layers=1, synthesizer="random")
    refused(SynthesizerForCausalLM(config), "'random'", "vanilla in all layers")
    refused(tmp_path / "nothing", "nothing: no such folder")
    for text in ("{}", '{"model_type": "bert"}', "["):
        (tmp_path / "config.json").write_text(text)
        refused(tmp_path, "cannot be loaded")
    model = sources("bert-classifier")
    weights = {name: tensor for name, tensor in model.state_dict().items() if "pooler.dense.bias" not in name}
    model.save_pretrained(tmp_path, state_dict=weights)
    refused(tmp_path, "lack bert.pooler.dense.bias", "pass the model to convert()")
    ours = convert(sources("bert-classifier"))
    weights = {name: tensor for name, tensor in ours.state_dict().items() if "pooler" not in name}
    ours.save_pretrained(tmp_path / "ours", state_dict=weights)
    refused(tmp_path / "ours", "lack pooler.dense.bias")
    # What a conversion drops may be missing.
    model = sources("bert-model")
    weights = {name: tensor for name, tensor in model.state_dict().items() if "pooler" not in name}
    model.save_pretrained(tmp_path, state_dict=weights)
    torch.testing.assert_close(output(convert(tmp_path)), output(convert(model)))


def test_a_converted_model_is_exported(sources: Sources, tmp_path: Path) -> None:
    model = convert(sources("roberta-classifier"), "random:1/vanilla:1")
    (file,) = export_model(model, tmp_path / "model.pt2", "torch")
    exported = torch.export.load(file).module()(input_ids=IDS, attention_mask=MASK)
    torch.testing.assert_close(exported["logits"], output(model))


@pytest.mark.slow
def test_the_example_trains_a_model_to_convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for side in ("en", "de"):
        lines = [f"{side} line {number} of {number * 7}" for number in range(40)]
        (tmp_path / f"train.{side}").write_text("\n".join(lines), encoding="utf-8")
    output = tmp_path / "marian"
    monkeypatch.setattr("sys.argv", ["", "--data", str(tmp_path), "--output", str(output), "--steps", "1"])
    runpy.run_path(str(ROOT / "examples/train_marian.py"))
    model = convert(output, "random+vanilla")
    inputs = AutoTokenizer.from_pretrained(output)("en line 3 of 21", return_tensors="pt")
    assert inputs["input_ids"][0, -1] == model.config.eos_token_id
    expected = MarianMTModel.from_pretrained(output).generate(**inputs, max_new_tokens=5)
    assert torch.equal(model.generate(**inputs, max_new_tokens=5), expected)


@pytest.mark.parametrize("name", ["model", "owner/model"])
def test_pooling_and_normalization_of_a_sentence_encoder_are_kept(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, new = tmp_path / "model", tmp_path / "new"
    if name == "owner/model":
        opened = run._open
        monkeypatch.setattr(run, "_open", lambda _, *others: opened(str(source), *others))
        monkeypatch.setattr(run, "snapshot_download", lambda *_, **__: source)
    monkeypatch.chdir(tmp_path)
    for each in (make_source("bert-model"), word_tokenizer()):
        each.save_pretrained(source)
    (source / "1_Pooling").mkdir()
    files = {"modules.json": [{"idx": 0, "path": ""}], "1_Pooling/config.json": {"pooling_mode_cls_token": True}}
    for file, content in {**files, "sentence_bert_config.json": {"max_seq_length": 15, "do_lower_case": True}}.items():
        (source / file).write_text(json.dumps(content), encoding="utf-8")
    run.convert_to(name, new, run.Conversion(synthesizer="vanilla", max_length=12))
    assert {file: json.loads((new / file).read_text("utf-8")) for file in files} == files
    limits = json.loads((new / "sentence_bert_config.json").read_text("utf-8"))
    assert limits == {"max_seq_length": 12, "do_lower_case": True}


@pytest.mark.slow
def test_the_example_converts_a_sentence_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in (make_source("bert-model"), word_tokenizer()):
        each.save_pretrained(tmp_path / "model")
    lines = [f"w{number} w{50 - number} w7" for number in range(5, 25)]
    (tmp_path / "text").write_text("\n".join(lines), encoding="utf-8")
    rows = ["\t".join(["-"] * 7 + [first, second, str(score)]) for score, (first, second) in enumerate(pairwise(lines))]
    (tmp_path / "pairs").write_text("\n".join(["header", *rows]), encoding="utf-8")
    options = {"text": tmp_path / "text", "pairs": tmp_path / "pairs", "output": tmp_path / "new"}
    options |= {"budget": 0.25, "distill-steps": 2, "max-length": 12}
    given = [f"--{name}={value}" for name, value in options.items()]
    monkeypatch.setattr("sys.argv", ["", str(tmp_path / "model"), *given])
    runpy.run_path(str(ROOT / "examples/sentence_encoder.py"))
    assert all(-100 <= value <= 100 for value in json.loads(capsys.readouterr().out)["spearman"].values())
    # One of four heads.
    assert sorted(AutoModel.from_pretrained(tmp_path / "new").config.synthesizer) == ["random:1/vanilla:1", "vanilla"]


@pytest.mark.slow
def test_the_example_fine_tunes_on_glue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in (make_source("bert-model"), word_tokenizer()):
        each.save_pretrained(tmp_path / "model")
    (tmp_path / "text").write_text("w5 w6 w7 w8\nw9 w8 w7\n" * 20, encoding="utf-8")
    write_glue(tmp_path / "glue", tasks=("cola", "stsb"))
    rows = "vanilla,random@calibrated=true"
    options = {"synthesizers": rows, "text": tmp_path / "text", "data": tmp_path / "glue"}
    given = [f"--{name}={value}" for name, value in {**options, "output": tmp_path / "runs"}.items()]
    given += ["--tasks", "cola", "stsb", "--seeds", "0", "1", "--max-length", "19"]
    # Tasks and rows are added; other settings are refused.
    for more in ("--tasks=cola", "--synthesizers=vanilla", "--seeds=1", "--max-length=19", "--learning-rate=1"):
        monkeypatch.setattr("sys.argv", ["", str(tmp_path / "model"), *given, more])
        with pytest.raises(SystemExit) if more == "--learning-rate=1" else nullcontext():
            runpy.run_path(str(ROOT / "examples/glue_trainer.py"))
    results = condense(read_results(tmp_path / "runs"))
    assert [(row["row"], row["finished"]) for row in results["rows"]] == [(row, [0, 1]) for row in rows.split(",")]
    assert results["runs"][0]["tests"]["cola"]["scores"].keys() == {"matthews"}
    # Without heads: runs of other tasks can be merged with these.
    assert results["rows"][0]["parameters"] == AutoModel.from_pretrained(tmp_path / "runs/vanilla").num_parameters()
    assert capsys.readouterr().out.count("| random@calibrated=true − vanilla | ") == 3
