"""Gates on the logits of any output layer, and their registry.

Shapes: B batch, T time, D_n width of decoder layer n (D_0: embedding), D_g features of the gate, V vocabulary.
"""

from argparse import Namespace
from typing import Any, Callable, Optional, Sequence, Tuple

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.flags.registry import Component, Registry
from fairseq_plugins.modules.recurrent_state import State
from fairseq_plugins.modules.saved_setting import SavesSettings
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.output_layers.decoder_states import DecoderStates


class OutputGate(Component, SavesSettings):
    """Multiplies the logits of an output layer, those of all its softmaxes alike, by numbers between 0 and 1.

    A subclass registers itself with ``OUTPUT_GATES.register``, names its flags in the dataclass ``Options`` and
    implements :meth:`forward`; it then is a value of ``--output-gate`` for every output layer with logits.
    :func:`build_output_gate` calls the constructor with keywords: ``dictionary``, the host's, whose size is V,
    ``layer_widths`` D_0 .. D_N, and ``options``, an instance of ``Options``.

    A gate with recurrent state overrides :meth:`initial_state`, too. Its state is a part of the decoder's: carried
    along a stream, reordered in beam search, saved in checkpoints.
    """

    def __init__(self):
        super().__init__()
        self.save_setting("gate_name", flag=OUTPUT_GATES.flag, value=self.name)

    def initial_state(self, like: Tensor) -> State:
        """The state before the first token of as many rows as ``like`` (B, ...) has, of its type and device."""
        return {}

    def forward(self, states: DecoderStates, state: State) -> Tuple[Optional[LogitGate], State]:
        """The gate at every position, with features (B, T, D_g), and the state after the last one."""
        raise NotImplementedError


OUTPUT_GATES: Registry[OutputGate] = Registry(
    "--output-gate", help="what multiplies the logits of the output layer (default: none)"
)
"""Values of ``--output-gate``."""


@OUTPUT_GATES.register("none")
class NoGate(OutputGate):
    """Leaves the logits as they are."""

    def __init__(self, **unused: Any):
        super().__init__()

    def forward(self, states: DecoderStates, state: State) -> Tuple[None, State]:
        return None, state


def build_output_gate(args: Namespace, *, dictionary: Dictionary, layer_widths: Sequence[int]) -> OutputGate:
    """Build the gate that ``args.output_gate`` names, by default none.

    Raises:
        ValueError: if the gate does not exist, an option does not fit the model or belongs to other gates.
    """
    vars(args).setdefault(OUTPUT_GATES.destination, NoGate.name)  # presets name none
    options = OUTPUT_GATES.read_options(args)
    gate_class: Callable[..., OutputGate] = OUTPUT_GATES[args.output_gate]
    return gate_class(dictionary=dictionary, layer_widths=layer_widths, options=options)
