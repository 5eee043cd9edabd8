"""The classifier: pooling, losses, Hugging Face's pipelines, refusals."""

from collections.abc import Callable

import pytest
import torch
from tokenizers import processors
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, pipeline

from models.conftest import word_tokenizer

Rows = tuple[Tensor, Tensor]


def test_pooling_is_the_mean_or_the_first_token(tiny_classifier: Callable, rows: Rows) -> None:
    for pooling in ("mean", "first"):
        model = tiny_classifier(classifier_pooling=pooling)
        out = model(rows[0], output_hidden_states=True)
        hidden = out.hidden_states[-1]
        pooled = hidden.mean(1) if pooling == "mean" else hidden[:, 0]
        torch.testing.assert_close(out.logits, model.classifier(pooled))
        marks = torch.arange(rows[0].shape[1]), torch.arange(rows[0].shape[1]).clamp(max=1)
        torch.testing.assert_close(*(model(rows[0], attention_mask=mark.expand_as(rows[0])).logits for mark in marks))


@pytest.mark.parametrize(
    ("problem", "num_labels", "reference"),
    [
        (None, 5, F.cross_entropy),
        ("multi_label_classification", 5, F.binary_cross_entropy_with_logits),
        (None, 1, F.mse_loss),
        ("regression", 1, F.mse_loss),
        ("regression", 3, F.mse_loss),
    ],
)
def test_the_loss(
    problem: str | None, num_labels: int, reference: Callable, tiny_classifier: Callable, rows: Rows
) -> None:
    model = tiny_classifier(problem_type=problem, num_labels=num_labels, dropout_rate=0.0)
    has_classes = reference is F.cross_entropy
    labels = torch.tensor([4, 0, -100, 2]) if has_classes else torch.randint(2, (4, num_labels)).squeeze(1)
    out = model(*rows, labels=labels.int(), smoothing=0.1)
    targets, options = (labels, {"label_smoothing": 0.1}) if has_classes else (labels.float().view(4, -1), {})
    torch.testing.assert_close(out.loss, reference(out.logits, targets, **options))
    count = 2 * (3 if has_classes else labels.numel())
    half = model(*rows, labels=targets, smoothing=0.1, num_items_in_batch=count).loss
    torch.testing.assert_close(half, out.loss / 2)


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = word_tokenizer(model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="w1 $A w2", pair="w1 $A w2 $B:1 w2:1", special_tokens=[("w1", 1), ("w2", 2)]
    )
    return tokenizer


def test_the_pipeline_classifies_texts_and_pairs(tiny_classifier: Callable) -> None:
    tokenizer = _tokenizer()
    model = tiny_classifier(num_labels=2, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1}, type_vocab_size=2)
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer)
    texts = ["w5 w6 w7", "w8"]
    together = classify(texts, batch_size=2, top_k=None)
    for text, found in zip(texts, together, strict=True):
        expected = model(tokenizer(text, return_tensors="pt")["input_ids"]).logits.softmax(-1)[0].tolist()
        scores = {each["label"]: each["score"] for each in found}
        assert scores == pytest.approx(dict(zip(["no", "yes"], expected, strict=True)), abs=1e-6)
    pair = tokenizer("w5", "w6 w7", return_tensors="pt")
    assert pair["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1]]
    found = classify([{"text": "w5", "text_pair": "w6 w7"}], top_k=None)[0]
    assert found[0]["score"] == pytest.approx(model(**pair).logits.softmax(-1).max().item(), abs=1e-6)


def test_the_pipelines_fill_masks_and_tag_words(build: Callable) -> None:
    tokenizer, text = _tokenizer(), "w5 w4 w7"
    tokenizer.mask_token = "w4"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    masked, tagger = build("masked"), build("tagger", num_labels=3)
    [found] = pipeline("fill-mask", model=masked, tokenizer=tokenizer)(text, top_k=1)
    assert found["token"] == masked(ids).logits[0, 2].argmax()
    tags = pipeline("token-classification", model=tagger, tokenizer=tokenizer)(text)
    assert [tag["entity"] for tag in tags] == [f"LABEL_{n}" for n in tagger(ids).logits[0, 1:-1].argmax(-1)]


def test_bad_input(tiny_classifier: Callable, rows: Rows) -> None:
    model = tiny_classifier(synthesizer="random")
    ids, _ = rows
    with pytest.raises(ValueError, match="several texts in a row"):
        model(ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2, 3]]))
    with pytest.raises(ValueError, match=r"labels of shape \(4,\) and dtype torch.float32.*multi_label"):
        model(ids, labels=torch.ones(4))
    with pytest.raises(ValueError, match=r"labels of shape \(4,\).*\(4, 2\)"):
        tiny_classifier(num_labels=2, problem_type="regression")(ids, labels=torch.ones(4))
    with pytest.raises(ValueError, match="num_labels=0"):
        tiny_classifier(num_labels=0)
