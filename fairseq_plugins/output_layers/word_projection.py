"""The matrix product by which vectors become logits of all words.

Shapes: C width of vectors and labels, V vocabulary.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq_plugins.modules.dropout import DropsAtRandom
from fairseq_plugins.ops.autograd_graph import is_recorded
from fairseq_plugins.ops.precision import autocast_dtype
from fairseq_plugins.output_layers.noise import Gradients

MadeOf = Tuple[int, Optional[int], torch.device, torch.dtype, Optional[torch.dtype]]
"""Storage, version, device, type, and the type under autocast of a parameter."""


MAKE_WIDTHS_EQUAL = (
    "give the last layer the width of the embedding (recurrent models: the last of --hidden-sizes, of a language model "
    "also --output-hidden-size; Transformers: --decoder-output-dim), or take another --output-layer"
)
"""The remedy in errors."""


class WordProjection(nn.Module):
    """Logits of all words: z = L x + b, with a label matrix L made of the label embedding E; b may be left out.

    E is shared with the input embedding or the layer's own, and L is E itself or what a label encoder makes of it. In
    evaluation L is computed once and kept until the weights change.

    An own E starts as U(-0.1, 0.1), like an embedding; b starts at zero.

    Args:
        width: of E.
        vocab_size: V.
        shared_weight: E, (V, width), or None.
        label_encoder: a map from (V, width) to (V, C); by default C = width and L = E.
        bias: "on" or "off".

    Shape:
        x: (*, C); output: (*, V).

    Raises:
        ValueError: if the shared matrix is not as wide.
    """

    def __init__(
        self,
        width: int,
        vocab_size: int,
        *,
        shared_weight: Optional[nn.Parameter],
        label_encoder: Optional[nn.Module] = None,
        bias: str = "on",
    ):
        super().__init__()
        if shared_weight is None:
            shared_weight = nn.Parameter(torch.empty(vocab_size, width).uniform_(-0.1, 0.1))
        elif shared_weight.size(1) != width:
            raise ValueError(
                f"the output layer reads {width} features but the shared embedding is {shared_weight.size(1)} wide: "
                f"{MAKE_WIDTHS_EQUAL}"
            )
        self.weight = shared_weight
        self.bias = nn.Parameter(shared_weight.new_zeros(vocab_size)) if bias == "on" else None
        self.label_encoder = label_encoder
        self._kept: Optional[Tuple[Tuple[List[MadeOf], Optional[torch.dtype]], Tensor]] = None

    def label_matrix(self, dtype: Optional[torch.dtype] = None) -> Tensor:
        """L, (V, C); in evaluation, without gradients or frozen, the one that was computed before, if it still holds.

        ``dtype`` is another type to have it in, without gradients.
        """
        if self.label_encoder is None and dtype is None:
            return self.weight
        if not self.training and self._samples_masks():
            return self._labels_in(dtype)
        learns = is_recorded(self.parameters())
        if self.training or learns:
            self._kept = None  # for optimisers that change weights unseen
            return self._labels_in(dtype)
        parameters = () if self.label_encoder is None else self.label_encoder.parameters()
        made_of = ([self._made_of(x) for x in (self.weight, *parameters)], dtype)
        kept = self._kept  # read once: another thread may keep a matrix of another type meanwhile
        if kept is None or kept[0] != made_of or kept[1].is_inference() and not torch.is_inference_mode_enabled():
            kept = (made_of, self._labels_in(dtype))
            self._kept = kept
        return kept[1]

    def _labels_in(self, dtype: Optional[torch.dtype]) -> Tensor:
        labels = self._labels()
        return labels if dtype is None else labels.to(dtype)

    def _samples_masks(self) -> bool:
        """Whether L differs from call to call."""
        parts = () if self.label_encoder is None else self.label_encoder.modules()
        return any(part.current_rate > 0 for part in parts if isinstance(part, DropsAtRandom))

    def of_words(self, words: Tensor, *, gradients: Gradients) -> Tuple[Tensor, Optional[Tensor]]:
        """Labels (U, C) and biases (U), or None, of the chosen words (U) without repeats, at the price of these.

        ``gradients`` are those of E.
        """
        rows = nn.functional.embedding(words, self.weight, sparse=gradients == "sparse")
        labels = rows if self.label_encoder is None else self.label_encoder(rows)
        return labels, None if self.bias is None else self.bias.index_select(0, words)

    def _labels(self) -> Tensor:
        return self.weight if self.label_encoder is None else self.label_encoder(self.weight)

    @staticmethod
    def _made_of(x: Tensor) -> MadeOf:
        """What differs when a parameter was changed in place, replaced, moved, cast or is read under autocast.

        What is written through ``.data`` is not seen; ``train()`` has the matrix computed anew.
        """
        version = None if x.is_inference() else x._version  # tensors of inference mode have none
        return x.data_ptr(), version, x.device, x.dtype, autocast_dtype(x)

    def train(self, mode: bool = True) -> "WordProjection":
        if mode:
            self._kept = None
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> "WordProjection":
        self._kept = None
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._kept = None
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.label_matrix(), self.bias)
