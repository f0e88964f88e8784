"""Random inputs of the loss of an output layer, by their sizes.

Shapes: N tokens, J experts, d width, V vocabulary, K noise words.
"""

import argparse
import re
from dataclasses import dataclass
from functools import cached_property
from typing import List

import torch
from torch import Tensor

from fairseq_plugins.criterions.unigram_noise import UnigramNoise

NUM_NOISE_WORDS = 25
"""K, that each target is told from."""


@dataclass(frozen=True)
class Case:
    """Sizes of one comparison.

    Attributes:
        vocab_size: V.
        num_experts: J, softmaxes that are mixed.
        width: d, of an expert's input.
        num_tokens: N.
    """

    vocab_size: int
    num_experts: int
    width: int
    num_tokens: int

    @classmethod
    def parse(cls, text: str) -> "Case":
        """Read ``VOCABULARY,EXPERTS,WIDTH,TOKENS``.

        Raises:
            ArgumentTypeError: if these are not four whole numbers above zero.
        """
        if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*){3}", text):
            raise argparse.ArgumentTypeError(f'"{text}": give four numbers, VOCABULARY,EXPERTS,WIDTH,TOKENS')
        return cls(*map(int, text.split(",")))


class Inputs:
    """Random inputs of a loss: latents (N, J, d), scores of the prior (N, J), W (V, d), b (V), targets (N).

    ``single`` holds the latents (N, 1, d) of one softmax over the same words.
    """

    def __init__(self, case: Case, *, device: torch.device, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        options = {"device": device, "dtype": dtype}
        self.latents = torch.tanh(torch.randn(case.num_tokens, case.num_experts, case.width, **options))
        self.scores = torch.randn(case.num_tokens, case.num_experts, **options)
        self.weight = 0.1 * torch.randn(case.vocab_size, case.width, **options)
        self.bias = torch.zeros(case.vocab_size, **options)
        self.target = torch.randint(case.vocab_size, (case.num_tokens,), device=device)
        self.single = self.latents[:, :1].clone()
        for leaf in self.leaves:
            leaf.requires_grad_()

    @property
    def leaves(self) -> List[Tensor]:
        """The tensors that have gradients."""
        return [self.latents, self.single, self.scores, self.weight, self.bias]

    @cached_property
    def noise(self) -> UnigramNoise:
        """Every word is as likely drawn: as many rows of W as can be are read."""
        counts = torch.ones(len(self.weight), dtype=torch.long)
        return UnigramNoise(counts, num_samples=NUM_NOISE_WORDS)

    def clear_gradients(self) -> None:
        """Forget the gradients of an earlier pass."""
        for leaf in self.leaves:
            leaf.grad = None

    def gradient_bytes(self) -> int:
        """What the gradients take."""
        gradients = [leaf.grad for leaf in self.leaves if leaf.grad is not None]
        parts = [[x.coalesce().indices(), x.coalesce().values()] if x.is_sparse else [x] for x in gradients]
        return sum(part.nbytes for gradient in parts for part in gradient)
