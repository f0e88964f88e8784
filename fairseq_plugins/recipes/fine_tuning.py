"""Fine-tuning: of any model on another corpus, and of a language model in rounds ("fin" in Takase et al. 2018)."""

import math
import shlex
import shutil
from itertools import count, islice
from pathlib import Path
from typing import Dict, Mapping, Optional, Sequence

import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig, OmegaConf

from fairseq_plugins.data.pairs import complete_languages, languages_of, split_pairs
from fairseq_plugins.data.text import dictionary_fingerprint, load_token_stream
from fairseq_plugins.evaluation.checkpoints import (
    load_language_models,
    load_with_task,
    trained_task,
    training_config,
)
from fairseq_plugins.evaluation.raw_text import find_subwords
from fairseq_plugins.evaluation.scoring import evaluate_perplexity, exponential, score_pairs
from fairseq_plugins.fairseq_patches.checkpoints import START_FILES
from fairseq_plugins.files import checkpoint_of, replaced_file
from fairseq_plugins.models.checkpoints import check_checkpoints, read_state
from fairseq_plugins.models.presets import ARCHITECTURES, Value
from fairseq_plugins.options import UserError
from fairseq_plugins.recipes.recipe import COMMON, FULL_SIZE
from fairseq_plugins.recipes.training import Training, fairseq_arguments, value_of, values_by_flag


def fine_tuning_flags(arch: str) -> Dict[str, Value]:
    """Flags of ``fairseq-train`` for fine-tuning, which averages weights from the first update.

    Raises UserError if the paper of the architecture does not fine-tune it.
    """
    preset = ARCHITECTURES[arch]
    if preset.fine_tuning is None:
        tuned = ", ".join(name for name, one in ARCHITECTURES.items() if one.fine_tuning is not None)
        raise UserError(
            f"--arch {arch} has no fine-tuning of its own: take one of {tuned} with the flags of the model's shape, or "
            "fairseq-train --finetune-from-model CKPT --averaging immediate"
        )
    return {"arch": arch, **preset.training, **preset.averaging_flags}


def valid_nll(path: str, *, data: str, device: str, languages: Optional[Mapping[str, str]] = None) -> float:
    """Mean negative log-likelihood of the tokens of the validation set in nats.

    For a language model it is the same as that of ``lm eval --split valid``. ``languages`` are ``source_lang`` and
    ``target_lang`` where they are not those of the checkpoint. Raises UserError if the checkpoint or the data cannot be
    read or do not belong together.
    """
    if issubclass(TASK_REGISTRY[trained_task(path)._name], TranslationTask):
        translator, task = load_with_task(path, data, kind=TranslationTask, languages=languages)
        pairs = split_pairs(task, "valid")
        scored = score_pairs(translator.to(device), *pairs)
        sums = [(float(batch.nll.sum()), int(batch.is_token.sum())) for batch in scored]
        nll = math.fsum(nll for nll, _ in sums) / sum(number for _, number in sums)
        del translator
    else:
        (model,) = load_language_models([path], data)
        tokens = load_token_stream(data, "valid", model.decoder.dictionary)
        nll = evaluate_perplexity([model.to(device)], tokens, window=1000).nll
        del model
    torch.cuda.empty_cache()  # frees memory for the run, which is another process
    return nll


# On another corpus.

LOWER_RATE = 0.1
"""Factor of the learning rate."""
ON_ANOTHER_CORPUS: Dict[str, Value] = {"lr-scheduler": "fixed", "max-epoch": 10, "patience": 2}
KEPT = {
    *("batch_size", "batch_size_valid", "max_tokens", "max_tokens_valid", "required_batch_size_multiple"),
    *("skip_invalid_size_inputs_valid_test", "update_freq", "clip_norm", "sentence_avg"),
    *("best_checkpoint_metric", "maximize_best_checkpoint_metric"),
}
"""Flags of a run that are kept, beside the flags of its architecture, task, criterion and optimizer."""


def flags_of_run(path: str) -> Dict[str, Value]:
    """Flags of ``fairseq-train`` that shaped the run of a checkpoint and its model, other than defaults.

    Its learning rate is lowered by :data:`LOWER_RATE`. The corpus, schedule, length, machine and log are left out.
    Raises UserError if the checkpoint cannot be read, or was not trained by ``fairseq-train``.
    """
    config = training_config(read_state(path))
    saved = getattr(config.model, "__dict__", {})
    if not saved.get("arch") and isinstance(config.model, DictConfig):  # models whose flags fairseq keeps in sections
        names = {"arch": config.model._name, "criterion": config.criterion._name, "optimizer": config.optimizer._name}
        sections = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
        assert isinstance(sections, dict)
        saved = {name: value for part in sections.values() if isinstance(part, dict) for name, value in part.items()}
        saved.update(names, task=config.task._name)
    if not saved.get("arch"):
        raise UserError(
            f"{path} holds no flags of fairseq-train: give fairseq-train --finetune-from-model {path} and the flags of "
            "its training"
        )
    flags: Dict[str, Value] = {name: saved[name] for name in ("arch", "task", "criterion", "optimizer")}
    chosen = [f"--{name}={value}" for name, value in flags.items()]
    parser = options.get_training_parser()
    common = {action.dest for action in parser._actions}
    defaults = vars(options.parse_args_and_arch(parser, input_args=["DATA", "--lr-scheduler=pass_through", *chosen]))
    for action in parser._actions:
        name, value = action.dest, saved.get(action.dest)
        is_kept = name in KEPT or name not in common and name not in ("data", *START_FILES)
        if not is_kept or not action.option_strings or value is None or value == defaults.get(name):
            continue
        if isinstance(value, (list, tuple)) and action.nargs is None:
            value = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        flag = next(flag for flag in action.option_strings if flag.startswith("--")).lstrip("-")
        if action.nargs != 0:
            flags[flag] = str(value) if isinstance(value, bool) else value
        elif value == action.const:
            flags[flag] = True
    rate = config.optimization.lr[0] * LOWER_RATE
    return {**flags, "lr": float(f"{rate:.6g}")}


