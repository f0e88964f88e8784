"""Models as folders that are complete in themselves: weights, dictionaries, subwords, and where they come from."""

import json
import os
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf

import fairseq_plugins
from fairseq_plugins.data.text import check_file, file_digest
from fairseq_plugins.evaluation.average import OF_ONE_CHECKPOINT, without
from fairseq_plugins.evaluation.checkpoints import (
    EXPORT_RECORD,
    corpus_of,
    exported_files,
    load_with_task,
    training_config,
)
from fairseq_plugins.evaluation.raw_text import TEXT_RECORD, find_subwords, read_record
from fairseq_plugins.evaluation.words import HUGGING_FACE
from fairseq_plugins.models.checkpoints import read_state
from fairseq_plugins.options import BEST, UserError, check_output_folder, write_tensors, write_text
from fairseq_plugins.parts import PACKAGE

LICENCES = ("licen", "copying", "copyright")
"""Beginnings of the names of files with a corpus' licence, in small letters."""

EMBEDDING_FILES = ("encoder_embed_path", "decoder_embed_path")
"""Flags with files of initial embeddings, which a trained model does not need."""


def export_model(path: Path, *, data: Optional[Path] = None, out: Path, command: str) -> Dict[str, Any]:
    """Write a folder from which a model can be used without its corpus.

    It has the weights as ``checkpoint_best.pt`` without state of the optimiser, the dictionaries, the subwords and
    ``text.json``, the corpus' licence if there is one beside its data, and ``export.json``. The folder is written aside
    and renamed.

    Args:
        path: checkpoint of a language model or an encoder-decoder.
        data: the folder that data-prep wrote; by default that of the training.
        out: the folder to write; an earlier export is replaced.
        command: that is recorded.

    Returns:
        the content of ``export.json``: command, version, SHA-256 of all files that were read and written, the names of
        licences, and the folder of the user's parts that the model was trained with, or None.

    Raises:
        UserError: if a file is missing or damaged, the vocabulary is not the data's, the model is of another kind, or
            ``out`` holds anything but an export, or has to do with the folders that are read.
    """
    folder, out = corpus_of(path, data), Path(os.path.realpath(out))
    _check_out(out, read=[folder, path.parent] if (path.parent / EXPORT_RECORD).is_file() else [folder])
    if out in path.resolve().parents:
        raise UserError(f"--out {out} holds {path}, which is read: give another folder")
    model, _, task = load_with_task(path, folder)
    if not isinstance(model, (FairseqLanguageModel, FairseqEncoderDecoderModel)):
        raise UserError(f"{path} holds a {type(model).__name__}: give a language model or an encoder-decoder")
    state = read_state(path)
    config = training_config(state)
    values: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    names = ["dict.txt"]
    if isinstance(task, TranslationTask):
        languages = {"source_lang": str(task.cfg.source_lang), "target_lang": str(task.cfg.target_lang)}
        names = [f"dict.{language}.txt" for language in languages.values()]
        _flags_of(values["task"]).update(languages)  # older checkpoints take them from the names of a split's files
    flags = _flags_of(values["model"])
    flags.update((flag, None) for flag in EMBEDDING_FILES if flag in flags)
    content = {
        **without(OF_ONE_CHECKPOINT, state),
        "args": None,
        "cfg": values,
        "extra_state": without(OF_ONE_CHECKPOINT, state.get("extra_state", {})),
    }
    licences = sorted(one.name for one in folder.iterdir() if one.is_file() and one.name.lower().startswith(LICENCES))
    subwords = find_subwords(folder)
    sources = {name: folder / name for name in [*dict.fromkeys(names), *licences]}
    if subwords is not None:
        sources[subwords.name] = subwords
    record = read_record(folder)
    text: Optional[str] = None
    if record is not None:
        sources[TEXT_RECORD] = folder / TEXT_RECORD
        if record.tokenizer.startswith(HUGGING_FACE):
            tokenizer = folder / record.tokenizer.removeprefix(HUGGING_FACE)
            check_file(tokenizer, wanted="the tokenizer's file")
            sources[tokenizer.name] = tokenizer
            found = json.loads((folder / TEXT_RECORD).read_text(encoding="utf-8"))
            text = json.dumps({**found, "tokenizer": f"{HUGGING_FACE}{tokenizer.name}"}) + "\n"
    provenance = {
        "command": command,
        "version": fairseq_plugins.__version__,
        "made_from": {path.name: file_digest(path), **{name: file_digest(one) for name, one in sources.items()}},
        "licences": licences,
        "user_dir": _own_parts(values),
    }
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)  # of a killed process
    aside.mkdir(parents=True)
    try:
        write_tensors(aside / BEST, content)
        for name, source in sources.items():
            shutil.copyfile(source, aside / name)
        if text is not None:
            write_text(aside / TEXT_RECORD, text)
        provenance["files"] = {one.name: file_digest(one) for one in sorted(aside.iterdir())}
        write_text(aside / EXPORT_RECORD, json.dumps(provenance, indent=2) + "\n")
        _replace(out, aside)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return provenance


def _check_out(out: Path, *, read: List[Path]) -> None:
    """Refuse a folder that is no export, or has other files, or is one of those that are read, or in or above them."""
    check_output_folder(out)
    for folder in map(Path.resolve, read):
        if out == folder or folder in out.parents or out in folder.parents:
            raise UserError(f"--out {out}: {folder} is read: give a folder outside of it")
    if not out.exists():
        return
    names = {one.name for one in out.iterdir()}
    if names and EXPORT_RECORD not in names:
        raise UserError(f"--out {out} is no export and has files: give another folder")
    if others := sorted(names - {EXPORT_RECORD, *(exported_files(out) if names else [])}):
        raise UserError(f"--out {out} has {others[0]}, which is no part of an export: move it, or give another folder")


def _replace(out: Path, new: Path) -> None:
    if not out.exists():
        new.rename(out)
        return
    old = new.with_name(f"{new.name}.old")
    out.rename(old)
    try:
        new.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old)


def _flags_of(section: Union[Namespace, Dict[str, Any]]) -> Dict[str, Any]:
    """The flags of a section, to change them in place. Models without a dataclass have a namespace."""
    return vars(section) if isinstance(section, Namespace) else section


def _own_parts(config: Dict[str, Any]) -> Optional[str]:
    """The folder of the user's parts in the configuration of a run, or None."""
    folder: Union[str, None] = _flags_of(config["common"]).get("user_dir")
    return None if not folder or Path(folder).name == PACKAGE.name else folder
