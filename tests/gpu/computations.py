"""Computations that are compared between devices: all functions of ``ops``, all registered parts, and decoders.

Shapes: B rows, T steps, S source positions, D_n width of layer n, V vocabulary, N tokens, J experts, D width.
"""

from argparse import Namespace
from dataclasses import fields
from functools import partial

import torch
from builders import (
    CELLS_AND_LAYERS,
    build_tiny_encdec,
    build_tiny_lm,
    build_tiny_transformer,
    make_dictionary,
    randomise,
)
from decoder_contract import LENGTHS, SOURCES, Hypotheses, pad
from device_comparison import Computation, random_inputs
from torch import nn

from fairseq_plugins.modules.attention import ATTENTIONS, AttentionalStack, Memory
from fairseq_plugins.modules.cell import RECURRENT_CELLS, map_state, named_tensors
from fairseq_plugins.modules.stack import EncoderStack, RecurrentStack
from fairseq_plugins.ops import regularizers
from fairseq_plugins.ops.attentional_lstm import attentional_lstm
from fairseq_plugins.ops.logit_gate import LogitGate, apply_gate
from fairseq_plugins.ops.matmul import accumulation_dtype, add_matmul, linear, matmul, project
from fairseq_plugins.ops.mixture_chunk import Interpolation, float16_scale
from fairseq_plugins.ops.mixture_distribution import (
    mean_log_probs,
    mixture_log_probs,
    mixture_log_probs_from_latents,
    responsibilities,
    softmax_entropies,
)
from fairseq_plugins.ops.mixture_loss import mixture_nll
from fairseq_plugins.ops.mogrifier import mogrifier_lstm
from fairseq_plugins.ops.noise_contrastive import chosen_logits, noise_contrast
from fairseq_plugins.ops.recurrence import StepProducts, linear_scan, masked_lstm, recurrent_highway
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, TieEmbeddings, build_output_layer
from fairseq_plugins.output_layers.copying import COPYING, NoCopying, build_copying
from fairseq_plugins.output_layers.gates import OUTPUT_GATES, NoGate
from fairseq_plugins.output_layers.scores import DecoderStates

B, T, S, V = 4, 9, 7, 301
WIDTHS = (16, 24, 16)
WEIGHT_LIMIT = 0.5


def parts():
    """Functions that build the computations of all registered parts, by name."""
    made = {}
    for cell in sorted(RECURRENT_CELLS):
        made[f"cell {cell}"] = partial(stack_computation, cell, _run_stack)
        made[f"steps of {cell}"] = partial(stack_computation, cell, _run_steps)
        made[f"encoder {cell}"] = partial(encoder_computation, cell)
    for attention in sorted(ATTENTIONS):
        for feeding in ("off", "on"):
            name = f"attention {attention}, input feeding {feeding}"
            made[name] = partial(attention_computation, attention, feeding)
    for layer, part in sorted(OUTPUT_LAYERS.items()):
        gates = [gate for gate in OUTPUT_GATES if gate == NoGate.name or part.takes_gate]
        for gate, copying in [*((gate, NoCopying.name) for gate in gates), *((NoGate.name, way) for way in COPYING)]:
            name = f"output layer {layer}, gate {gate}, copying {copying}"
            made[name] = partial(output_computation, layer, gate, copying)
    return made


def decoders():
    """Functions that build the computations of decoders, by name."""
    made = {}
    for cell, layer in CELLS_AND_LAYERS:
        made[f"language model {cell} {layer}"] = partial(
            decoder_computation, partial(build_tiny_lm, layer, vocab_size=V, rnn_cell=cell)
        )
    for attention in [*sorted(ATTENTIONS), "none"]:
        flags = dict(attention=attention, input_feeding="off" if attention == "none" else "on")
        build = partial(build_tiny_encdec, "doc", source_size=SOURCES, vocab_size=V, **flags)
        made[f"encoder-decoder {attention}"] = partial(decoder_computation, build, has_source=True)
    for layer in ("full", "mos", "doc"):
        rates = {} if layer == "full" else {"latent_dropout": 0.0}
        build = partial(build_tiny_transformer, f"transformer_{layer}", source_size=SOURCES, vocab_size=V, **rates)
        made[f"transformer {layer}"] = partial(decoder_computation, build, has_source=True)
    return made


