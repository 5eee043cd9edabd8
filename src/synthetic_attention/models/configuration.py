"""The configuration of the Synthesizer models: T5's names where T5 has one."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any, ClassVar, Literal, cast

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from ..self_attention import caches_keys, validate
from .cache import KEYS_AND_VALUES, VALUES_ONLY

__all__ = ["SynthesizerConfig"]

_AT_LEAST_ONE = (
    "vocab_size",
    "d_model",
    "d_kv",
    "num_heads",
    "d_ff",
    "num_layers",
    "num_decoder_layers",
    "max_position_embeddings",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
)
_RATES = ("dropout_rate", "attention_dropout_rate", "label_smoothing")
# What transformers itself hands to a config, or writes to config.json, beside the fields.
_HUGGING_FACE = frozenset(
    {
        "_attn_implementation_internal",
        "_commit_hash",
        "_experts_implementation_internal",
        "_name_or_path",
        "attn_implementation",
        "auto_map",
        "custom_pipelines",
        "experts_implementation",
        "model_type",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "quantization_config",
        "tie_last_hidden_states",
        "torch_dtype",
    }
)


@strict
class SynthesizerConfig(PreTrainedConfig):
    """Everything a Synthesizer model is built from; the defaults are the paper's base size.

    Args:
        vocab_size: pieces in the vocabulary, shared by source and target.
        d_model: width of the residual stream.
        d_kv: width of a head, by default d_model / num_heads (the paper's d_head).
        num_heads: attention heads.
        d_ff: width of the feed-forward layer.
        num_layers: encoder layers (the layers of a model that has one stack).
        num_decoder_layers: decoder layers, by default num_layers. A model that has one stack has no other number.
        synthesizer: what synthesizes the attention logits: a name ("random+vanilla"), a list (one name per layer),
            or, for an encoder and a decoder, {"encoder": name or list, "decoder": name or list}. Cross-attention is
            vanilla always. In the place of a synthesizer may be what it is compared with: "lightweight_conv",
            "dynamic_conv", "local_dense", and in encoders "linformer".
        synthesizer_options: options per function, {"factorized_random": {"rank": 8}, …}.
        max_position_embeddings: the longest sequence. It binds where something has that many positions: learned
            position embeddings, every function but vanilla, and "linformer".
        position_embedding_type: "sinusoidal", "learned" (both added to the embeddings) or "relative" (T5's bias on
            the attention logits, one for all layers of a stack).
        norm_type: "layer_norm" or "rms_norm".
        pre_norm: normalise the input of each sub-layer (and the output of each stack); else the sum after it.
        use_bias: biases in projections, feed-forward layers, synthesizing functions and layer norms.
        feed_forward_proj: an activation ("relu") or a gated one ("gated-gelu").
        dropout_rate: dropout of embeddings and of each sub-layer's output.
        attention_dropout_rate: dropout of attention weights.
        relative_attention_num_buckets: buckets of the relative positions.
        relative_attention_max_distance: the distance from which on all fall into the last bucket.
        tie_word_embeddings: the output projection is the input embedding, transposed. (Encoder and decoder always
            share the input embedding.)
        scale_embedding: multiply embeddings by √d_model.
        label_smoothing: of the loss in training mode; evaluation reports the plain negative log-likelihood.
        layer_norm_epsilon: of either norm.
        initializer_factor: multiplies the standard deviation of the initial weights of token embeddings, feed-forward
            layers, cross-attention and relative position biases.
        fused_loss: compute the training loss without ever storing the logits; the model's output has none then. Turn it
            off for code that reads `output.logits` in training.
        classifier_pooling: what a classifier reads of the encoder: "mean" over the tokens, or the "first" token.
        type_vocab_size: kinds of tokens that a classifier tells apart, by `token_type_ids`: 2 for the sides of a pair;
            0 for none.
        is_encoder_decoder: whether the model has an encoder and a decoder, or one stack. Models set it themselves.
        use_cache: return a cache from inference; not from training, and not where labels are given.
        pad_token_id, bos_token_id, eos_token_id: special tokens.
        decoder_start_token_id: what the decoder's input begins with, by default bos_token_id.

    Raises:
        ValueError: a field is unknown (the known are listed), or a value cannot be.
    """

    model_type: ClassVar[str] = "synthesizer"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "encoder_last_hidden_state"]
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    }

    vocab_size: int = 32000
    d_model: int = 512
    d_kv: int | None = None
    num_heads: int = 8
    d_ff: int = 2048
    num_layers: int = 6
    num_decoder_layers: int | None = None
    synthesizer: str | list[str] | dict[str, Any] = "random+vanilla"
    synthesizer_options: dict[str, Any] | None = None
    max_position_embeddings: int = 256
    position_embedding_type: str = "sinusoidal"
    norm_type: str = "layer_norm"
    pre_norm: bool = True
    use_bias: bool = True
    feed_forward_proj: str = "relu"
    dropout_rate: float | int = 0.1
    attention_dropout_rate: float | int = 0.0
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    tie_word_embeddings: bool = True
    scale_embedding: bool = True
    label_smoothing: float | int = 0.0
    layer_norm_epsilon: float = 1e-6
    initializer_factor: float | int = 1.0
    fused_loss: bool = True
    classifier_pooling: str = "mean"
    type_vocab_size: int = 0
    is_encoder_decoder: bool = True
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_unknown(kwargs)
        if self.d_kv is None:
            if self.num_heads < 1 or self.d_model % self.num_heads:
                raise ValueError(
                    f"got d_model={self.d_model} with num_heads={self.num_heads}; expected a multiple of num_heads. "
                    "Change one of them, or set the width of a head, d_kv"
                )
            self.d_kv = self.d_model // self.num_heads
        if self.num_decoder_layers is None:
            self.num_decoder_layers = self.num_layers
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.pad_token_id if self.bos_token_id is None else self.bos_token_id
        self._check_values()
        self._check_stacks()
        for name in {*self.synthesizers("encoder"), *self.synthesizers("decoder")}:
            validate(name, self.synthesizer_options, self.max_position_embeddings)
        super().__post_init__(**kwargs)

    @classmethod
    def _refuse_unknown(cls, names: dict[str, Any]) -> None:
        unknown = sorted(set(names) - _HUGGING_FACE - set(cls.attribute_map))
        if not unknown:
            return
        known = sorted({field.name for field in fields(cast(Any, cls))})
        hint = " (the longest sequence is max_position_embeddings)" if "max_length" in unknown else ""
        raise ValueError(f"got unknown field(s) {', '.join(unknown)}{hint}; expected some of: {', '.join(known)}")

    def _check_values(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"got {name}={getattr(self, name)}; expected at least 1")
        for name in _RATES:
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"got {name}={getattr(self, name)}; expected 0 ≤ {name} < 1")
        _choose("position_embedding_type", self.position_embedding_type, ("sinusoidal", "learned", "relative"))
        _choose("norm_type", self.norm_type, ("layer_norm", "rms_norm"))
        _choose("classifier_pooling", self.classifier_pooling, ("mean", "first"))
        if self.type_vocab_size < 0:
            raise ValueError(f"got type_vocab_size={self.type_vocab_size}; expected 0 (no types) or more")
        _choose("feed_forward_proj", self.feed_forward_proj.removeprefix("gated-"), tuple(ACT2FN))
        if self.position_embedding_type == "relative" and self.relative_attention_num_buckets < 4:
            raise ValueError(
                f"got relative_attention_num_buckets={self.relative_attention_num_buckets}; expected at least 4: two "
                "directions, each with near and far distances"
            )
        if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 2:
            raise ValueError(
                f"got relative_attention_max_distance={self.relative_attention_max_distance} with "
                f"{self.relative_attention_num_buckets} buckets; expected more than half of them, since near distances "
                "have one each"
            )

    def _check_stacks(self) -> None:
        if self.is_encoder_decoder:
            return
        if isinstance(self.synthesizer, dict):
            raise ValueError(
                f"got synthesizer for {sorted(self.synthesizer)} in a model with one stack of layers; expected a name, "
                "or a list with one per layer"
            )
        if self.num_decoder_layers != self.num_layers:
            raise ValueError(
                f"got num_layers={self.num_layers} and num_decoder_layers={self.num_decoder_layers} for a model with "
                "one stack of layers; expected num_layers alone"
            )

    def with_one_stack(self) -> SynthesizerConfig:
        """A copy for a model that has one stack of layers, no encoder beside a decoder.

        Raises:
            ValueError: a field tells an encoder from a decoder.
        """
        config = copy.deepcopy(self)
        config.is_encoder_decoder = False
        config._check_stacks()
        return config

    def synthesizers(self, side: Literal["encoder", "decoder"]) -> list[str]:
        """The synthesizer of each layer of one stack.

        Raises:
            ValueError: the field `synthesizer` names another number of layers, or other sides than these two.
        """
        spec, layers = self.synthesizer, self.num_layers if side == "encoder" else self.num_decoder_layers
        if isinstance(spec, dict):
            if set(spec) != {"encoder", "decoder"}:
                raise ValueError(f"got synthesizer for {sorted(spec)}; expected for exactly 'encoder' and 'decoder'")
            spec = cast("str | list[str]", spec[side])
        if isinstance(spec, str):
            return [spec] * cast(int, layers)
        if not isinstance(spec, list):
            raise ValueError(f"got synthesizer {spec!r} for the {side}; expected a name, or a list with one per layer")
        if len(spec) != layers:
            raise ValueError(
                f"got a list of {len(spec)} synthesizers for the {layers} layers of the {side}; expected one per "
                "layer. Give one name for all, or a list for each side: {'encoder': …, 'decoder': …}"
            )
        return list(spec)

    @property
    def layer_types(self) -> list[str]:
        """What the self-attention of each decoder layer caches; read by transformers when it builds a cache."""
        return [KEYS_AND_VALUES if caches_keys(name) else VALUES_ONLY for name in self.synthesizers("decoder")]

    def validate_layer_type(self) -> None:
        """Nothing to check: the types of layers are derived, and transformers knows only its own."""

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> SynthesizerConfig:
        """This configuration; the decoder's has its number of layers in `num_layers`, where a cache is built from it.

        (The base class would also rename every field that starts with `decoder_`.)
        """
        if not decoder or encoder or self.num_decoder_layers == self.num_layers:
            return self
        config = copy.copy(self)
        config.num_layers = cast(int, self.num_decoder_layers)
        return config


def _choose(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"got {name}={value!r}; expected one of: {', '.join(choices)}")
