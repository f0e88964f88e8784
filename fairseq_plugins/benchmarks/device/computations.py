"""Computations that are compared between devices: all functions of ``ops``, and all registered components.

Shapes: B rows, T steps, S source positions, D_n width of layer n, V vocabulary, N tokens, J experts, D width.
"""

from argparse import Namespace
from dataclasses import fields
from functools import partial
from typing import Any, Callable, Dict, Iterator, Literal, Sequence, Set, Tuple, Type

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.benchmarks.device.comparison import Computation, Tensors, random_inputs
from fairseq_plugins.modules.attention import ATTENTIONS, AttentionalStack, Memory
from fairseq_plugins.modules.cell import RECURRENT_CELLS, State, map_state, named_tensors
from fairseq_plugins.modules.stack import EncoderStack, RecurrentStack
from fairseq_plugins.ops import regularizers
from fairseq_plugins.ops.logit_gate import Interpolation, LogitGate, apply_gate
from fairseq_plugins.ops.matmul import accumulation_dtype, add_matmul, linear, matmul, project
from fairseq_plugins.ops.mixture_distribution import (
    mean_log_probs,
    mixture_log_probs,
    mixture_log_probs_from_latents,
    responsibilities,
    softmax_entropies,
)
from fairseq_plugins.ops.mixture_loss import MixtureLoss, float16_scale, mixture_nll
from fairseq_plugins.ops.noise_contrastive import chosen_logits, noise_contrast
from fairseq_plugins.ops.recurrence import StepProducts, linear_scan, masked_lstm, recurrent_highway
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, TieEmbeddings, build_output_layer
from fairseq_plugins.output_layers.copying import COPYING, NoCopying, build_copying
from fairseq_plugins.output_layers.gates import OUTPUT_GATES, NoGate
from fairseq_plugins.output_layers.scores import DecoderStates

B, T, S, V = 4, 9, 7, 301
WIDTHS = (16, 24, 16)
WEIGHT_LIMIT = 0.5

Mode = Literal["training", "evaluation"]
MODES: Tuple[Mode, ...] = ("training", "evaluation")


def component_computations() -> Iterator[Computation]:
    """Computations of all registered components."""
    for cell in sorted(RECURRENT_CELLS):
        yield from cell_computations(cell)
    for attention in sorted(ATTENTIONS):
        yield from attention_computations(attention)
    for layer in sorted(OUTPUT_LAYERS):
        yield from output_computations(layer)


def cell_computations(cell: str, *, dropout: float = 0.0) -> Iterator[Computation]:
    """A cell in a stack, over whole sequences and step by step, and in an encoder with padding, in both modes.

    ``dropout`` is the rate of the cell's own dropouts.
    """
    options = dict(cell=cell, cell_options=with_dropout(RECURRENT_CELLS[cell].Options, dropout))
    stack = _randomised(RecurrentStack(WIDTHS[0], WIDTHS[1:], **options))
    encoder = _randomised(EncoderStack(WIDTHS[0], WIDTHS[1:], **options, merge="top", hidden_dropout=0.0))
    inputs = {**random_inputs(0, x=(B, T, WIDTHS[0])), "tokens": _tokens(T)}
    for mode in MODES:
        yield Computation(name=f"cell {cell}, {mode}", compute=_run_stack, inputs=inputs, module=stack, mode=mode)
        yield Computation(name=f"steps of {cell}, {mode}", compute=_run_steps, inputs=inputs, module=stack, mode=mode)
        yield Computation(name=f"encoder {cell}, {mode}", compute=_encode, inputs=inputs, module=encoder, mode=mode)


def attention_computations(attention: str) -> Iterator[Computation]:
    """An attention over a stack, over whole sequences and step by step with input feeding."""
    for feeding in ("off", "on"):
        module = AttentionalStack(
            WIDTHS[0],
            WIDTHS[1:],
            cell="lstm",
            attention=ATTENTIONS[attention](WIDTHS[-1], WIDTHS[-1]),
            input_feeding=feeding,
            hidden_dropout=0.0,
            output_dropout=0.0,
        )
        inputs = random_inputs(0, x=(B, T, WIDTHS[0]), annotations=(B, S, WIDTHS[-1]))
        yield Computation(
            name=f"attention {attention}, input feeding {feeding}",
            compute=_attend,
            inputs=inputs,
            module=_randomised(module),
        )


