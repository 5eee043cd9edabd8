"""`export_model`: the graphs of a model, with and without a cache.

Shape legend: B batch, S source tokens, T new tokens, P cached tokens, H heads, K width of a head, V vocabulary.
"""

from __future__ import annotations

import io
import logging
import math
import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers import Cache, DynamicCache, EncoderDecoderCache

from ..kernels import split_heads
from ..layout import TokenLayout
from ..models import SynthesizerPreTrainedModel

Tensors = dict[str, Tensor]

# The sizes of the example that is traced: all different, and none of them 0 or 1, which would be taken for constants.
_BATCH, _SOURCE, _NEW, _PAST = 2, 5, 3, 4
_LARGEST_BATCH = 2**16


def export_model(
    model: SynthesizerPreTrainedModel,
    file: str | os.PathLike[str],
    format: Literal["onnx", "torch"] = "onnx",  # noqa: A002
    *,
    with_cache: bool = False,
    overwrite: bool = True,
) -> list[Path]:
    """Write a model as an ONNX file, or as a program of `torch.export`.

    The graphs have standard operators only, and take any batch and any length up to `max_position_embeddings`. Without
    a cache the graph is the model's `forward`: from `input_ids` and `attention_mask` (B, S) (`token_type_ids` of a
    model with types, `decoder_input_ids` (B, T) of an encoder-decoder) to `logits`, or `last_hidden_state` without a
    head.

    With a cache (ONNX only) a causal model takes `input_ids` (B, T), `attention_mask` (B, P + T) and the cache, and
    returns `logits` (B, T, V) and the cache of P + T tokens; the first step has a cache of length 0. Its tensors
    (B, H, P, K) are `past.N.value` and, for layers with dot products, `past.N.key`; those returned are
    `present.N.value` and `present.N.key`. An encoder-decoder gives two files: NAME-encoder.onnx from the source to
    `cross.N.key` and `cross.N.value`, and NAME-decoder.onnx, which takes them, the source's mask as
    `encoder_attention_mask`, and its own tokens and cache.

    Args:
        file: where to write. A file appears once it is complete.

    Returns:
        The files.

    Raises:
        ValueError: a model of another package, an unknown format, a cache of a model that generates no text, or a file
            that exists and is not to be overwritten.
        ImportError: ONNX without the extra `export`.
    """
    if not isinstance(model, SynthesizerPreTrainedModel):
        message = f"got a {type(model).__name__}; expected a model of this package, as `convert` makes one"
        raise ValueError(f"{message}. For other modules use torch.onnx.export(…, dynamo=True)")
    if format not in ("onnx", "torch") or (with_cache and format != "onnx"):
        raise ValueError(f"got format={format!r}, with_cache={with_cache}; expected 'onnx', or 'torch' without a cache")
    if format == "onnx" and find_spec("onnxscript") is None:
        raise ImportError("onnxscript, which writes ONNX files, is missing: pip install 'synthetic-attention[export]'")
    if (file := Path(file)).is_dir():
        raise ValueError(f"{file} is a folder; expected a file")
    graphs = {file.with_name(f"{file.stem}{part}{file.suffix}"): graph for part, graph in _graphs(model, with_cache)}
    for path in graphs:
        if path.exists() and not (overwrite and path.is_file()):
            raise ValueError(f"{path} exists; choose another file, or pass overwrite=True (--overwrite)")
    file.parent.mkdir(parents=True, exist_ok=True)
    modes = {each: each.training for each in model.modules()}
    model.eval()
    try:
        for path, graph in graphs.items():
            _write(graph, path, format, model.config.max_position_embeddings)
    finally:
        for each, mode in modes.items():
            each.training = mode
    return list(graphs)


