"""The pretrained models that can be converted: fields of their configurations, and names of their weights.

Our models compute what these do. Factors that our layers lack become part of the weights: T5 does not divide dot
products by √d_kv, so its query weights are multiplied by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..models import (
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
    SynthesizerForMaskedLM,
    SynthesizerForSequenceClassification,
    SynthesizerForTokenClassification,
    SynthesizerModel,
)

State = dict[str, Tensor]
COMMON_NAMES = {r"self_attn\.([qk])_": r"self_attn.function.\1_", r"^score": "classifier"}
# Fields of other configurations, and ours with other names, that mean the same.
OTHER_NAMES = {
    **dict.fromkeys(("activation_function", "hidden_act", "activation"), "feed_forward_proj"),
    **dict.fromkeys(("dropout", "resid_pdrop", "hidden_dropout_prob"), "dropout_rate"),
    **dict.fromkeys(
        ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "dropout_rate"), "attention_dropout_rate"
    ),
    **dict.fromkeys(("layer_norm_eps", "rms_norm_eps"), "layer_norm_epsilon"),
    "decoder_layers": "num_decoder_layers",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models with the same layers.

    Attributes:
        heads: the classes that can be converted, by the ends of their names (`HEADS`).
        constants: fields of `SynthesizerConfig` with one value for all models of the family.
        equal: pairs of fields of their configuration that have to be equal, as ours has one field for both.
        supported: fields of their configuration, and the only value of each that can be converted.
        names: regular expressions for parts of their weights' names, and ours, applied in this order, then those in
            `COMMON_NAMES`. Weights without a name at the end are dropped. Models without a head get the names that
            models with a head have.
        adapt: changes the renamed weights in place, by the configuration of the source.
    """

    heads: tuple[str, ...]
    constants: Mapping[str, Any]
    names: Mapping[str, str]
    equal: tuple[tuple[str, str], ...] = ()
    supported: Mapping[str, Any] = field(default_factory=dict)
    adapt: Callable[[Any, State], None] = lambda config, state: None


def _scale(state: State, ending: str, factor: float) -> None:
    for name in state:
        if name.endswith(ending):
            state[name] = state[name] * factor


def _adapt_t5(config: Any, state: State) -> None:
    _scale(state, "q_proj.weight", config.d_kv**0.5)
    # T5 v1.0 multiplies the decoder's output by d_model^−½. Versions 1.1 and mT5 do not.
    if "lm_head.weight" in state and getattr(config, "scale_decoder_outputs", False):
        _scale(state, "decoder.norm.weight", config.d_model**-0.5)


def _adapt_bart(config: Any, state: State) -> None:
    for name in state:
        if "embed_positions" in name:
            # BART does not use the first two.
            state[name] = state[name][2:]


def _adapt_gpt2(config: Any, state: State) -> None:
    for name in list(state):
        # GPT-2 stores these weights as (in, out), and queries, keys and values in one.
        if name.endswith((".c_attn.weight", "out_proj.weight", "up_proj.weight", "down_proj.weight")):
            state[name] = state[name].t()
        if ".c_attn." in name:
            prefix, part = name.split("c_attn.")
            joined = state.pop(name).chunk(3)
            ours = ("function.q_proj", "function.k_proj", "v_proj")
            state |= {f"{prefix}{name}.{part}": piece for name, piece in zip(ours, joined, strict=True)}


def _adapt_roberta(config: Any, state: State) -> None:
    positions, types = "model.encoder.embed_positions.weight", "model.token_types.weight"
    # Positions are counted from the token after padding.
    state[positions] = state[positions][config.pad_token_id + 1 :]
    if len(state[types]) == 1:
        # A constant: without it the model needs no types as input.
        state[positions] = state[positions] + state.pop(types)


def _adapt_llama(config: Any, state: State) -> None:
    window = getattr(config, "sliding_window", None)
    if window is not None:
        raise ValueError(
            f"got a {config.model_type} model with sliding_window={window}; expected none. For inputs of at most "
            f"{window} tokens set config.sliding_window=None"
        )


# Our classes by the ends of the names of theirs.
HEADS = {
    "ForConditionalGeneration": SynthesizerForConditionalGeneration,
    "MTModel": SynthesizerForConditionalGeneration,
    "ForCausalLM": SynthesizerForCausalLM,
    "LMHeadModel": SynthesizerForCausalLM,
    "ForMaskedLM": SynthesizerForMaskedLM,
    "ForSequenceClassification": SynthesizerForSequenceClassification,
    "ForTokenClassification": SynthesizerForTokenClassification,
    "EncoderModel": SynthesizerModel,
    "Model": SynthesizerModel,
}
_SEQ2SEQ = ("ForConditionalGeneration", "Model")
_CAUSAL = ("ForCausalLM", "ForSequenceClassification", "ForTokenClassification", "Model")