def output_computations(layer: str) -> Iterator[Computation]:
    """Loss (in both modes) and distribution of an output layer with every gate it takes and every way of copying."""
    for gate in OUTPUT_GATES:
        if gate != NoGate.name and not OUTPUT_LAYERS[layer].takes_gate:
            continue
        name = f"output layer {layer}" if gate == NoGate.name else f"output layer {layer}, gate {gate}"
        yield from _scores(name, _output_layer(layer, gate, NoCopying.name))
    for copying in sorted(set(COPYING) - {NoCopying.name}):
        yield from _scores(f"output layer {layer}, copying {copying}", _output_layer(layer, NoGate.name, copying))


def _scores(name: str, module: nn.Module) -> Iterator[Computation]:
    states = random_inputs(0, **{f"h{n}": (B, T, width) for n, width in enumerate(WIDTHS)}, attention=(B, T, S))
    inputs = {**states, "tokens": _tokens(T), "target": _tokens(T).flip(1), "source": _tokens(S)}
    for mode in MODES:
        yield Computation(name=f"{name}, loss in {mode}", compute=_layer_loss, inputs=inputs, module=module, mode=mode)
    common: Dict[str, Any] = dict(compute=_layer_distribution, inputs=inputs, module=module, mode="evaluation")
    yield Computation(name=f"{name}, distribution", **common)
    yield Computation(name=f"{name}, distribution without gradients", **common, gradients="off")


def with_dropout(options: Type[FairseqDataclass], rate: float) -> FairseqDataclass:
    """Default options with one rate for all dropouts."""
    chosen = options()
    for name in _rates(options):
        setattr(chosen, name, rate)
    return chosen


def _rates(options: Type[FairseqDataclass]) -> Set[str]:
    """Names of the dropout rates among the options."""
    return {option.name for option in fields(options) if "dropout" in option.name and isinstance(option.default, float)}


