"""The configuration of the Synthesizer models. Fields have T5's names where T5 has the same field."""

# No annotations from __future__: the strict dataclass checks types, and ignores those that are strings.
import copy
import inspect
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from ..synthesizers import Rotary, validate
from ..synthesizers.registry import group_size, key_heads
from ..validation import LIMIT, did_you_mean
from .cache import layer_type

# There are lists of layers; a thousand take seconds to build.
_MOST_LAYERS = 10**4
# The smallest value of a field, and the value below which it has to be.
_RANGES = {
    **dict.fromkeys(("vocab_size", "d_model", "d_kv", "num_heads", "d_ff", "max_position_embeddings"), (1, LIMIT)),
    **dict.fromkeys(("num_layers", "num_decoder_layers"), (1, _MOST_LAYERS)),
    **dict.fromkeys(("dropout_rate", "attention_dropout_rate"), (0, 1)),
    **dict.fromkeys(("layer_norm_epsilon", "initializer_factor", "type_vocab_size"), (0, LIMIT)),
    # Two per direction.
    "relative_attention_num_buckets": (4, LIMIT),
    "relative_attention_max_distance": (1, LIMIT),
}
_CHOICES = {
    "position_embedding_type": ("sinusoidal", "learned", "relative", "rotary"),
    "norm_type": ("layer_norm", "rms_norm"),
    "classifier_pooling": ("mean", "first"),
    "problem_type": (None, "regression", "single_label_classification", "multi_label_classification"),
    "feed_forward_proj": (*ACT2FN, *(f"gated-{name}" for name in ACT2FN)),
    **dict.fromkeys(("lm_head_activation", "classifier_activation"), (None, *ACT2FN)),
}
# What PEFT's methods adapt by default.
_ADAPTED = {
    "LORA_TARGET": ["q_proj", "k_proj", "v_proj", "out_proj"],
    "IA3_TARGET": ["k_proj", "v_proj", "down_proj"],
    "IA3_FEEDFORWARD": ["down_proj"],
}
# The file by config.json that transformers runs with trust_remote_code; without `try` it would check imports first.
_MODULE = "modeling_synthesizer"
_CODE = '''"""The classes of this model. Their code is in the package synthetic-attention, which has to be installed."""

try:
    from synthetic_attention import *  # noqa: F403
except ImportError as error:
    raise ImportError(f"{error}; this model needs: pip install synthetic-attention") from error


def __getattr__(name):  # the classes of pipelines
    import transformers

    return getattr(transformers, name)
'''
# What `pipeline(model=…, trust_remote_code=True)` does by default with a model of each Auto class. The prefix makes
# names that transformers does not know: with its own names nothing of a checkpoint has to run.
_PREFIX = "synthesizer-"
_TASKS = {
    "AutoModel": "feature-extraction",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}
# Marks the fields of a file, which may come from a newer version with fields that this one does not know.
_FROM_FILE = "_from_file"