def without_dropout(options, rate=0.0):
    """Default options of a part with one rate for all dropouts."""
    return options(**dict.fromkeys(_rates(options), rate))


def _rates(options):
    return {option.name for option in fields(options) if "dropout" in option.name and isinstance(option.default, float)}


def stack_computation(cell, compute, *, dropout=0.0):
    """A cell in a stack, over whole sequences or step by step. ``dropout`` is the rate of the cell's own dropouts."""
    options = without_dropout(RECURRENT_CELLS[cell].Options, dropout)
    stack = RecurrentStack(WIDTHS[0], WIDTHS[1:], cell=cell, cell_options=options)
    return Computation(compute, {**random_inputs(x=(B, T, WIDTHS[0])), "tokens": _tokens(T)}, _randomised(stack))


def encoder_computation(cell):
    """A cell in an encoder, with padding."""
    options = dict(cell=cell, cell_options=without_dropout(RECURRENT_CELLS[cell].Options))
    encoder = EncoderStack([RecurrentStack(WIDTHS[0], WIDTHS[1:], **options) for _ in range(2)], merge="top")
    return Computation(_encode, {**random_inputs(x=(B, T, WIDTHS[0])), "tokens": _tokens(T)}, _randomised(encoder))


def attention_computation(attention, feeding):
    """An attention over a stack, over whole sequences or step by step with input feeding."""
    feeds = feeding == "on"
    layers = RecurrentStack(WIDTHS[0] + (WIDTHS[-1] if feeds else 0), WIDTHS[1:])
    module = AttentionalStack(layers, attention=ATTENTIONS[attention](WIDTHS[-1]), feeds=feeds)
    inputs = random_inputs(x=(B, T, WIDTHS[0]), annotations=(B, S, WIDTHS[-1]))
    return Computation(_attend, inputs, _randomised(module))


def output_computation(layer, gate, copying):
    """Loss and distribution of an output layer."""
    args = Namespace(output_layer=layer, output_gate=gate, copying=copying)
    output = OUTPUT_LAYERS[layer]
    for part in (output, OUTPUT_GATES[gate]):
        for rate in _rates(part.Options) - part.unused_options(args).keys():
            setattr(args, rate, 0.0)
    dictionary = make_dictionary(V)
    shared = None if output.tie_embeddings is TieEmbeddings.NEVER else nn.Parameter(torch.empty(V, WIDTHS[0]))
    module = build_output_layer(args, dictionary=dictionary, layer_widths=WIDTHS, shared_weight=shared)
    module.copying = build_copying(
        args, source=dictionary, target=dictionary, width=WIDTHS[-1], attention_removed_by=None
    )
    states = random_inputs(**{f"h{n}": (B, T, width) for n, width in enumerate(WIDTHS)}, attention=(B, T, S))
    inputs = {**states, "tokens": _tokens(T), "target": _tokens(T).flip(1), "source": _tokens(S)}
    return Computation(_score, inputs, _randomised(module))


def decoder_computation(build, *, has_source=False):
    """Loss and distribution of a decoder, and its distribution step by step with other rows."""
    generator = torch.Generator().manual_seed(0)
    inputs = {"tokens": torch.randint(4, V, (B, T), generator=generator)}
    if has_source:
        sentences = [torch.randint(4, SOURCES, (length,), generator=generator) for length in LENGTHS]
        inputs["source"], inputs["lengths"] = pad(sentences, side="left")
    return Computation(_decode, inputs, build().double())


def _randomised(module):
    return randomise(module.double(), WEIGHT_LIMIT, seed=0)


def _tokens(length):
    return torch.arange(B * length).view(B, length) * 7 % V


def _padding(x, length):
    """Padding mask in which row n has n positions of padding in front."""
    return torch.arange(length, device=x.device) < torch.arange(B, device=x.device).unsqueeze(1)


def _named_results(layers, state):
    results = {f"layer {number}": layer for number, layer in enumerate(layers)}
    return {**results, **{f"state {name}": part for name, part in named_tensors(state).items()}}


