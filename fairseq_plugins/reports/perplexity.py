"""A perplexity as figures for machines, and as lines with units."""

from dataclasses import asdict
from typing import Any, Dict, List

from fairseq_plugins.evaluation.perplexity import Perplexity


def as_figures(result: Perplexity) -> Dict[str, Any]:
    """All figures with full precision."""
    return {**asdict(result), "perplexity": result.perplexity, "bits_per_token": result.bits_per_token}


def as_lines(result: Perplexity) -> List[str]:
    """A figure a line, with its unit."""
    return [
        f"tokens predicted    {result.num_tokens:,}",
        f"unknown words       {result.num_unknown:,}",
        f"leftover tokens     {result.num_leftover_tokens:,}",
        f"NLL                 {result.nll:.6f} nats per token",
        f"bits per token      {result.bits_per_token:.6f}",
        f"perplexity          {result.perplexity:.4f}",
    ]