def _output_layer(layer: str, gate: str, copying: str) -> nn.Module:
    args = Namespace(output_layer=layer, output_gate=gate, copying=copying)
    component = OUTPUT_LAYERS[layer]
    for part in (component, OUTPUT_GATES[gate]):
        for rate in _rates(part.Options) - part.unused_options(args).keys():
            setattr(args, rate, 0.0)
    dictionary = Dictionary()
    for number in range(V - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    shared = None if component.tie_embeddings is TieEmbeddings.NEVER else nn.Parameter(torch.empty(V, WIDTHS[0]))
    module = build_output_layer(args, dictionary=dictionary, layer_widths=WIDTHS, shared_weight=shared)
    module.copying = build_copying(
        args, source=dictionary, target=dictionary, width=WIDTHS[-1], attention_removed_by=None
    )
    return _randomised(module)


def _randomised(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-WEIGHT_LIMIT, WEIGHT_LIMIT, generator=generator)
    return module


def _tokens(length: int) -> Tensor:
    return torch.arange(B * length).view(B, length) * 7 % V


def _padding(x: Tensor, length: int) -> Tensor:
    """Padding mask in which row n has n positions of padding in front."""
    positions = torch.arange(length, device=x.device)
    return positions < torch.arange(B, device=x.device).unsqueeze(1)


def _named_results(layers: Sequence[Tensor], state: State) -> Dict[str, Tensor]:
    results = {f"layer {number}": layer for number, layer in enumerate(layers)}
    return {**results, **{f"state {name}": part for name, part in named_tensors(state).items()}}


def _run_stack(stack: nn.Module, x: Tensors) -> Dict[str, Tensor]:
    assert isinstance(stack, RecurrentStack)
    state = map_state(lambda zeros: zeros + 0.5, stack.initial_state(x["x"]))
    run = stack(x["x"], state, tokens=x["tokens"])
    return _named_results([*run.layers, run.top], run.state)


def _run_steps(stack: nn.Module, x: Tensors) -> Dict[str, Tensor]:
    """Run a stack step by step. Half of the input's columns are precomputed, the others arrive at their step."""
    assert isinstance(stack, RecurrentStack)
    known, late = x["x"].chunk(2, dim=-1)
    steps, state = stack.steps(known, tokens=x["tokens"]), stack.initial_state(x["x"])
    tops = []
    for t in range(T):
        run = steps(t, late[:, t], state)
        state = run.state
        tops.append(run.top)
    return _named_results([torch.stack(tops, dim=1)], state)


def _encode(encoder: nn.Module, x: Tensors) -> Dict[str, Tensor]:
    annotations, state = encoder(x["x"], _padding(x["x"], T), tokens=x["tokens"])
    return _named_results([annotations], state)


def _attend(stack: nn.Module, x: Tensors) -> Dict[str, Tensor]:
    assert isinstance(stack, AttentionalStack) and stack.attention is not None
    annotations = x["annotations"]
    keys = stack.attention.keys(annotations)
    memory = Memory(annotations=annotations, keys=keys, padding=_padding(annotations, S))
    run = stack(x["x"], memory, stack.initial_state(stack.stack.initial_state(x["x"])))
    assert run.attention is not None
    return {**_named_results([*run.layers, run.top], run.state), "attention": run.attention}


def _states(x: Tensors) -> DecoderStates:
    layers = [x[f"h{n}"] for n in range(len(WIDTHS))]
    attention = torch.softmax(x["attention"], dim=-1, dtype=accumulation_dtype(x["attention"]))
    return DecoderStates(layers=layers, top=layers[-1], tokens=x["tokens"], attention=attention, source=x["source"])


def _layer_loss(layer: nn.Module, x: Tensors) -> Dict[str, Tensor]:
    scores = layer(_states(x), x["target"], label_smoothing=0.1)
    return {"loss": scores.loss, **({} if scores.nll is None else {"nll": scores.nll})}


def _layer_distribution(layer: nn.Module, x: Tensors) -> Dict[str, Tensor]:
    return {"log P": layer(_states(x)).log_probs}


# Functions of ``fairseq_plugins/ops``.
#
# Chunks in bfloat16 (``chunk_dtype``) are not compared, because there is no useful bound on their error. The CPU rounds
# operands to 16 bits even if they come in float64, so its result is not exact. In units of bfloat16's rounding, sqrt(n)
# of them are two thirds of a tensor, which would hide any mistake. The step ``output`` runs them.

N, J, D = 37, 3, 24
GATE_WIDTH = 8
IGNORED = 7


def op_computations() -> Iterator[Computation]:
    """Computations of all functions of tensors, with the options that change their course."""
    yield from _mixture_losses()
    yield from _distributions()
    yield from _products()
    yield _computation("chosen_logits", _chosen_logits, hidden=(N, D), labels=(V, D))
    yield _computation("noise_contrast", _noise_contrast, target_log_odds=(N,), noise_log_odds=(N, J))
    yield _computation("masked_lstm", _masked_lstm, inputs=(T, B, 4 * D), weight=(4 * D, D), h=(B, D), c=(B, D))
    highway = dict(inputs=(T, B, 2 * D), first=(2 * D, D), second=(2 * D, D), biases=(2, 2 * D), s=(B, D))
    yield _computation("recurrent_highway", _recurrent_highway, **highway)
    yield _computation("linear_scan", _linear_scan, inputs=(T, B, D), factors=(D,), start=(B, D))
    for name, matrix in (("one matrix", (D, D)), ("a matrix a row", (B, D, D))):
        yield _computation(f"StepProducts, {name}", _recurrence, known=(T, B, D), matrix=matrix, start=(B, D))
    yield from _penalties()


def _computation(name: str, function: Callable[[Tensors], Any], **shapes: Any) -> Computation:
    return Computation(name=name, compute=partial(_named, function), inputs=random_inputs(0, **shapes))


def _without_gradients(name: str, function: Callable[[Tensors], Any], **shapes: Any) -> Computation:
    inputs = random_inputs(0, **shapes)
    return Computation(name=name, compute=partial(_named, function), inputs=inputs, gradients="off")


def _named(function: Callable[[Tensors], Any], module: nn.Module, x: Tensors) -> Dict[str, Tensor]:
    results = function(x)
    results = results if isinstance(results, tuple) else (results,)
    return {str(number): result for number, result in enumerate(results)}


def _target(x: Tensor) -> Tensor:
    return torch.arange(N, device=x.device) * IGNORED % V


def _gate(x: Tensors) -> LogitGate:
    return LogitGate(x["features"], x["gate_weight"], x["gate_bias"])


MIXTURE = dict(latents=(N, J, D), scores=(N, J), weight=(V, D), bias=(V,))
GATE = dict(features=(N, GATE_WIDTH), gate_weight=(V, GATE_WIDTH), gate_bias=(V,))


def _loss(x: Tensors, **options: Any) -> MixtureLoss:
    log_prior = torch.log_softmax(x["scores"], dim=-1)
    if "gate_weight" in x:
        options["gate"] = _gate(x)
    if "share" in x:
        log_share = torch.nn.functional.logsigmoid(x["share"])
        options["interpolation"] = Interpolation(torch.nn.functional.logsigmoid(-x["share"]), log_share - 2)
    return mixture_nll(x["latents"], log_prior, x["weight"], _target(x["weight"]), bias=x["bias"], **options)


def _weighted_loss(x: Tensors) -> MixtureLoss:
    token_weights = torch.arange(N, device=x["weight"].device) % 3
    return _loss(x, token_weights=token_weights, ignore_index=IGNORED)


def _mixture_losses() -> Iterator[Computation]:
    single = {**MIXTURE, "latents": (N, 1, D), "scores": (N, 1)}
    yield _computation("mixture_nll", _loss, **MIXTURE)
    yield _computation("mixture_nll, one softmax", _loss, **single)
    yield _computation("mixture_nll, label smoothing", partial(_loss, label_smoothing=0.1), **MIXTURE)
    yield _computation("mixture_nll, adversarial margins", partial(_loss, adversarial_epsilon=0.1), **MIXTURE)
    yield _computation("mixture_nll, chunks of 5 tokens", partial(_loss, chunk_size=5), **MIXTURE)
    yield _computation("mixture_nll, weighted tokens", _weighted_loss, **MIXTURE)
    yield _computation("mixture_nll, gate", _loss, **MIXTURE, **GATE)
    yield _computation("mixture_nll, one softmax, gate", _loss, **single, **GATE)
    yield _computation("mixture_nll, interpolation", _loss, **MIXTURE, share=(N,))
    smoothed = partial(_loss, label_smoothing=0.1)
    yield _computation("mixture_nll, gate, label smoothing, interpolation", smoothed, **MIXTURE, **GATE, share=(N,))
    yield _without_gradients("mixture_nll, a loss a token", partial(_loss, reduction="none"), **MIXTURE)


def _distribution(x: Tensors) -> Tensor:
    return mixture_log_probs(x["logits"], torch.log_softmax(x["scores"], dim=-1))


def _decoded(x: Tensors) -> Tensor:
    log_prior = torch.log_softmax(x["scores"], dim=-1)
    gate = _gate(x) if "gate_weight" in x else None
    return mixture_log_probs_from_latents(x["latents"], log_prior, x["weight"], x["bias"], gate=gate)


def _entropies(x: Tensors) -> Tensor:
    return softmax_entropies(x["latents"], x["weight"], x["bias"], gate=_gate(x))


def _gated(x: Tensors) -> Tensor:
    return apply_gate(x["logits"], _gate(x))


def _averaged(x: Tensors) -> Any:
    log_probs = torch.log_softmax(x["logits"], dim=-1).unbind(1)
    return mean_log_probs(log_probs), torch.stack(list(responsibilities(log_probs)))


def _distributions() -> Iterator[Computation]:
    yield _computation("mixture_log_probs", _distribution, logits=(N, J, V), scores=(N, J))
    yield _without_gradients("mixture_log_probs_from_latents", _decoded, **MIXTURE)
    yield _without_gradients("mixture_log_probs_from_latents, gate", _decoded, **MIXTURE, **GATE)
    yield _without_gradients("softmax_entropies", _entropies, latents=(N, J, D), weight=(V, D), bias=(V,), **GATE)
    yield _computation("apply_gate", _gated, logits=(N, J, V), **GATE)
    yield _computation("mean_log_probs", _averaged, logits=(N, J, V))


def _linear(x: Tensors) -> Tensor:
    return linear(x["x"], x["weight"], x["bias"])


def _linear_of_features(x: Tensors) -> Tensor:
    features = torch.arange(0, D, 2, device=x["x"].device)
    return linear(x["x"], x["weight"][:, features], x["bias"], features=features)


def _matmul(x: Tensors) -> Tensor:
    return matmul(x["x"], x["weight"].t(), x["bias"])


def _add_matmul(x: Tensors) -> Tensor:
    total = x["bias"].repeat(N, 1)
    add_matmul(total, x["x"], x["weight"].t())
    return total


def _project(x: Tensors) -> Tensor:
    return project(x["x"], x["weight"], x["bias"], dtype=x["x"].dtype)


def _scale(x: Tensors) -> Tensor:
    return float16_scale(x["x"], x["weight"], x["x"][:, 0].abs(), chunk_size=5)


def _products() -> Iterator[Computation]:
    shapes = dict(x=(N, D), weight=(V, D), bias=(V,))
    yield _computation("linear", _linear, **shapes)
    yield _computation("linear, chosen features", _linear_of_features, **shapes)
    for name, function in (
        ("matmul", _matmul),
        ("add_matmul", _add_matmul),
        ("project", _project),
        ("float16_scale", _scale),
    ):
        yield _without_gradients(name, function, **shapes)


def _chosen_logits(x: Tensors) -> Tensor:
    first = _target(x["labels"]).unsqueeze(-1)
    return chosen_logits(x["hidden"], x["labels"], torch.cat([first, (first + 1) % V, (3 * first) % V], dim=1))


def _noise_contrast(x: Tensors) -> Tensor:
    is_hit = (torch.arange(N * J, device=x["noise_log_odds"].device) % 5 == 0).view(N, J)
    return noise_contrast(x["target_log_odds"], x["noise_log_odds"], is_hit)


def _mask(like: Tensor) -> Tensor:
    """Alternating 0 and 2, (B, D)."""
    return 2.0 * (torch.arange(B * D, device=like.device).view(B, D) % 2).to(like)


def _masked_lstm(x: Tensors) -> Any:
    return masked_lstm(x["inputs"], x["weight"], _mask(x["h"]), x["h"], x["c"])


def _recurrent_highway(x: Tensors) -> Tensor:
    weights = [x["first"], x["second"]]
    return recurrent_highway(x["inputs"], weights, list(x["biases"]), x["s"], mask=_mask(x["s"]))


def _linear_scan(x: Tensors) -> Tensor:
    return linear_scan(x["inputs"], torch.tanh(x["factors"]), x["start"])


def _recurrence(x: Tensors) -> Tensor:
    products, state = StepProducts(x["known"], x["matrix"]), x["start"]
    states = []
    for t in range(T):
        state = torch.tanh(products(t, state))
        states.append(state)
    return torch.stack(states)


def _penalty(x: Tensors, *, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    mask = (torch.arange(B * T, device=x["x"].device).view(B, T) % 5 > 0).to(x["x"])
    return function(x["x"].softmax(dim=-1), mask)


def _penalties() -> Iterator[Computation]:
    for function in (
        regularizers.activation_regularization,
        regularizers.temporal_activation_regularization,
        regularizers.prior_balance_by_row,
        regularizers.prior_balance_by_batch,
    ):
        yield _computation(function.__name__, partial(_penalty, function=function), x=(B, T, J))
    yield _computation("absolute_sum", lambda x: regularizers.absolute_sum(x.values()), first=(D, J), second=(V,))
