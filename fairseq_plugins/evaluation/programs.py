"""Steps of recurrent models as programs of ``torch.export``, which run with torch alone.

Shapes: B rows or sentences, S source positions, D width of an annotation, K numbers of a state, V vocabulary.
"""

import io
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import torch
from fairseq.models import BaseFairseqModel, FairseqLanguageModel
from torch import Tensor, nn

from fairseq_plugins.files import replaced_file
from fairseq_plugins.models.decoder import StreamDecoder
from fairseq_plugins.models.recurrent_encdec import EncoderOutput, RecurrentEncoderDecoder
from fairseq_plugins.models.sliding_context import SlidingDecoder
from fairseq_plugins.modules.cell import CellContext, LayerState, RecurrentCell, State, pack_state, unpack_state
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers.projected import WordProjection

STEP, ENCODER, DECODER_STEP = "step.pt2", "encoder.pt2", "decoder_step.pt2"
"""Files of a language model, and of an encoder-decoder."""


class LanguageModelStep(nn.Module):
    """Reads one token in each row.

    Attributes:
        start: the state at the start of a row, (1, K).

    Shape:
        tokens: (B), int64; state: (B, K); output: log-probabilities of the next token, (B, V), and the next state.
    """

    start: Tensor

    def __init__(self, decoder: StreamDecoder):
        super().__init__()
        self.decoder = decoder
        self.like = decoder.initial_state(1)
        self.register_buffer("start", pack_state(self.like))

    def forward(self, tokens: Tensor, state: Tensor) -> Tuple[Tensor, Tensor]:
        _, scores, after = self.decoder.score(tokens.unsqueeze(1), unpack_state(state, self.like), incremental=False)
        return scores.output.squeeze(1), pack_state(after)


class EncoderProgram(nn.Module):
    """Reads source sentences, which end with the end mark and are padded on either side.

    Shape:
        source: (B, S), int64; output: annotations (B, S, D), and the decoder's state at the start, (B, K).
    """

    def __init__(self, model: RecurrentEncoderDecoder):
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder

    def initial_state(self, source: Tensor) -> Tuple[Tensor, Dict[str, State]]:
        """Annotations, and the decoder's state in its parts."""
        # the model's own forward looks at the values to find out whether there is padding
        annotations, layers = self.encoder.stack(
            self.encoder.embedding(source), source.eq(self.encoder.padding_idx), tokens=source
        )
        gate = self.decoder.output.gate.initial_state(annotations[:, 0])
        return annotations, {"stack": self.decoder.stack.initial_state(layers), "gate": gate}

    def forward(self, source: Tensor) -> Tuple[Tensor, Tensor]:
        annotations, state = self.initial_state(source)
        return annotations, pack_state(state)


class DecoderStep(nn.Module):
    """Reads one target token of each sentence. The first is the end mark.

    Args:
        model: the model whose decoder this is.
        like: the state of one sentence, for the names and sizes of its parts.

    Shape:
        tokens: (B), int64; state: (B, K); source: (B, S), as the encoder read it; annotations: (B, S, D); output:
        log-probabilities of the next token, (B, V), and the next state.
    """

    def __init__(self, model: RecurrentEncoderDecoder, like: Dict[str, State]):
        super().__init__()
        self.decoder, self.padding, self.like = model.decoder, model.encoder.padding_idx, like

    def forward(self, tokens: Tensor, state: Tensor, source: Tensor, annotations: Tensor) -> Tuple[Tensor, Tensor]:
        encoded: EncoderOutput = {
            "encoder_out": [annotations],
            "encoder_padding_mask": [source.eq(self.padding)],
            "src_tokens": [source],
            "final_state": [],
        }
        store: Dict[str, Dict[str, Any]] = {}
        self.decoder.cache(store, unpack_state(state, self.like))
        log_probs, _ = self.decoder(tokens.unsqueeze(1), encoder_out=encoded, incremental_state=store)
        after = self.decoder.cached(store)
        return log_probs.squeeze(1), pack_state({name: after[name] for name in self.like})


