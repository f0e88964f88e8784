"""Repeated fine-tuning of a language model until validation stops improving ("fin" in Takase et al. 2018)."""

import shutil
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Dict, List, Optional, Sequence

import torch

from fairseq_plugins.data.text import load_token_stream
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.scoring import evaluate_perplexity
from fairseq_plugins.models.presets import ARCHITECTURES, Value
from fairseq_plugins.options import UserError, replaced_file
from fairseq_plugins.recipes.recipe import COMMON, FULL_SIZE, fairseq_arguments
from fairseq_plugins.recipes.training import Training


def fine_tuning_flags(arch: str) -> Dict[str, Value]:
    """Flags of ``fairseq-train`` for fine-tuning, which averages weights from the first update.

    Raises:
        UserError: if the paper of the architecture does not fine-tune it.
    """
    preset = ARCHITECTURES[arch]
    if preset.fine_tuning is None:
        tuned = ", ".join(name for name, one in ARCHITECTURES.items() if one.fine_tuning is not None)
        raise UserError(
            f"--arch {arch} has no fine-tuning of its own: take one of {tuned} with the flags of the model's shape, or "
            "fairseq-train --finetune-from-model CKPT --averaging immediate"
        )
    return {"arch": arch, **preset.training, **preset.averaging_flags}


def valid_nll(path: str, *, data: str, device: str) -> float:
    """Mean negative log-likelihood of the validation set in nats, the same as that of ``lm eval --split valid``.

    Raises:
        UserError: if the checkpoint or the data cannot be read or do not belong together.
    """
    models, dictionary = load_language_models([path], data)
    result = evaluate_perplexity(
        [model.to(device) for model in models],
        load_token_stream(data, "valid", dictionary),
        unknown=dictionary.unk(),
        window=1000,
        device=device,
        show_progress=sys.stderr.isatty(),
    )
    del models
    torch.cuda.empty_cache()  # for the next round, which is another process
    return result.nll


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Rounds of averaged SGD. Each starts from the best model so far with a fresh average.

    ``save_dir`` gets a folder for each round, as :class:`Training` writes it, and the best model as
    ``checkpoint_fin.pt``.

    Attributes:
        arch: architecture of the model. Its preset must have a fine-tuning.
        start: checkpoint of the model.
        data: directory that data-prep wrote.
        save_dir: directory of this fine-tuning alone.
        device: device of the evaluation, such as "cuda".
        more: further arguments of ``fairseq-train``, which come last and win. ``--keep-last-epochs`` among them keeps
            checkpoints of epochs.
    """

    arch: str
    start: str
    data: str
    save_dir: Path
    device: str
    more: Sequence[str] = ()

    def training_arguments(self, *, best: str, folder: Path) -> List[str]:
        """All arguments of ``fairseq-train`` for a round.

        Args:
            best: checkpoint of the best model so far.
            folder: directory of the round.

        Raises:
            UserError: if the paper of the architecture does not fine-tune it.
        """
        flags = {"finetune-from-model": best, **COMMON, **FULL_SIZE, **fine_tuning_flags(self.arch)}
        return fairseq_arguments(flags, data=self.data, save_dir=str(folder), more=self.more)

    def run(self, *, max_rounds: Optional[int] = None) -> None:
        """Train until a round brings no gain, and print the figures of each. An interrupted call is resumed.

        Args:
            max_rounds: limit of at least 1, or None.

        Raises:
            UserError: if ``save_dir`` holds a fine-tuning with another start, if the paper does not fine-tune the
                architecture, or if the start or the data cannot be read.
            SystemExit: if ``fairseq-train`` fails, with its status.
        """
        assert max_rounds is None or max_rounds >= 1, max_rounds
        self._round(1, self.start).check()
        best, best_nll = self.start, self._valid_nll(self.start)
        _print(f"start: valid NLL {best_nll} of {best}")
        for number in count(1) if max_rounds is None else range(1, max_rounds + 1):
            training = self._round(number, best)
            training.run()
            tuned = str(training.save_dir / "checkpoint_best.pt")
            nll = self._valid_nll(tuned)
            _print(f"round {number}: valid NLL {nll}, best so far {best_nll}")
            if nll >= best_nll:
                break
            best, best_nll = tuned, nll
        result = self.save_dir / "checkpoint_fin.pt"
        with replaced_file(result) as aside:
            shutil.copyfile(best, aside)
        _print(f"valid NLL {best_nll}: {result} (from {best})")

    def _round(self, number: int, best: str) -> Training:
        folder = self.save_dir / f"round{number}"
        return Training(arguments=self.training_arguments(best=best, folder=folder), save_dir=folder)

    def _valid_nll(self, path: str) -> float:
        return valid_nll(path, data=self.data, device=self.device)


def _print(line: str) -> None:
    print(line, flush=True)  # before the output of the next round