def check_vocabulary(path: str, data: Path, languages: Mapping[str, str]) -> None:
    """Refuse a corpus with another vocabulary than the model's corpus, if that is still there.

    ``languages`` are ``source_lang`` and ``target_lang`` where they are not those of the model. If its corpus is gone,
    the model itself refuses the corpus as it is loaded. Raises UserError with the flags of data-prep that take the
    vocabulary of the model.
    """
    task = trained_task(path)
    trained = Path(task.data)
    names = ["dict.txt"]
    if issubclass(TASK_REGISTRY[task._name], TranslationTask):
        source, target = languages_of(task)
        pair = languages.get("source_lang", source), languages.get("target_lang", target)
        names = [f"dict.{language}.txt" for language in complete_languages(pair, str(data))]
    if all((data / name).is_file() and (trained / name).is_file() for name in names) and any(
        dictionary_fingerprint(Dictionary.load(str(data / name)))
        != dictionary_fingerprint(Dictionary.load(str(trained / name)))
        for name in names
    ):
        taken = [
            f"{flag} {shlex.quote(str(trained / name))}"
            for flag, name in zip(("--source-dict", "--target-dict"), names)
        ]
        if subwords := find_subwords(trained):
            taken.insert(0, f"--codes {shlex.quote(str(subwords))}")
        raise UserError(
            f"{data} has another vocabulary than {path}: prepare your corpus with {' '.join(taken)} of "
            "data-prep/own/prepare.sh"
        )


def fine_tune(path: str, *, data: str, save_dir: Path, device: str, more: Sequence[str] = ()) -> None:
    """Train a model on another corpus with its vocabulary, and print the perplexities before and after.

    Further arguments of ``fairseq-train``, ``more``, come last and win. An interrupted call is resumed.

    Raises:
        UserError: if ``save_dir`` holds another run, or the checkpoint or the data cannot be read or do not belong
            together.
        SystemExit: if ``fairseq-train`` fails, with its status.
    """
    check_checkpoints([path])
    given = values_by_flag(more)
    values = {
        "source_lang": value_of(given, "-s", "--source-lang"),
        "target_lang": value_of(given, "-t", "--target-lang"),
    }
    languages = {name: value for name, value in values.items() if value}
    check_vocabulary(path, Path(data), languages)
    flags = {"finetune-from-model": path, **COMMON, **flags_of_run(path), **ON_ANOTHER_CORPUS}
    training = Training(arguments=fairseq_arguments(flags, data=data, save_dir=save_dir, more=more))
    training.check()
    start = valid_nll(path, data=data, device=device, languages=languages)
    _print(f"start: valid perplexity {exponential(start):.2f} of {path}")
    training.run()
    tuned = checkpoint_of(save_dir)
    _print(f"fine-tuned: valid perplexity {exponential(valid_nll(str(tuned), data=data, device=device)):.2f}: {tuned}")


# In rounds, on the same corpus.


def fine_tune_in_rounds(
    arch: str,
    start: str,
    *,
    data: str,
    save_dir: Path,
    device: str,
    max_rounds: Optional[int] = None,
    more: Sequence[str] = (),
) -> None:
    """Train by averaged SGD until a round brings no gain, at most ``max_rounds``, and print the figures of each.

    Each round starts from the best model so far with a fresh average. ``save_dir`` belongs to this fine-tuning alone
    and gets a folder for each round, as :class:`Training` writes it, and the best model as ``checkpoint_fin.pt``.
    Further arguments of ``fairseq-train``, ``more``, come last and win. An interrupted call is resumed.

    Raises:
        UserError: if ``save_dir`` holds a fine-tuning with another start, if the paper does not fine-tune the
            architecture, or if the start or the data cannot be read.
        SystemExit: if ``fairseq-train`` fails, with its status.
    """
    check_checkpoints([start])
    tuning = {**COMMON, **FULL_SIZE, **fine_tuning_flags(arch)}

    def round_from(best: str, number: int) -> Training:
        flags = {"finetune-from-model": best, **tuning}
        arguments = fairseq_arguments(flags, data=data, save_dir=save_dir / f"round{number}", more=more)
        return Training(arguments=arguments)

    round_from(start, 1).check()
    best, best_nll = start, valid_nll(start, data=data, device=device)
    _print(f"start: valid NLL {best_nll} of {best}")
    for number in islice(count(1), max_rounds):
        training = round_from(best, number)
        training.run()
        tuned = str(training.save_dir / "checkpoint_best.pt")
        nll = valid_nll(tuned, data=data, device=device)
        _print(f"round {number}: valid NLL {nll}, best so far {best_nll}")
        if not nll < best_nll:  # NaN is no gain
            break
        best, best_nll = tuned, nll
    result = save_dir / "checkpoint_fin.pt"
    with replaced_file(result) as aside:
        shutil.copyfile(best, aside)
    _print(f"valid NLL {best_nll}: {result} (from {best})")


def _print(line: str) -> None:
    print(line, flush=True)  # before the output of the next round
