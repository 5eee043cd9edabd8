"""Pretrained models of transformers as models of ours."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from .. import models
from ..models import (
    SynthesizerConfig,
    SynthesizerForSequenceClassification,
    SynthesizerForTokenClassification,
    SynthesizerModel,
    SynthesizerPreTrainedModel,
)
from ..validation import check_size
from .families import COMMON_NAMES, FAMILIES, HEADS, OTHER_NAMES, Family
from .synthesize import synthesize


def convert(
    model: PreTrainedModel | str | Path,
    synthesizer: str | list[str] | dict[str, Any] = "vanilla",
    *,
    max_length: int | None = None,
) -> SynthesizerPreTrainedModel:
    """A new model of ours with the weights of a pretrained one, which stays as it is.

    With `vanilla` it computes what the given model does, and so it does with a mixture with `vanilla`: training starts
    from there. A left-padded row gives what the given model gives for the row alone. Another synthesizer has new
    parameters for its logits, drawn as in a new model, and keeps all other weights.

    Args:
        model: a model of transformers, its folder, or its name on the hub, of the families T5 (1.0, 1.1, Flan), mT5,
            BART, mBART, Marian, Pegasus, GPT-2, OPT, Llama, Mistral, Qwen2, Qwen3, BERT, RoBERTa, XLM-R and DistilBERT;
            or a model of ours with `vanilla` in all layers.
        synthesizer: as in `SynthesizerConfig`.
        max_length: `max_position_embeddings` of the new model; by default that of the given one, 512 for T5.

    Returns:
        A model with the dtype, device, mode and generation configuration of the given one.

    Raises:
        ValueError: files that cannot be loaded; another model, or one with something that ours lack; a `max_length`
            above the number of learned positions; and as `synthesize` does.
    """
    if not isinstance(model, PreTrainedModel | str | Path):
        raise ValueError(
            f"got a {type(model).__name__}; expected a model of transformers, a folder, or a name on the hub"
        )
    source = model if isinstance(model, PreTrainedModel) else load_model(str(model))
    new = synthesize(source, "vanilla") if isinstance(source, SynthesizerPreTrainedModel) else _translate(source)
    if max_length is not None:
        _limit(new, max_length)
    return new if synthesizer == "vanilla" else synthesize(new, synthesizer)


def load_model(name: str) -> PreTrainedModel:
    """The model in a folder or on the hub, of the class in its config.json; ValueError if it cannot be loaded."""
    if not Path(name).is_dir() and not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name):
        raise ValueError(f"{name}: no such folder; expected that of a model, or a name on the hub")
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        if not config.architectures:
            raise ValueError("config.json has no architectures; expected the name of a class")
        architecture = config.architectures[0]
        is_ours = isinstance(config, SynthesizerConfig)
        if not is_ours:
            _family_of(architecture)
        kind: Any = getattr(models if is_ours else transformers, architecture)
        model, found = kind.from_pretrained(name, output_loading_info=True)
        # transformers would draw them. The pooler of its models is dropped.
        if missing := sorted(key for key in found["missing_keys"] if is_ours or not key.startswith("pooler.")):
            lacks = f"the weights lack {', '.join(missing[:3])}, which {architecture} has"
            raise ValueError(f"{lacks}; in Python, load a class without them and pass the model to convert()")
    # Readers of configurations and weights have many errors.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        place = "" if Path(name).exists() else "there is no such folder; as a name on the hub: "
        raise ValueError(f"the model {name} cannot be loaded: {place}{reason}") from error
    return cast(PreTrainedModel, model)


def _family_of(*classes: str) -> tuple[str, type[SynthesizerPreTrainedModel], Family]:
    """The first of the classes that has a family, our class for it, and the family; ValueError if there is none."""
    expected: list[str] = []
    for architecture in classes:
        for name, family in FAMILIES.items():
            prefix, ending = architecture[: len(name)], architecture[len(name) :]
            if prefix.lower() == name.lower():
                if ending in family.heads:
                    return architecture, HEADS[ending], family
                expected += [prefix + head for head in family.heads]
    known = ", ".join(dict.fromkeys(expected) or FAMILIES)
    raise ValueError(f"got a model of class {classes[0]}; expected one of: {known} (docs/converting.md)")


def _translate(source: PreTrainedModel) -> SynthesizerPreTrainedModel:
    """The model of ours that computes what `source` does."""
    # A subclass with a loss of its own has the layers of its parent.
    architecture, kind, family = _family_of(*(base.__name__ for base in type(source).__mro__))
    _check(family, source.config)
    state = _rename(family, source.state_dict())
    output, embedding = state.get("lm_head.weight"), state["model.embed_tokens.weight"]
    is_tied = output is None or output.data_ptr() == embedding.data_ptr()
    family.adapt(source.config, state)
    _fit_biases(state)
    config = SynthesizerConfig(**_fields(family, source.config, kind, state) | {"tie_word_embeddings": is_tied})
    if kind is SynthesizerModel:
        state = {name.removeprefix("model."): state[name] for name in state if name.startswith("model.")}
    with torch.device("meta"):
        new = kind(config)
    if unknown := sorted(state.keys() ^ new.state_dict().keys()):
        raise ValueError(
            f"got {architecture} with other weights than its class has ({', '.join(unknown[:3])}); expected a plain "
            "model: merge adapters into it first"
        )
    # transformers keeps weights of T5 in float32: their outputs are beyond float16.
    is_wide = source.dtype == torch.float16 and any(tensor.dtype == torch.float32 for tensor in state.values())
    dtype = torch.float32 if is_wide else source.dtype
    copies = {name: tensor.to(dtype, copy=True).contiguous() for name, tensor in state.items()}
    new.load_state_dict(copies, assign=True)
    new.tie_weights()
    new.config.dtype = dtype
    if new.can_generate():
        new.generation_config = copy.deepcopy(source.generation_config)
    return new.train(source.training)


def _check(family: Family, config: PreTrainedConfig) -> None:
    """Raise ValueError for options that our models lack."""
    expected = [(name, value, "") for name, value in family.supported.items()]
    expected += [(name, getattr(config, other), f", as {other}") for name, other in family.equal]
    for name, value, reason in expected:
        if (given := getattr(config, name, value)) != value:
            raise ValueError(f"got a {config.model_type} model with {name}={given!r}; expected {value!r}{reason}")


def _rename(family: Family, state: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for pattern, ours in (*family.names.items(), *COMMON_NAMES.items()):
            name = re.sub(pattern, ours, name)
        # Tied weights have several names.
        known = renamed.setdefault(name, tensor)
        if name and known is not tensor and not torch.equal(known, tensor):
            raise ValueError(f"got different weights for {name}; expected one embedding for encoder and decoder")
    renamed.pop("", None)
    return renamed


def _fit_biases(state: dict[str, Tensor]) -> None:
    """Our linear layers have biases everywhere or nowhere, and classifiers have one."""
    linear = ("classifier.weight", *(["_proj.weight"] if any(name.endswith("_proj.bias") for name in state) else []))
    for name in [name for name in state if name.endswith(linear)]:
        state.setdefault(name.replace("weight", "bias"), torch.zeros_like(state[name][:, 0]))
    # That of BART and its relatives is (1, V), in most models of zeros.
    if "lm_head.bias" in state and state["lm_head.bias"].dim() == 2 and (bias := state.pop("lm_head.bias")[0]).any():
        state["lm_head.bias"] = bias


def _fields(
    family: Family, config: PreTrainedConfig, kind: type[SynthesizerPreTrainedModel], state: dict[str, Tensor]
) -> dict[str, Any]:
    """The fields of `SynthesizerConfig`."""
    encoder, decoder = (any(name.startswith(f"model.{side}.") for name in state) for side in ("encoder", "decoder"))
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    tokens: dict[str, Any] = {name: getattr(config, name, None) for name in names}
    # A field of the same name means the same.
    classes: list[Any] = [SynthesizerConfig, config, PreTrainedConfig]
    ours, theirs, common = ({each.name for each in dataclasses.fields(one)} for one in classes)
    fields = {
        "d_kv": getattr(config, "head_dim", None),
        **{name: getattr(config, name) for name in (ours & theirs) - common},
        "d_model": config.hidden_size,
        "d_ff": next(len(tensor) for name, tensor in state.items() if name.endswith("mlp.up_proj.weight")),
        "num_heads": config.num_attention_heads,
        "num_layers": config.num_hidden_layers,
        "synthesizer": "vanilla",
        "is_encoder_decoder": encoder and decoder,
        "is_decoder": decoder and not encoder,
        "type_vocab_size": len(state.get("model.token_types.weight", ())),
        "lm_head_bias": "lm_head.bias" in state,
        "use_bias": any(name.endswith("_proj.bias") for name in state),
        **tokens,
        **{name: getattr(config, other) for other, name in OTHER_NAMES.items() if other in theirs},
    }
    if "ForMaskedLM" in family.heads:
        fields["lm_head_activation"] = fields["feed_forward_proj"]
    fields |= family.constants
    # A vocabulary may lack tokens, as that of a small GPT-2 the default ones.
    fields |= {name: None for name, i in tokens.items() if isinstance(i, int) and not 0 <= i < config.vocab_size}
    for name, tensor in state.items():
        if "embed_positions" in name:
            fields["max_position_embeddings"] = len(tensor)
    if not (encoder and decoder):
        fields.pop("num_decoder_layers", None)
    if kind in (SynthesizerForSequenceClassification, SynthesizerForTokenClassification):
        fields |= {name: getattr(config, name) for name in ("id2label", "label2id", "problem_type")}
    return fields


def _limit(new: SynthesizerPreTrainedModel, max_length: int) -> None:
    """Change the maximum length of a model of ours in place."""
    check_size("max_length", max_length)
    known = new.config.max_position_embeddings
    if new.config.position_embedding_type == "learned" and max_length > known:
        raise ValueError(
            f"got max_length={max_length} for a model with {known} learned positions; expected at most these. Convert "
            "it without max_length, then call resize_position_embeddings: it adds positions that are not trained"
        )
    new.resize_position_embeddings(max_length)
    if new.can_generate() and (new.generation_config.max_length or 0) > max_length:
        new.generation_config.max_length = max_length