@strict
class SynthesizerConfig(PreTrainedConfig):
    """Configuration of all Synthesizer models. The defaults are the paper's base size.

    Args:
        vocab_size: size of the vocabulary, which source and target share.
        d_model: width of the residual stream.
        d_kv: width of a head, by default d_model / num_heads (the paper's d_head).
        num_heads: number of attention heads.
        num_key_value_heads: number of values in self-attention, and of keys in dot products; heads in a row share one,
            synthesized heads too. By default num_heads. Cross-attention has num_heads.
        qk_norm: normalize queries and keys of each head (RMSNorm) before their dot products in self-attention.
        d_ff: width of the feed-forward layer.
        num_layers: number of encoder layers; in a model with one stack, number of its layers.
        num_decoder_layers: number of decoder layers, by default num_layers.
        synthesizer: synthesizing function of the self-attention layers: a name ("random+vanilla"), a list with one name
            per layer, or {"encoder": …, "decoder": …}. Groups of heads are joined by "/" ("random:6/vanilla:2").
            Baselines are possible too. Cross-attention is always vanilla.
        synthesizer_options: options per function, {"factorized_random": {"rank": 8}, …}.
        max_position_embeddings: longest sequence, for learned positions and all functions with a maximum length.
        position_embedding_type: "sinusoidal", "learned", "relative" (T5's bias on the attention logits), or "rotary"
            (queries and keys of dot products in self-attention are turned; other functions have no positions then).
        rope_parameters: of rotary positions, as in transformers: `rope_theta`, by default 10000, `rope_type` and what
            that type needs. Types that change with the length of the input (dynamic, longrope) raise ValueError.
        norm_type: "layer_norm" or "rms_norm".
        pre_norm: normalize the input of each sub-layer and the output of each stack, not the sum after a sub-layer.
        use_bias: use biases in projections, feed-forward layers, synthesizing functions and layer norms.
        feed_forward_proj: an activation ("relu") or a gated one ("gated-gelu").
        embedding_norm: normalize the sum of embeddings and positions, as BERT and BART do.
        dropout_rate: dropout of embeddings and of the output of each sub-layer.
        attention_dropout_rate: dropout of attention weights.
        relative_attention_num_buckets: number of buckets for relative positions.
        relative_attention_max_distance: distances from here on share the last bucket.
        tie_word_embeddings: use the input embedding as output projection. (Encoder and decoder always share it.)
        lm_head_bias: add a bias to the logits of a language model.
        lm_head_activation: activation of a linear layer, with a norm after it, between a masked language model and its
            output projection, as in BERT; None for no such layer.
        scale_embedding: multiply embeddings by √d_model.
        layer_norm_epsilon: epsilon of either norm.
        initializer_factor: scales the initial weights of embeddings, feed-forward layers, cross-attention and biases.
        fused_loss: compute the training loss without storing the logits; the output has no logits then.
        unpad_inputs: compute the real tokens of padded batches only, (1, n, d_model) inside the model; False for parts
            of your own that look at rows. (With hooks, rows stay anyway.)
        classifier_pooling: what a classification head reads: "mean" of all tokens or the "first" token. With a causal
            stack it always reads the last token.
        classifier_activation: activation of a linear layer ("tanh" for BERT's pooler) between the pooled output and the
            classifier of texts; None for no such layer.
        type_vocab_size: number of token types (`token_type_ids`) of a model with one stack, 2 for pairs; 0 for none.
        is_encoder_decoder: whether the model has an encoder and a decoder, or one stack. ConditionalGeneration needs
            True, the other heads set it to False.
        is_decoder: whether the only stack is causal (`decoder`) or bidirectional (`encoder`). None: the head chooses;
            `SynthesizerModel` without a head is bidirectional. Not read with is_encoder_decoder.
        use_cache: return a cache in inference without labels.
        pad_token_id, bos_token_id, eos_token_id: special tokens.
        decoder_start_token_id: first token of the decoder's input, by default bos_token_id.

    Raises:
        ValueError: an unknown keyword, or a value that is not possible. (`from_pretrained` and `from_dict` keep
            unknown fields.)
        StrictDataclassFieldValidationError: a value of another type (of huggingface_hub); NumPy's integers are.
    """

    model_type: ClassVar[str] = "synthesizer"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "encoder_last_hidden_state"]
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    }
    # In every config.json: where a process finds the classes that has not imported this package.
    auto_map: ClassVar[dict[str, str]] = {
        "AutoConfig": f"{_MODULE}.SynthesizerConfig",
        "AutoModel": f"{_MODULE}.SynthesizerModel",
        "AutoModelForCausalLM": f"{_MODULE}.SynthesizerForCausalLM",
        "AutoModelForMaskedLM": f"{_MODULE}.SynthesizerForMaskedLM",
        "AutoModelForSeq2SeqLM": f"{_MODULE}.SynthesizerForConditionalGeneration",
        "AutoModelForSequenceClassification": f"{_MODULE}.SynthesizerForSequenceClassification",
        "AutoModelForTokenClassification": f"{_MODULE}.SynthesizerForTokenClassification",
    }

    vocab_size: int = 32000
    d_model: int = 512
    d_kv: int | None = None
    num_heads: int = 8
    num_key_value_heads: int | None = None
    qk_norm: bool = False
    d_ff: int = 2048
    num_layers: int = 6
    num_decoder_layers: int | None = None
    synthesizer: str | list[str] | dict[str, Any] = "random+vanilla"
    synthesizer_options: dict[str, Any] | None = None
    max_position_embeddings: int = 256
    position_embedding_type: str = "sinusoidal"
    rope_parameters: dict[str, Any] | None = None
    norm_type: str = "layer_norm"
    pre_norm: bool = True
    use_bias: bool = True
    feed_forward_proj: str = "relu"
    embedding_norm: bool = False
    dropout_rate: float | int = 0.1
    attention_dropout_rate: float | int = 0.0
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    tie_word_embeddings: bool = True
    lm_head_bias: bool = False
    lm_head_activation: str | None = None
    scale_embedding: bool = True
    layer_norm_epsilon: float | int = 1e-6
    initializer_factor: float | int = 1.0
    fused_loss: bool = True
    unpad_inputs: bool = True
    classifier_pooling: str = "mean"
    classifier_activation: str | None = None
    type_vocab_size: int = 0
    is_encoder_decoder: bool = True
    is_decoder: bool | None = None
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        kwargs.pop("auto_map", None)
        self._check_keywords(kwargs, from_file := kwargs.pop(_FROM_FILE, False))
        for name in self.attribute_map.keys() & kwargs.keys():
            setattr(self, self.attribute_map[name], kwargs.pop(name))
        if self.d_kv is None:
            if self.num_heads < 1 or self.d_model % self.num_heads:
                sizes = f"d_model={self.d_model} with num_heads={self.num_heads}"
                raise ValueError(f"got {sizes}; expected a multiple of num_heads. Change one, or set d_kv")
            self.d_kv = self.d_model // self.num_heads
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_heads
        if self.num_decoder_layers is None:
            self.num_decoder_layers = self.num_layers
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.pad_token_id if self.bos_token_id is None else self.bos_token_id
        self._check_values()
        if not from_file:
            # The vocabulary of a checkpoint may have been cut.
            self._check_tokens()
        self._check_stacks()
        for name in {*self.synthesizers("encoder"), *self.synthesizers("decoder")}:
            validate(name, self.synthesizer_options, self.num_heads, self.group_size)
        super().__post_init__(**kwargs)
        if self.position_embedding_type == "rotary":
            Rotary(self, self.d_kv)

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """transformers' reading of `rope_parameters`, for models with rotary positions only."""
        if self.position_embedding_type != "rotary":
            return kwargs
        self.rope_parameters = dict(self.rope_parameters or {})
        return super().convert_rope_params_to_dict(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """The configuration that a file holds. Unknown fields become attributes, as in every Hugging Face model."""
        result = super().from_dict({**config_dict, _FROM_FILE: True}, **kwargs)
        config = result[0] if isinstance(result, tuple) else result
        if not config.is_encoder_decoder and not kwargs.keys().isdisjoint(("num_layers", "num_hidden_layers")):
            config.num_decoder_layers = config.num_layers
        config._check_values()
        return result

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Does nothing: every checkpoint has an `auto_map`, and transformers would copy single files of a package."""

    def to_json_file(self, json_file_path: str | os.PathLike[str], use_diff: bool = True) -> None:
        """Write config.json, and next to it a file that imports this package for `trust_remote_code=True`."""
        super().to_json_file(json_file_path, use_diff)
        Path(json_file_path).with_name(f"{_MODULE}.py").write_text(_CODE, encoding="utf-8")

    def _check_keywords(self, given: dict[str, Any], from_file: bool) -> None:
        known = [field.name for field in fields(cast(Any, self))]
        for name in given.keys() - {*self.attribute_map, "model_type", "_name_or_path", "custom_pipelines"}:
            # Fields are not among these; transformers' other keywords are properties of its class.
            member = inspect.getattr_static(SynthesizerConfig, name, None)
            settable = [member, inspect.getattr_static(SynthesizerConfig, f"_{name}", None)]
            if any(isinstance(each, property) and each.fset for each in settable) and name != "per_layer_config":
                continue
            # Attributes that a subclass adds can be set.
            if member is not None or not (from_file or hasattr(type(self), name)):
                # Where other libraries have the longest sequence.
                hint = did_you_mean({"max_length": "max_position_embeddings"}.get(name, name), known)
                raise ValueError(f"got unknown field {name!r}{hint}")

    def _check_values(self) -> None:
        for name, (low, high) in _RANGES.items():
            if (value := getattr(self, name)) is None or not low <= value < high:
                raise ValueError(f"got {name}={value}; expected at least {low} and below {high}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"got {name}={getattr(self, name)!r}; expected one of: {', '.join(map(str, choices))}")
        buckets, far = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if far <= buckets // 2:
            raise ValueError(f"got relative_attention_max_distance={far}; expected more than half of {buckets} buckets")

    def _check_tokens(self) -> None:
        # The model embeds these. No token is eos_token_id where generation never ends: that may be any number.
        for name in ("pad_token_id", "bos_token_id", "decoder_start_token_id"):
            token = getattr(self, name)
            if token is not None and not 0 <= token < self.vocab_size:
                raise ValueError(f"got {name}={token} with vocab_size={self.vocab_size}; expected None, or below it")

    def _check_stacks(self) -> None:
        split = isinstance(self.synthesizer, dict) or self.num_decoder_layers != self.num_layers
        if split and not self.is_encoder_decoder:
            raise ValueError(
                f"got synthesizer={self.synthesizer}, num_layers={self.num_layers}, num_decoder_layers="
                f"{self.num_decoder_layers} for one stack of layers; expected a name or a list, and num_layers alone"
            )

    def with_one_stack(self, is_decoder: bool | None = None) -> Self:
        """A copy for a model with one stack: causal, or bidirectional (the encoder's side if there are two).

        None leaves a causal stack causal, and takes an encoder otherwise.

        Raises:
            ValueError: the configuration is for a stack of the other kind, is that of a checkpoint whose decoder needs
                its encoder, or describes two different stacks.
        """
        given = None if self.is_encoder_decoder else self.is_decoder
        is_decoder = bool(given) if is_decoder is None else is_decoder
        if given not in (None, is_decoder):
            expected = "a causal stack" if is_decoder else "a bidirectional stack"
            raise ValueError(f"got a configuration with is_decoder={self.is_decoder}; expected {expected}")
        # Only a checkpoint's configuration names the class that it was saved from.
        if self.is_encoder_decoder and is_decoder and self.architectures:
            raise ValueError(
                f"got the checkpoint of an encoder-decoder ({self.architectures[0]}); expected that of a causal stack, "
                "since its decoder needs the encoder. Load its encoder into MaskedLM or a classifier; for a new model "
                "of these sizes set is_encoder_decoder=False"
            )
        config = copy.deepcopy(self)
        if self.is_encoder_decoder and not is_decoder:
            if isinstance(self.synthesizer, dict):
                config.synthesizer = self.synthesizers("encoder")
            config.num_decoder_layers = self.num_layers
        config.is_encoder_decoder, config.is_decoder = False, is_decoder
        config._check_stacks()
        return config

    def synthesizers(self, side: Literal["encoder", "decoder"]) -> list[str]:
        """The synthesizer of each layer of one stack."""
        names, layers = self.synthesizer, self.num_layers if side == "encoder" else self.num_decoder_layers
        if isinstance(names, dict):
            if set(names) != {"encoder", "decoder"}:
                raise ValueError(f"got synthesizer for {list(names)}; expected for exactly 'encoder' and 'decoder'")
            names = names[side]
        if isinstance(names, str):
            return [names] * cast(int, layers)
        if not isinstance(names, list) or len(names) != layers:
            raise ValueError(f"got {names!r} for the {side}'s {layers} layers; expected one synthesizer or {layers}")
        return list(names)

    def to_dict(self) -> dict[str, Any]:
        """All fields. PEFT reads them, then looks up by `model_type` what to adapt by default: it is added here."""
        if peft := sys.modules.get("peft.utils.constants"):
            for method, names in _ADAPTED.items():
                targets = getattr(peft, f"TRANSFORMERS_MODELS_TO_{method}_MODULES_MAPPING")
                targets.setdefault(self.model_type, names)
        values = super().to_dict()
        # Those of users stay.
        given = values.pop("custom_pipelines", {}).items()
        pipelines = {name: each for name, each in given if not name.startswith(_PREFIX)}
        for auto_class, task in _TASKS.items():
            if self.auto_map.get(auto_class, "").rpartition(".")[2] in (self.architectures or ()):
                implementation = f"{_MODULE}.{task.title().replace('-', '')}Pipeline"
                pipelines[f"{_PREFIX}{task}"] = {"impl": implementation, "pt": [auto_class]}
        return {**values, "auto_map": dict(self.auto_map), **({"custom_pipelines": pipelines} if pipelines else {})}

    @property
    def embedding_std(self) -> float:
        """The initial standard deviation of embeddings, T5's."""
        return self.initializer_factor * float(self.d_model**-0.5)

    @property
    def group_size(self) -> int:
        """How many heads share a value and a key."""
        return group_size(self.num_heads, self.num_key_value_heads)

    @property
    def key_heads(self) -> list[int]:
        """How many keys the self-attention of each decoder layer caches for a token."""
        return [key_heads(name, self.num_heads, self.group_size) for name in self.synthesizers("decoder")]

    @property
    def layer_types(self) -> list[str]:
        """What the self-attention of each decoder layer caches. transformers builds its caches from it."""
        return [layer_type(keys, cast(int, self.num_key_value_heads)) for keys in self.key_heads]

    def validate_layer_type(self) -> None:
        """Replaces transformers' check, which knows only its own layer types; ours are derived."""

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Self:
        """This configuration; for the decoder with its number of layers as `num_layers`, as caches need it.

        (The method of the base class would also rename every field that starts with `decoder_`.)
        """
        if not decoder or encoder or self.num_decoder_layers == self.num_layers:
            return self
        config = copy.copy(self)
        config.num_layers = cast(int, self.num_decoder_layers)
        return config