def _run_stack(stack, x):
    state = map_state(lambda zeros: zeros + 0.5, stack.initial_state(x["x"]))
    run = stack(x["x"], state, tokens=x["tokens"])
    return _named_results([*run.layers, run.top], run.state)


def _run_steps(stack, x):
    """Run a stack step by step. Half of the input's columns are precomputed, the others arrive at their step."""
    known, late = x["x"].chunk(2, dim=-1)
    steps, state = stack.steps(known, tokens=x["tokens"]), stack.initial_state(x["x"])
    tops = []
    for t in range(T):
        run = steps(t, late[:, t], state)
        state = run.state
        tops.append(run.top)
    return _named_results([torch.stack(tops, dim=1)], state)


def _encode(encoder, x):
    annotations, state = encoder(x["x"], _padding(x["x"], T), tokens=x["tokens"])
    return _named_results([annotations], state)


def _attend(stack, x):
    annotations = x["annotations"]
    keys = stack.attention.keys(annotations)
    memory = Memory(annotations=annotations, keys=keys, padding=_padding(annotations, S))
    run = stack(x["x"], memory, stack.initial_state(stack.stack.initial_state(x["x"])))
    return {**_named_results([*run.layers, run.top], run.state), "attention": run.attention}


def _score(layer, x):
    hidden = [x[f"h{n}"] for n in range(len(WIDTHS))]
    attention = torch.softmax(x["attention"], dim=-1, dtype=accumulation_dtype(x["attention"]))
    states = DecoderStates(layers=hidden, top=hidden[-1], tokens=x["tokens"], attention=attention, source=x["source"])
    scores = layer(states, x["target"], label_smoothing=0.1)
    with torch.no_grad():
        fast = layer(states).log_probs  # mixtures take another way without gradients
    nll = {} if scores.nll is None else {"nll": scores.nll}
    return {"loss": scores.loss, **nll, "log P": layer(states).log_probs, "log P without gradients": fast}


def _decode(model, x):
    source = [x[name] for name in ("source", "lengths") if name in x]
    loss, extra = model(*source, x["tokens"], target=x["tokens"].flip(1))
    results = {"loss": loss, "nll": extra["scores"].nll, "log P": model(*source, x["tokens"])[0]}
    with torch.no_grad():
        encoder_out = model.encoder(source[0], src_lengths=source[1]) if source else None
        hypotheses, rows = Hypotheses(model, encoder_out), torch.tensor([2, 0, 3, 1, 1], device=x["tokens"].device)
        results["step 0"] = hypotheses.step(x["tokens"][:, :1])[0]
        hypotheses.reorder(rows)
        results["step 1"] = hypotheses.step(x["tokens"][rows, :2])[0]
    return results


# Functions of ``fairseq_plugins/ops``.
#
# Chunks in bfloat16 (``chunk_dtype``) are not compared, because there is no useful bound on their error. The CPU rounds
# operands to 16 bits even if they come in float64, so its result is not exact. In units of bfloat16's rounding, sqrt(n)
# of them are two thirds of a tensor, which would hide any mistake.

N, J, D = 37, 3, 24
GATE_WIDTH = 8
IGNORED = 7


def _op(function, *, has_gradients=True, **shapes):
    """A function that builds the computation of a function of named tensors."""

    def compute(module, x):
        results = function(x)
        results = results if isinstance(results, tuple) else (results,)
        return {str(number): result for number, result in enumerate(results)}

    return lambda: Computation(compute, random_inputs(**shapes), has_gradients=has_gradients)


_without_gradients = partial(_op, has_gradients=False)


