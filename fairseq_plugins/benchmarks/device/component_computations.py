"""Computations of every registered cell, attention, output layer and gate, for the comparison of devices.

Shapes: B rows, T steps, S source positions, D_n width of layer n, V vocabulary.
"""

from argparse import Namespace
from dataclasses import fields
from typing import Any, Dict, Iterator, Literal, Sequence, Set, Tuple, Type

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.benchmarks.device.comparison import Computation, Tensors, random_inputs
from fairseq_plugins.modules.attention import ATTENTIONS, AttentionalStack, Memory
from fairseq_plugins.modules.cell import RECURRENT_CELLS, State, map_state, named_tensors
from fairseq_plugins.modules.stack import EncoderStack, RecurrentStack
from fairseq_plugins.ops.matmul import accumulation_dtype
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, TieEmbeddings, build_output_layer
from fairseq_plugins.output_layers.copying import COPYING, NoCopying, build_copying
from fairseq_plugins.output_layers.gates import OUTPUT_GATES, NoGate
from fairseq_plugins.output_layers.scores import DecoderStates

B, T, S, V = 4, 9, 7, 301
WIDTHS = (16, 24, 16)
WEIGHT_LIMIT = 0.5

Mode = Literal["training", "evaluation"]
MODES: Tuple[Mode, ...] = ("training", "evaluation")


def cell_computations(cell: str, *, dropout: float = 0.0) -> Iterator[Computation]:
    """A cell in a stack, as a whole and step by step, and in an encoder with padding, in both modes.

    ``dropout`` is that of the cell's own.
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
    """An attention over a stack that is run as a whole, and step by step with input feeding."""
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
    """An output layer with every gate that it takes, and with every way of copying: its loss in both modes, and its
    distribution with and without gradients."""
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
        yield Computation(name=f"{name}, loss in {mode}", compute=_lose, inputs=inputs, module=module, mode=mode)
    common: Dict[str, Any] = dict(compute=_distribute, inputs=inputs, module=module, mode="evaluation")
    yield Computation(name=f"{name}, distribution", **common)
    yield Computation(name=f"{name}, distribution without gradients", **common, gradients="off")


def with_dropout(options: Type[FairseqDataclass], rate: float) -> FairseqDataclass:
    """Options that have one rate for all dropouts, and are the defaults otherwise."""
    chosen = options()
    for name in _rates(options):
        setattr(chosen, name, rate)
    return chosen


def _rates(options: Type[FairseqDataclass]) -> Set[str]:
    """Names of the rates of dropout."""
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
    """Row n has n positions of padding in front."""
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
    """Half of the input's columns are known at their step only."""
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


def _lose(layer: nn.Module, x: Tensors) -> Dict[str, Tensor]:
    scores = layer(_states(x), x["target"], label_smoothing=0.1)
    return {"loss": scores.loss, **({} if scores.nll is None else {"nll": scores.nll})}


def _distribute(layer: nn.Module, x: Tensors) -> Dict[str, Tensor]:
    return {"log P": layer(_states(x)).log_probs}


def component_computations() -> Iterator[Computation]:
    """Those of all registered parts."""
    for cell in sorted(RECURRENT_CELLS):
        yield from cell_computations(cell)
    for attention in sorted(ATTENTIONS):
        yield from attention_computations(attention)
    for layer in sorted(OUTPUT_LAYERS):
        yield from output_computations(layer)