_T5 = Family(
    heads=(*_SEQ2SEQ, "EncoderModel"),
    # There is no maximum: 512 is the length that T5 was pretrained with.
    constants={
        "position_embedding_type": "relative",
        "norm_type": "rms_norm",
        "use_bias": False,
        "scale_embedding": False,
        "max_position_embeddings": 512,
    },
    names={
        r"^(encoder|decoder)\.embed_tokens": "model.embed_tokens",
        r"^shared\..*": "",
        r"^(encoder|decoder)\.block": r"model.\1.layers",
        r"^(encoder|decoder)\.final_layer_norm": r"model.\1.norm",
        r"layers\.0\.layer\.0\.SelfAttention\.relative": "relative",
        r"layer\.0\.SelfAttention": "self_attn",
        r"layer\.0\.layer_norm": "self_attn_norm",
        r"layer\.1\.EncDecAttention": "cross_attn",
        r"(decoder\.layers\.\d+)\.layer\.1\.layer_norm": r"\1.cross_attn_norm",
        r"layer\.[12]\.layer_norm": "mlp_norm",
        r"layer\.[12]\.DenseReluDense": "mlp",
        r"attn\.([qkv])\.": r"attn.\1_proj.",
        r"attn\.o\.": "attn.out_proj.",
        r"mlp\.wi_0": "mlp.gate_proj",
        r"mlp\.wi(_1)?": "mlp.up_proj",
        r"mlp\.wo": "mlp.down_proj",
    },
    adapt=_adapt_t5,
)
_BART = Family(
    heads=_SEQ2SEQ,
    constants={
        "position_embedding_type": "learned",
        "pre_norm": False,
        "embedding_norm": True,
        "layer_norm_epsilon": 1e-5,
    },
    equal=(("encoder_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim")),
    names={
        r"^(encoder|decoder)": r"model.\1",
        r"^model\.(encoder|decoder)\.embed_tokens": "model.embed_tokens",
        r"^(model\.)?shared\..*": "",
        r"self_attn_layer_norm": "self_attn_norm",
        r"encoder_attn_layer_norm": "cross_attn_norm",
        r"encoder_attn": "cross_attn",
        r"final_layer_norm": "mlp_norm",
        r"fc1": "mlp.up_proj",
        r"fc2": "mlp.down_proj",
        r"layernorm_embedding": "embedding_norm",
        r"^model\.(encoder|decoder)\.layer_norm": r"model.\1.norm",
        r"final_logits_bias": "lm_head.bias",
    },
    adapt=_adapt_bart,
)
_MARIAN = replace(
    _BART,
    heads=("MTModel", "Model"),
    constants={"position_embedding_type": "sinusoidal", "pre_norm": False, "layer_norm_epsilon": 1e-5},
    supported={"share_encoder_decoder_embeddings": True},
    # Sinusoids, which our model computes.
    names={**_BART.names, r".*embed_positions.*": ""},
    adapt=lambda config, state: None,
)
_OPT = replace(
    _BART,
    heads=("ForCausalLM", "ForSequenceClassification", "Model"),
    constants={"position_embedding_type": "learned", "scale_embedding": False, "layer_norm_epsilon": 1e-5},
    equal=(("word_embed_proj_dim", "hidden_size"),),
    supported={
        **dict.fromkeys(("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"), True),
        "_remove_final_layer_norm": False,
    },
    names={r"^(model\.)?decoder\.final_layer_norm": "model.decoder.norm", **_BART.names},
)
_GPT2 = Family(
    heads=("LMHeadModel", *_CAUSAL[1:]),
    constants={"position_embedding_type": "learned", "scale_embedding": False},
    supported={"add_cross_attention": False, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    names={
        r"^transformer\.": "",
        r"^wte": "model.embed_tokens",
        r"^wpe": "model.decoder.embed_positions",
        r"^h\.": "model.decoder.layers.",
        r"^ln_f": "model.decoder.norm",
        r"ln_1": "self_attn_norm",
        r"ln_2": "mlp_norm",
        r"mlp\.c_fc": "mlp.up_proj",
        r"mlp\.c_proj": "mlp.down_proj",
        r"\.attn\.c_proj": ".self_attn.out_proj",
        r"\.attn\.": ".self_attn.",
    },
    adapt=_adapt_gpt2,
)
_BERT = Family(
    heads=("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "Model"),
    constants={
        "position_embedding_type": "learned",
        "pre_norm": False,
        "embedding_norm": True,
        "scale_embedding": False,
        "classifier_pooling": "first",
        "classifier_activation": "tanh",
    },
    supported={"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
    names={
        r"^(bert|roberta|distilbert)\.": "",
        # The projection has the same, or does not use it.
        r"^(cls\.predictions|lm_head)\.bias": "",
        r"^(encoder|transformer)\.layer": "model.encoder.layers",
        r"^embeddings\.word_embeddings": "model.embed_tokens",
        r"^embeddings\.position_embeddings": "model.encoder.embed_positions",
        r"^embeddings\.token_type_embeddings": "model.token_types",
        r"^embeddings\.LayerNorm": "model.encoder.embedding_norm",
        r"attention\.self\.([qkv])(uery|ey|alue)": r"self_attn.\1_proj",
        r"attention\.output\.dense": "self_attn.out_proj",
        r"attention\.output\.LayerNorm": "self_attn_norm",
        r"intermediate\.dense": "mlp.up_proj",
        r"output\.dense": "mlp.down_proj",
        r"output\.LayerNorm": "mlp_norm",
        r"^cls\.predictions\.transform": "transform",
        r"^transform\.LayerNorm": "transform.norm",
        r"^cls\.predictions\.decoder": "lm_head",
    },
)
_ROBERTA = replace(
    _BERT,
    constants={**_BERT.constants, "lm_head_activation": "gelu"},
    names={
        **_BERT.names,
        r"^lm_head\.dense": "transform.dense",
        r"^lm_head\.layer_norm": "transform.norm",
        r"^lm_head\.decoder": "lm_head",
        r"^classifier\.dense": "pooler.dense",
        r"^classifier\.out_proj": "classifier",
    },
    adapt=_adapt_roberta,
)
_DISTILBERT = replace(
    _BERT,
    constants={**_BERT.constants, "classifier_activation": "relu", "layer_norm_epsilon": 1e-12},
    supported={},
    names={
        **_BERT.names,
        r"attention\.([qkv])_lin": r"self_attn.\1_proj",
        r"attention\.out_lin": "self_attn.out_proj",
        r"sa_layer_norm": "self_attn_norm",
        r"output_layer_norm": "mlp_norm",
        r"ffn\.lin1": "mlp.up_proj",
        r"ffn\.lin2": "mlp.down_proj",
        r"^vocab_transform": "transform.dense",
        r"^vocab_layer_norm": "transform.norm",
        r"^vocab_projector": "lm_head",
        r"^pre_classifier": "pooler.dense",
    },
)
_LLAMA = Family(
    heads=_CAUSAL,
    constants={
        "position_embedding_type": "rotary",
        "norm_type": "rms_norm",
        "feed_forward_proj": "gated-silu",
        "scale_embedding": False,
        "dropout_rate": 0.0,
    },
    supported={"hidden_act": "silu"},
    names={
        r"^model\.": "",
        r"^(embed_tokens)": r"model.\1",
        r"^(layers|norm)": r"model.decoder.\1",
        r"input_layernorm": "self_attn_norm",
        r"post_attention_layernorm": "mlp_norm",
        r"self_attn\.o_proj": "self_attn.out_proj",
    },
    adapt=_adapt_llama,
)
# By the names that users know; the names of classes begin with them, in another case.
FAMILIES = {
    "T5": _T5,
    "MT5": _T5,
    "BART": _BART,
    "Marian": _MARIAN,
    "GPT2": _GPT2,
    "BERT": _BERT,
    "RoBERTa": _ROBERTA,
    "DistilBERT": _DISTILBERT,
    "MBart": replace(_BART, constants={**_BART.constants, "pre_norm": True}),
    "Pegasus": replace(_MARIAN, heads=_SEQ2SEQ, constants={**_MARIAN.constants, "pre_norm": True}),
    "OPT": _OPT,
    "XLMRoberta": _ROBERTA,
    "Llama": _LLAMA,
    "Mistral": _LLAMA,
    "Qwen2": _LLAMA,
    "Qwen3": replace(_LLAMA, constants={**_LLAMA.constants, "qk_norm": True}),
}