def ops():
    """Functions that build the computations of all functions of tensors, with the options that change their course."""
    single = {**MIXTURE, "latents": (N, 1, D), "scores": (N, 1)}
    shared = dict(**MIXTURE, share=(N,))
    smoothed = partial(_loss, label_smoothing=0.1)
    linear_shapes = dict(x=(N, D), weight=(V, D), bias=(V,))
    highway = dict(inputs=(T, B, 2 * D), first=(2 * D, D), second=(2 * D, D), biases=(2, 2 * D), s=(B, D))
    mogrifier = dict(inputs=(T, B, D), first=(J, D), second=(D, J), biases=(3, D), weight=(4 * D, 2 * D), bias=(4 * D,))
    mogrifier.update(h=(B, D), c=(B, D))
    return {
        "mixture_nll": _op(_loss, **MIXTURE),
        "mixture_nll, one softmax": _op(_loss, **single),
        "mixture_nll, label smoothing": _op(smoothed, **MIXTURE),
        "mixture_nll, adversarial margins": _op(partial(_loss, adversarial_epsilon=0.1), **MIXTURE),
        "mixture_nll, chunks of 5 tokens": _op(partial(_loss, chunk_size=5), **MIXTURE),
        "mixture_nll, weighted tokens": _op(_weighted_loss, **MIXTURE),
        "mixture_nll, gate": _op(_loss, **MIXTURE, **GATE),
        "mixture_nll, one softmax, gate": _op(_loss, **single, **GATE),
        "mixture_nll, interpolation": _op(_loss, **shared),
        "mixture_nll, gate, label smoothing, interpolation": _op(smoothed, **shared, **GATE),
        "mixture_nll, without gradients": _without_gradients(_loss, **MIXTURE),
        "mixture_log_probs": _op(
            lambda x: mixture_log_probs(x["logits"], _log_prior(x)), logits=(N, J, V), scores=(N, J)
        ),
        "mixture_log_probs_from_latents": _without_gradients(_decoded, **MIXTURE),
        "mixture_log_probs_from_latents, gate": _without_gradients(_decoded, **MIXTURE, **GATE),
        "softmax_entropies": _without_gradients(
            lambda x: softmax_entropies(x["latents"], x["weight"], x["bias"], gate=_gate(x)), **MIXTURE, **GATE
        ),
        "apply_gate": _op(lambda x: apply_gate(x["logits"], _gate(x)), logits=(N, J, V), **GATE),
        "mean_log_probs": _op(_averaged, logits=(N, J, V)),
        "linear": _op(lambda x: linear(x["x"], x["weight"], x["bias"]), **linear_shapes),
        "linear, chosen features": _op(_linear_of_features, **linear_shapes),
        "matmul": _without_gradients(lambda x: matmul(x["x"], x["weight"].t(), x["bias"]), **linear_shapes),
        "add_matmul": _without_gradients(_add_matmul, **linear_shapes),
        "project": _without_gradients(
            lambda x: project(x["x"], x["weight"], x["bias"], dtype=x["x"].dtype), **linear_shapes
        ),
        "float16_scale": _without_gradients(
            lambda x: float16_scale(x["x"], x["weight"], x["x"][:, 0].abs(), chunk_size=5), **linear_shapes
        ),
        "chosen_logits": _op(_chosen_logits, hidden=(N, D), labels=(V, D)),
        "noise_contrast": _op(_noise_contrast, target_log_odds=(N,), noise_log_odds=(N, J)),
        "masked_lstm": _op(
            lambda x: masked_lstm(x["inputs"], x["weight"], _mask(x["h"]), x["h"], x["c"]),
            **dict(inputs=(T, B, 4 * D), weight=(4 * D, D), h=(B, D), c=(B, D)),
        ),
        "recurrent_highway": _op(_recurrent_highway, **highway),
        "attentional_lstm": _op(
            _attentional_lstm,
            **dict(inputs=(T, B, 4 * D), weight=(4 * D, 2 * D), second_bias=(4 * D,), second_weight=(4 * D, 2 * D)),
            **dict(h=(B, D), c=(B, D), fed=(B, D), annotations=(B, T, D), combine=(D, 2 * D)),
        ),
        "mogrifier_lstm": _op(_mogrifier_lstm, **mogrifier),
        "linear_scan": _op(
            lambda x: linear_scan(x["inputs"], torch.tanh(x["factors"]), x["start"]),
            **dict(inputs=(T, B, D), factors=(D,), start=(B, D)),
        ),
        "StepProducts": _op(_recurrence, known=(T, B, D), matrix=(D, D), start=(B, D)),
        **{function.__name__: _op(partial(_penalty, function=function), x=(B, T, J)) for function in PENALTIES},
        "absolute_sum": _op(lambda x: regularizers.absolute_sum(x.values()), first=(D, J), second=(V,)),
    }


