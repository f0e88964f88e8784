"""Patch of the languages of a translation: they are those of the checkpoint, not those of file names in a folder."""

import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from fairseq import checkpoint_utils, tasks, utils
from fairseq.data import data_utils
from fairseq.dataclass.utils import overwrite_args_by_name
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer
from omegaconf import DictConfig

from fairseq_plugins.fairseq_patches.patching import wrap
from fairseq_plugins.options import UserError

Languages = Tuple[Optional[str], Optional[str]]
"""Source and target language; None means unknown."""

FLAGS = ("source_lang", "target_lang")
"""The flags of the two."""

_resumed_languages: ContextVar[Languages] = ContextVar("languages of the run that resumes", default=(None, None))


def patch_translation_direction() -> None:
    """Keep the languages of a translation in its checkpoints, and let them decide the direction of generation.

    Problem: fairseq infers languages without flags from the names of a folder's files, and does not save them. It then
        lets a model that was trained the other way decode its own target language as the source, without a warning. It
        ignores a single ``--source-lang`` or ``--target-lang``.
    Patch: wrap ``setup_task``, ``load_checkpoint_to_cpu`` and ``Trainer.load_checkpoint``. ``patch_checkpoint_fit``
        calls :func:`check_task_direction` for each model that it builds.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
    Needed while ``test_fairseq_alone_forgets_the_languages`` passes.
    """
    wrap(tasks, "setup_task", _complete_languages_of_task)
    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _keep_languages)
    wrap(Trainer, "load_checkpoint", _check_resumed)


def languages_of(flags: Any) -> Languages:
    """The two languages in the flags of a task or a run."""
    return getattr(flags, "source_lang", None), getattr(flags, "target_lang", None)


def complete_languages(given: Languages, data: str) -> Tuple[str, str]:
    """Complete the given languages by those of the pair in a folder.

    Args:
        given: source and target of the flags.
        data: folder of fairseq-preprocess; it is read only if a language is missing.

    Raises:
        UserError: if the folder holds no pair, or not the given language.
    """
    source, target = given
    if source is not None and target is not None:
        return source, target
    first, second = map(str, data_utils.infer_language_pair(data))
    for flag, language in (("--source-lang", source), ("--target-lang", target)):
        if language is not None and language not in (first, second):
            raise UserError(f"{flag} {language}: {data} holds {first} and {second}: give one of them, or both flags")
    is_turned = source == second or target == first
    return (second, first) if is_turned else (first, second)


def check_direction(given: Languages, trained: Languages, *, name: str) -> None:
    """Refuse languages with source and target exchanged.

    Args:
        given: of the run or the command.
        trained: of the checkpoint.
        name: of the checkpoint.

    Raises:
        UserError: with the remedy.
    """
    source, target = trained
    is_known = source is not None and target is not None and source != target
    if is_known and (given[0] == target or given[1] == source):
        raise UserError(
            f"{name} translates {source} into {target}, not {given[0]} into {given[1]}: give --source-lang {source} "
            f"--target-lang {target}, or another checkpoint"
        )


def check_task_direction(task: Any, state: Dict[str, Any], *, name: str) -> None:
    """Compare the direction of a translation task with that of a checkpoint; other tasks have none.

    Args:
        task: of the command, or None.
        state: the checkpoint.
        name: of the checkpoint.

    Raises:
        UserError: if the checkpoint translates the other way.
    """
    if isinstance(task, TranslationTask):
        check_direction(languages_of(task.cfg), _languages_of_state(state), name=name)


def _complete_languages_of_task(setup_task: Callable[..., Any], cfg: Any, **options: Any) -> Any:
    """Complete the languages in the flags of a translation task, which are saved in checkpoints."""
    if isinstance(cfg, DictConfig) and _is_translation(cfg) and cfg.data and None in languages_of(cfg):
        source, target = languages_of(cfg)
        trained = (None, None) if options.get("from_checkpoint") else _languages_of_path(cfg)
        languages = source or trained[0], target or trained[1]
        cfg.source_lang, cfg.target_lang = complete_languages(languages, utils.split_paths(cfg.data)[0])
    return setup_task(cfg, **options)


def _is_translation(cfg: DictConfig) -> bool:
    return issubclass(tasks.TASK_REGISTRY.get(cfg.get("_name"), object), TranslationTask)


def _languages_of_path(cfg: DictConfig) -> Languages:
    """Languages of the first model of ``--path``, which is among the other flags of the command."""
    flags: Any = cfg._get_parent()
    path = flags.common_eval.path if flags is not None and "common_eval" in flags else None
    first = utils.split_paths(path)[0] if path else ""
    if not os.path.isfile(first):  # reading the models reports that
        return None, None
    return _languages_of_state(checkpoint_utils.load_checkpoint_to_cpu(first))


def _languages_of_state(state: Dict[str, Any]) -> Languages:
    if state.get("args") is not None:
        return languages_of(state["args"])
    return languages_of(getattr(state.get("cfg"), "task", None))


def _keep_languages(
    load_checkpoint_to_cpu: Callable[..., Dict[str, Any]],
    path: str,
    arg_overrides: Optional[Dict[str, Any]] = None,
    *args: Any,
    **options: Any,
) -> Dict[str, Any]:
    """Read a checkpoint and refuse flags that exchange its languages.

    Raises:
        UserError: if the flags do, or the run that resumes translates the other way.
    """
    given = {name: arg_overrides[name] for name in FLAGS if arg_overrides and arg_overrides.get(name)}
    others = arg_overrides and {name: value for name, value in arg_overrides.items() if name not in FLAGS}
    state = load_checkpoint_to_cpu(path, others, *args, **options)
    trained = _languages_of_state(state)
    wanted = given.get(FLAGS[0], trained[0]), given.get(FLAGS[1], trained[1])
    for languages in (wanted, _resumed_languages.get()):
        check_direction(languages, trained, name=str(path))
    if given and state.get("args") is not None:
        vars(state["args"]).update(given)
    elif given and state.get("cfg") is not None:
        overwrite_args_by_name(state["cfg"], given)
    return state


def _check_resumed(
    load_checkpoint: Callable[..., Any],
    trainer: Trainer,
    filename: str,
    reset_optimizer: bool = False,
    *args: Any,
    **options: Any,
) -> Any:
    """Resume a run after comparing its direction with the checkpoint. With ``--reset-optimizer`` any weights will do.

    Raises:
        UserError: if the checkpoint translates the other way.
    """
    task = getattr(trainer, "task", None)
    resumes = isinstance(task, TranslationTask) and not reset_optimizer
    with _resuming(languages_of(task.cfg) if resumes else (None, None)):
        return load_checkpoint(trainer, filename, reset_optimizer, *args, **options)


@contextmanager
def _resuming(languages: Languages) -> Iterator[None]:
    before = _resumed_languages.set(languages)
    try:
        yield
    finally:
        _resumed_languages.reset(before)