def largest_difference(model: SynthesizerPreTrainedModel, file: str | os.PathLike[str]) -> float:
    """The largest difference of the outputs of an ONNX file from those of its model (set to eval mode) on an example.

    Raises:
        ImportError: onnxruntime is not installed.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = {node.name for node in session.get_inputs()}
    graphs = [*_graphs(model, False), *(_graphs(model, True) if model.can_generate() else ())]
    graph = next(graph for _, graph in graphs if graph.inputs.keys() == names)
    with torch.no_grad():
        expected = graph(named=graph.inputs)
    found = session.run([*expected], {name: tensor.cpu().numpy() for name, tensor in graph.inputs.items()})
    pairs = zip(expected.values(), found, strict=True)
    return torch.stack([(one.cpu() - torch.from_numpy(other)).abs().max().float() for one, other in pairs]).max().item()


class _Graph(nn.Module):
    """A function of a model, from named tensors to named tensors, to be traced.

    Args:
        inputs: an example of each, with the name of its length: axis 1 of (B, T), axis 2 of (B, H, P, K).
    """

    def __init__(
        self, model: Any, compute: Callable[[Any, Tensors], Tensors], inputs: dict[str, tuple[Tensor, str]]
    ) -> None:
        super().__init__()
        self.model, self.compute = model, compute
        self.inputs = {name: tensor for name, (tensor, _) in inputs.items()}
        self.axes = {name: {0: "batch", tensor.dim() // 2: length} for name, (tensor, length) in inputs.items()}

    # A program has these keywords; exporters know no others. An ONNX file has `named` inputs only.
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        named: Tensors | None = None,
    ) -> Tensors:
        if named is None:
            every = {"input_ids": input_ids, "attention_mask": attention_mask}
            every |= {"decoder_input_ids": decoder_input_ids, "token_type_ids": token_type_ids}
            named = {name: tensor for name, tensor in every.items() if tensor is not None}
        return self.compute(self.model, named)


@torch.no_grad()
def _write(graph: _Graph, file: Path, kind: str, max_length: int) -> None:
    # First: a trace takes a while.
    with TemporaryDirectory(dir=file.parent, prefix=f".{file.name}-") as folder:
        part = Path(folder) / file.name
        if kind == "torch":
            sizes = {"batch": Dim("batch", min=1, max=_LARGEST_BATCH)}
            shapes = {
                name: {axis: sizes.setdefault(size, Dim(size, min=1, max=max_length)) for axis, size in axes.items()}
                for name, axes in graph.axes.items()
            }
            # Into memory: PyTorch aborts the process if it cannot write to a file.
            content = io.BytesIO()
            torch.export.save(torch.export.export(graph, (), graph.inputs, dynamic_shapes=shapes), content)
        else:
            program = _onnx_program(graph)
        try:
            part.write_bytes(content.getbuffer()) if kind == "torch" else program.save(part)
        except Exception as error:
            raise OSError(f"{file} cannot be written: {' '.join(str(error).split())}") from error
        # Weights over two gigabytes are in a file of their own, whose name is in the graph.
        for written in sorted(part.parent.iterdir(), reverse=True):
            written.replace(file.with_name(written.name))


def _onnx_program(graph: _Graph) -> Any:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    # The exporter reports packages that it does not need, and names of axes that it chose itself.
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            return torch.onnx.export(
                graph,
                (),
                kwargs={"named": graph.inputs},
                dynamo=True,
                dynamic_shapes={"named": graph.axes},
                input_names=list(graph.inputs),
                output_names=list(graph(named=graph.inputs)),
                verbose=False,
            )
    finally:
        logger.setLevel(level)


def _graphs(model: SynthesizerPreTrainedModel, with_cache: bool) -> list[tuple[str, _Graph]]:
    """The graphs of a model, each with the part of a file's name that tells them apart."""
    config, both = model.config, model.config.is_encoder_decoder
    source = {"input_ids": (_ids(model, _SOURCE), "length"), "attention_mask": (_mask(model, _SOURCE), "length")}
    if not with_cache:
        if both:
            source["decoder_input_ids"] = _ids(model, _NEW), "decoder_length"
        elif config.type_vocab_size:
            source["token_type_ids"] = torch.zeros_like(source["input_ids"][0]), "length"
        return [("", _Graph(model, _outputs, source))]
    if not model.can_generate():
        raise ValueError(f"got a cache for a {type(model).__name__}; expected a model that generates text")
    step = {"input_ids": (_ids(model, _NEW), "length"), "attention_mask": (_mask(model, _PAST + _NEW), "total_length")}
    if both:
        step["encoder_attention_mask"] = _mask(model, _SOURCE), "source_length"
    for index, key_heads in enumerate(config.key_heads):
        if key_heads:
            step[f"past.{index}.key"] = _states(model, _PAST, key_heads), "past_length"
        step[f"past.{index}.value"] = _states(model, _PAST, cast(int, config.num_key_value_heads)), "past_length"
    if not both:
        return [("", _Graph(model, _step, step))]
    for index in range(len(config.layer_types)):
        for part in ("key", "value"):
            step[f"cross.{index}.{part}"] = _states(model, _SOURCE, config.num_heads), "source_length"
    return [("-encoder", _Graph(model, _cross, source)), ("-decoder", _Graph(model, _step, step))]