MIXTURE = dict(latents=(N, J, D), scores=(N, J), weight=(V, D), bias=(V,))
GATE = dict(features=(N, GATE_WIDTH), gate_weight=(V, GATE_WIDTH), gate_bias=(V,))
PENALTIES = [
    regularizers.activation_regularization,
    regularizers.temporal_activation_regularization,
    regularizers.prior_balance_by_row,
    regularizers.prior_balance_by_batch,
]


def _target(x):
    return torch.arange(N, device=x.device) * IGNORED % V


def _gate(x):
    return LogitGate(x["features"], x["gate_weight"], x["gate_bias"]) if "gate_weight" in x else None


def _log_prior(x):
    return torch.log_softmax(x["scores"], dim=-1)


def _loss(x, **options):
    if "share" in x:
        log_share = torch.nn.functional.logsigmoid(x["share"])
        options["interpolation"] = Interpolation(torch.nn.functional.logsigmoid(-x["share"]), log_share - 2)
    target = _target(x["weight"])
    return mixture_nll(x["latents"], _log_prior(x), x["weight"], target, bias=x["bias"], gate=_gate(x), **options)


def _weighted_loss(x):
    token_weights = torch.arange(N, device=x["weight"].device) % 3
    return _loss(x, token_weights=token_weights)


def _decoded(x):
    return mixture_log_probs_from_latents(x["latents"], _log_prior(x), x["weight"], x["bias"], gate=_gate(x))


def _averaged(x):
    log_probs = torch.log_softmax(x["logits"], dim=-1).unbind(1)
    return mean_log_probs(log_probs), torch.stack(list(responsibilities(log_probs)))


def _linear_of_features(x):
    features = torch.arange(0, D, 2, device=x["x"].device)
    return linear(x["x"].index_select(1, features), x["weight"][:, features], x["bias"])


def _add_matmul(x):
    total = x["bias"].repeat(N, 1)
    add_matmul(total, x["x"], x["weight"].t())
    return total


def _chosen_logits(x):
    first = _target(x["labels"]).unsqueeze(-1)
    return chosen_logits(x["hidden"], x["labels"], torch.cat([first, (first + 1) % V, (3 * first) % V], dim=1))


def _noise_contrast(x):
    is_hit = (torch.arange(N * J, device=x["noise_log_odds"].device) % 5 == 0).view(N, J)
    return noise_contrast(x["target_log_odds"], x["noise_log_odds"], is_hit)


def _mask(like):
    """Alternating 0 and 2, (B, D)."""
    return 2.0 * (torch.arange(B * D, device=like.device).view(B, D) % 2).to(like)


def _recurrent_highway(x):
    weights = [x["first"], x["second"]]
    return recurrent_highway(x["inputs"], weights, list(x["biases"]), x["s"], mask=_mask(x["s"]))


def _attentional_lstm(x):
    h, c, annotations = x["h"], x["c"], x["annotations"]
    first = x["inputs"], x["weight"], h, c, _mask(h).expand(T, B, D)
    second = x["second_bias"].expand(T, B, 4 * D), x["second_weight"], h, c, None
    padding = torch.arange(T, device=h.device) < torch.arange(B, device=h.device).unsqueeze(1) % T
    outputs, top, _, _ = attentional_lstm(
        [first, second],
        x["fed"],
        keys=torch.tanh(annotations),
        annotations=annotations,
        padding=padding,
        combine=x["combine"],
    )
    return torch.cat([*outputs, top], dim=2)


def _mogrifier_lstm(x):
    rounds = [(bias, [x["first"], x["second"]]) for bias in x["biases"]]
    return mogrifier_lstm(x["inputs"], rounds, x["weight"], x["bias"], x["h"], x["c"], mask=_mask(x["h"]))


def _recurrence(x):
    products, state = StepProducts(x["known"], x["matrix"]), x["start"]
    states = []
    for t in range(T):
        state = torch.tanh(products(t, state))
        states.append(state)
    return torch.stack(states)


def _penalty(x, *, function):
    mask = (torch.arange(B * T, device=x["x"].device).view(B, T) % 5 > 0).to(x["x"])
    return function(x["x"].softmax(dim=-1), mask)
