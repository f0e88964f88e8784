"""The outputs of a language model's recurrent layers, to be read or changed while it is evaluated."""

from contextlib import ExitStack, contextmanager
from typing import Callable, Iterator

from fairseq.models import FairseqLanguageModel
from torch import Tensor


@contextmanager
def changed_layer_outputs(model: FairseqLanguageModel, change: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Within the block, the output of layer n = 1 .. N, (B, T, D_n), is ``change(n, output)``.

    The next layer and the output layer read it; the layer's own state, which its next step reads, stays as it is. In
    evaluation the output is that of the layer itself, without dropout.
    """
    with ExitStack() as hooks:
        for n, dropout in enumerate(model.decoder.stack.dropouts, start=1):
            handle = dropout.register_forward_hook(lambda module, inputs, output, n=n: change(n, output))
            hooks.callback(handle.remove)
        yield