def _ids(model: SynthesizerPreTrainedModel, length: int) -> Tensor:
    return torch.arange(_BATCH * length, device=model.device).view(_BATCH, length) * 7 % model.config.vocab_size


def _mask(model: SynthesizerPreTrainedModel, length: int) -> Tensor:
    mask = torch.ones(_BATCH, length, dtype=torch.long, device=model.device)
    # One row is padded on the left.
    mask[-1, 0] = 0
    return mask


def _states(model: SynthesizerPreTrainedModel, length: int, heads: int) -> Tensor:
    shape = _BATCH, heads, length, cast(int, model.config.d_kv)
    return torch.linspace(-1, 1, math.prod(shape), device=model.device, dtype=model.dtype).view(shape)


def _outputs(model: Any, inputs: Tensors) -> Tensors:
    """The model's own forward."""
    outputs = model(**inputs, return_dict=True)
    name = "logits" if "logits" in outputs else "last_hidden_state"
    return {name: outputs[name]}


def _cross(model: Any, inputs: Tensors) -> Tensors:
    """The keys and values of cross-attention, from the source."""
    hidden = model.get_encoder()(**inputs, return_dict=True).last_hidden_state
    return {
        f"cross.{index}.{part}": split_heads(projection(hidden), model.config.num_heads)
        for index, layer in enumerate(model.model.decoder.layers)
        for part, projection in (("key", layer.cross_attn.k_proj), ("value", layer.cross_attn.v_proj))
    }


def _step(model: Any, inputs: Tensors) -> Tensors:
    """New tokens, after those in the cache."""
    own, base = DynamicCache(config=model.config), model.model
    _fill(own, inputs, "past")
    cache: Cache = own
    source, x = None, base._embed(inputs["input_ids"], None)
    if model.config.is_encoder_decoder:
        cache = EncoderDecoderCache(own, DynamicCache(config=model.config))
        _fill(cache.cross_attention_cache, inputs, "cross")
        cache.is_updated = dict.fromkeys(range(len(own.layers)), True)
        source = TokenLayout.of_step(inputs["encoder_attention_mask"].bool(), x)
    # Not TokenLayout.of, whose layout depends on whether the cache is empty.
    layout = TokenLayout.of_step(inputs["attention_mask"].bool(), x)
    outputs = {"logits": model.lm_head(base.decoder(x, layout, x, source, past_key_values=cache)[0])}
    for name in inputs:
        if name.startswith("past."):
            _, index, part = name.split(".")
            outputs[f"present.{index}.{part}"] = getattr(own.layers[int(index)], f"{part}s")
    return outputs


def _fill(cache: DynamicCache, inputs: Tensors, prefix: str) -> None:
    for index, layer in enumerate(cast("list[Any]", cache.layers)):
        value = inputs[f"{prefix}.{index}.value"]
        # Without kept keys there are none of any head.
        key = inputs.get(f"{prefix}.{index}.key", value[:, :0])
        layer.lazy_initialization(key, value)
        layer.keys, layer.values = key, value
