"""A training of each family of models on a few sentences, for as many updates as asked for."""

import os
import sys
import tempfile
from typing import Callable, Dict, List

import torch
from fairseq import utils
from fairseq.criterions import CRITERION_REGISTRY
from fairseq_cli.train import cli_main
from paths import PLUGINS, SMALL_MODELS

_STREAMS = [
    *(str(SMALL_MODELS / "data/lm"), "--task", "stateful_lm", "--batch-size", "4", "--tokens-per-sample", "10"),
    *("--window-lengths", "random", "--clip-norm", "0.5"),
]
_AVERAGED = [
    *(*_STREAMS, "--criterion", "regularized_cross_entropy"),
    *("--optimizer", "nt_asgd", "--nonmonotone-interval", "2", "--lr", "2"),
]
_PAIRS = [
    *(str(SMALL_MODELS / "data/translation"), "--task", "translation", "--batch-size", "10"),
    *("--criterion", "regularized_cross_entropy", "--label-smoothing", "0.1"),
    *("--optimizer", "adam", "--lr", "0.002", "--clip-norm", "1"),
]
_SMALL = ["--embed-dim", "8", "--hidden-sizes", "12 8"]
_WIDE = ["--embed-dim", "8", "--hidden-sizes", "8 8"]
_ONE_LAYER = ["--embed-dim", "8", "--hidden-sizes", "8", "--column-norm", "3"]
_DOC = ["--attention", "dot", "--expert-warmup", "20"]
_ENCODER_SIZES, _DECODER_SIZES = (
    [f"--{side}-{size}" for size in ("embed-dim=8", "ffn-embed-dim=16", "attention-heads=2", "layers=1")]
    for side in ("encoder", "decoder")
)
_SIZES = [*_ENCODER_SIZES, *_DECODER_SIZES]
FAMILIES: Dict[str, List[str]] = {
    "AWD-LSTM": [*_AVERAGED, "--arch", "lstm_lm_awd", *_SMALL, "--activation-regularization", "2"],
    "MoS": [*_AVERAGED, "--arch", "lstm_lm_mos", *_SMALL, "--experts-per-layer", "0 0 3"],
    "DOC": [*_AVERAGED, "--arch", "lstm_lm_doc", *_SMALL, "--experts-per-layer", "0 1 2", "--balance", "0.001"],
    "DRILL": [*_AVERAGED, "--arch", "lstm_lm_drill", *_WIDE],
    "Major-Minor LSTM": [*_AVERAGED, "--arch", "mmlstm_lm_mos", "--embed-dim", "8", "--hidden-sizes", "8 8 8"],
    "variational LSTM": [*_AVERAGED, "--arch", "lstm_lm_variational_medium", *_WIDE],
    "recurrent highway network": [*_AVERAGED, "--arch", "rhn_lm", "--embed-dim", "8", "--hidden-sizes", "8"],
    "Mogrifier": [*_AVERAGED, "--arch", "mogrifier_lm", *_WIDE],
    "FPNN": [
        *(*_STREAMS, "--arch", "fpnn_lm", *_ONE_LAYER),
        *("--criterion", "regularized_cross_entropy", "--optimizer", "adagrad", "--lr", "0.05"),
    ],
    "Transformer language model, DOC": [
        *(*_STREAMS, "--arch", "transformer_lm_doc", *_DECODER_SIZES, "--criterion", "regularized_cross_entropy"),
        *("--optimizer", "adam", "--lr", "0.002"),
    ],
    "rectifier network, noise contrastive": [
        *(*_STREAMS, "--arch", "rectifier_rnn_lm", *_ONE_LAYER),
        *("--criterion", "noise_contrastive", "--noise-samples", "5", "--optimizer", "adagrad", "--lr", "0.05"),
    ],
    "Input-to-Output Gate": [
        *(*_STREAMS, "--arch", "gated_lm", "--base-model", str(SMALL_MODELS / "lstm_lm_doc.pt"), "--gate-dim", "6"),
        *("--criterion", "regularized_cross_entropy", "--optimizer", "l2_adam", "--lr", "0.002"),
    ],
    "LSTM gate on two models": [
        *(*_STREAMS, "--arch", "gated_lm", "--output-gate", "iog-lstm", "--gate-dim", "6"),
        *("--base-model", f"{SMALL_MODELS / 'lstm_lm_doc.pt'}:{SMALL_MODELS / 'mmlstm_lm_mos.pt'}"),
        *("--criterion", "regularized_cross_entropy", "--optimizer", "l2_adam", "--lr", "0.002"),
    ],
    "encoder-decoder, DOC": [*_PAIRS, "--arch", "lstm_encdec_doc", *_WIDE, *_DOC],
    "Major-Minor encoder-decoder": [*_PAIRS, "--arch", "mmlstm_encdec", *_WIDE],
    "encoder-decoder, copying": [*_PAIRS, "--arch", "lstm_encdec", *_WIDE, "--copying", "attention"],
    "Transformer, MoS": [*_PAIRS, "--arch", "transformer_mos", *_SIZES],
    "Transformer, DRILL": [*_PAIRS, "--arch", "transformer_drill", *_SIZES],
}
"""Flags of fairseq-train."""


def train(name: str, *, num_updates: int, heard: Callable[[float], None], dtype: torch.dtype) -> None:
    """Train one in this process, which should end after it.

    Args:
        name: of FAMILIES.
        num_updates: after so many it ends.
        heard: is called with the loss of each update, per token.
        dtype: what torch computes in from then on; in 64 bits the losses are the same on every processor.
    """
    torch.set_default_dtype(dtype)
    torch.set_num_threads(1)
    # fairseq's knows 32 bits alone
    utils.clip_grad_norm_ = lambda weights, max_norm, _: torch.nn.utils.clip_grad_norm_(weights, max_norm)
    flags = FAMILIES[name]
    criterion = CRITERION_REGISTRY[flags[flags.index("--criterion") + 1]]
    forward = criterion.forward

    def recorded(self, model, sample, *args, **options):
        loss, sample_size, logged = forward(self, model, sample, *args, **options)
        if model.training:
            heard(float(loss.detach()) / float(sample_size))
        return loss, sample_size, logged

    criterion.forward = recorded
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["fairseq-train", *flags, "--save-dir", os.path.join(folder, "trained"), "--no-save", "--cpu"]
        sys.argv += ["--user-dir", str(PLUGINS), "--seed", "1", "--num-workers", "0"]
        sys.argv += ["--max-update", str(num_updates), "--disable-validation", "--log-format", "none"]
        cli_main()