def write_programs(model: BaseFairseqModel, folder: Path, *, origin: Path) -> None:
    """Write the programs of a recurrent model: its step, or its encoder and its decoder's step.

    They compute in the dtype of the weights, without Triton, oneDNN's operators, autocast or ``--output-precision``,
    and take any number of rows and source positions.

    Args:
        model: in evaluation mode. It is changed and must not be used afterwards.
        folder: where the files are written.
        origin: the checkpoint, for messages.

    Raises:
        UserError: if the model has no such step, or torch cannot export it.
    """
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=1)
    with torch.no_grad():
        _simplify(model)
    model.requires_grad_(True)  # with gradients the formulas use only plain operations of torch
    tokens, rows = torch.full((2,), 4), {0: batch}
    without_step = UserError(
        f"{origin} holds a {type(model).__name__}, which has no recurrent step: leave --torch-export out"
    )
    if isinstance(model, FairseqLanguageModel):
        # a sliding decoder reads the tokens before a window again, instead of a state of fixed size
        has_windows = any(isinstance(module, SlidingDecoder) for module in model.modules())
        if has_windows or not isinstance(model.decoder, StreamDecoder):
            raise without_step
        step = LanguageModelStep(model.decoder)
        _replace_forward(model, RecurrentCell.forward)
        _write(step, (tokens, step.start.detach().repeat(2, 1)), (rows, rows), folder / STEP, origin)
        return
    if not isinstance(model, RecurrentEncoderDecoder):
        raise without_step
    encoder, source = EncoderProgram(model), tokens.repeat(3, 1).t().contiguous()
    with torch.no_grad():  # otherwise torch.export differentiates loops
        annotations, like = encoder.initial_state(source)
        _replace_forward(model.encoder, _scan)
        _write(encoder, (source,), ({0: batch, 1: length},), folder / ENCODER, origin)
    _replace_forward(model.decoder, RecurrentCell.forward)
    _write(
        DecoderStep(model, like),
        (tokens, pack_state(like).detach(), source, annotations.detach()),
        (rows, rows, {0: batch, 1: length}, {0: batch, 1: length}),
        folder / DECODER_STEP,
        origin,
    )


def _simplify(model: nn.Module) -> None:
    """Encode the labels of output layers once instead of in each step."""
    for module in model.modules():
        if isinstance(module, WordProjection) and module.label_encoder is not None:
            module.weight = nn.Parameter(module.label_matrix().clone())
            module.label_encoder = None


def _replace_forward(module: nn.Module, forward: Callable[..., Tuple[Tensor, LayerState]]) -> None:
    """Let the cells in a module run ``forward``, which takes the arguments of :meth:`RecurrentCell.forward`."""
    for cell in module.modules():
        if isinstance(cell, RecurrentCell):
            vars(cell)["forward"] = partial(forward, cell)  # the method stays as it is


def _scan(cell: RecurrentCell, x: Tensor, state: LayerState, context: CellContext) -> Tuple[Tensor, LayerState]:
    """:meth:`RecurrentCell.forward` as a loop of the program. A Python loop would fix the number of steps."""
    from torch._higher_order_ops.scan import scan  # a prototype in torch, used only here

    assert context.leading_padding is not None and context.tokens is not None

    def step(carried: List[Tensor], columns: List[Tensor]) -> Tuple[List[Tensor], Tensor]:
        column, stack_input, padding, tokens = (one.unsqueeze(1) for one in columns)
        output, after = RecurrentCell.forward(
            cell, column, dict(zip(state, carried)), CellContext(stack_input, padding, tokens)
        )
        return [after[name].clone() for name in state], output.squeeze(1)

    columns = [x, context.stack_input, context.leading_padding, context.tokens]
    carried, outputs = scan(
        step, [one.clone() for one in state.values()], [one.transpose(0, 1).clone() for one in columns]
    )
    return outputs.transpose(0, 1), dict(zip(state, carried))


def _write(
    module: nn.Module, example: Tuple[Tensor, ...], dynamic: Tuple[Dict[int, Any], ...], path: Path, origin: Path
) -> None:
    """Trace a module and save the program without paths of this machine."""
    try:
        program = torch.export.export(module.eval(), example, dynamic_shapes=dynamic, strict=False)
    except Exception as error:  # torch raises errors of many types here
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{origin}: torch.export cannot trace {path.name}: {reason}; leave --torch-export out"
        ) from error
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                node.meta.pop("stack_trace", None)
    for weight in program.parameters():
        weight.requires_grad_(False)
    archive = io.BytesIO()  # torch aborts the process if it cannot write a file
    torch.export.save(program, archive)
    with replaced_file(path) as aside:
        aside.write_bytes(archive.getbuffer())
