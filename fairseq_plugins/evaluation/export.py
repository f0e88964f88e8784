"""Models as folders that are complete in themselves: weights, dictionaries, subwords, and where they come from."""

import json
import os
import re
import shlex
import shutil
from argparse import Namespace
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel, FairseqLanguageModel
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf

import fairseq_plugins
from fairseq_plugins.evaluation.average import OF_ONE_CHECKPOINT, without
from fairseq_plugins.evaluation.checkpoints import (
    corpus_of,
    exported_files,
    load_with_task,
    trained_task,
    training_config,
)
from fairseq_plugins.evaluation.programs import write_programs
from fairseq_plugins.evaluation.raw_text import TEXT_RECORD, find_subwords, read_record
from fairseq_plugins.evaluation.tokenizers import HUGGING_FACE
from fairseq_plugins.fairseq_patches.checkpoints import forget_start
from fairseq_plugins.files import (
    EXPORT_RECORD,
    check_file,
    exported_checkpoint,
    file_digest,
    output_folder,
    write_json,
    write_tensors,
)
from fairseq_plugins.models.checkpoints import read_state
from fairseq_plugins.options import UserError
from fairseq_plugins.own_parts import PACKAGE

LICENCES = ("licen", "copying", "copyright")
"""Beginnings of the names of files with a corpus' licence, in small letters."""


def export_model(
    paths: Sequence[Path], *, data: Optional[Path] = None, out: Path, command: str, programs: bool = False
) -> Dict[str, Any]:
    """Write a folder from which a model or an ensemble can be used without its corpus.

    The folder has the weights without optimiser state (``checkpoint_best.pt``, ``checkpoint_best2.pt`` and so on), the
    dictionaries, the subwords, ``text.json``, the corpus' licence if its data have one, and ``export.json``. Absolute
    paths in flags are cut to their last part. The folder is written under another name and renamed at the end.

    Args:
        paths: checkpoints of language models or of encoder-decoders.
        data: the folder that data-prep wrote; by default the data that the first model was trained on.
        out: the folder to write; an earlier export is replaced.
        command: the command line to record.
        programs: whether to write the steps of the model for torch alone, too; see
            :func:`~fairseq_plugins.evaluation.programs.write_programs`.

    Returns:
        the content of ``export.json``: command, version, SHA-256 of all files that were read (checkpoints under their
        new names) and of all that were written, names of licences, and the ``--user-dir`` folders of the user's parts.

    Raises:
        UserError: if a file is missing or damaged, a vocabulary is not the data's, a model is of another kind, ``out``
            holds anything but an export or overlaps a folder that is read, or torch cannot export the programs.
    """
    folder, out = corpus_of(paths[0], trained_task(paths[0]), data), Path(os.path.realpath(out))
    _check_out(out, folder, paths)
    if programs and len(paths) > 1:
        raise UserError("--torch-export takes one checkpoint: export the models of an ensemble one by one")
    models, dictionaries, contents = _read_all(paths, folder)
    licences = sorted(one.name for one in folder.iterdir() if one.is_file() and one.name.lower().startswith(LICENCES))
    sources = {name: folder / name for name in [*dictionaries, *licences]}
    text_files, text_record = _read_text_files(folder)
    sources.update(text_files)
    user_dirs = [_flags_of(content["cfg"]["common"]).get("user_dir") for content in contents.values()]
    provenance = {
        "command": shlex.join(_without_folders(shlex.split(command))),
        "version": fairseq_plugins.__version__,
        "made_from": {
            **{name: file_digest(path) for name, path in zip(contents, paths)},
            **{name: file_digest(one) for name, one in sources.items()},
        },
        "licences": licences,
        "user_dirs": list(dict.fromkeys(one for one in user_dirs if one and one != PACKAGE.name)),
    }
    with _replaced_folder(out) as aside:
        for name, content in contents.items():
            write_tensors(aside / name, content)
        for name, source in sources.items():
            shutil.copyfile(source, aside / name)
        if text_record is not None:
            write_json(aside / TEXT_RECORD, text_record)
        if programs:
            write_programs(models[0], aside, origin=paths[0])
        provenance["files"] = {one.name: file_digest(one) for one in sorted(aside.iterdir())}
        write_json(aside / EXPORT_RECORD, provenance)
    return provenance


@contextmanager
def _replaced_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder, which takes the place of ``path`` at the end of the block unless the block fails."""
    aside, former = (path.with_name(f".{path.name}.{os.getpid()}{end}") for end in ("", ".old"))
    shutil.rmtree(aside, ignore_errors=True)  # left by a killed process with the same number
    aside.mkdir(parents=True)
    try:
        yield aside
        if path.exists():
            path.rename(former)
        try:
            aside.rename(path)
        except OSError:
            if former.exists():
                former.rename(path)
            raise
        shutil.rmtree(former, ignore_errors=True)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _read_all(
    paths: Sequence[Path], folder: Path
) -> Tuple[List[BaseFairseqModel], List[str], Dict[str, Dict[str, Any]]]:
    """All models, the names of their dictionaries, and the exported checkpoints by their names."""
    models: List[BaseFairseqModel] = []
    contents: Dict[str, Dict[str, Any]] = {}
    names: List[str] = []
    for number, path in enumerate(paths, start=1):
        model, dictionaries, content = _read(path, folder)
        if names and dictionaries != names:
            others = f"{', '.join(dictionaries)}, and {paths[0]} {', '.join(names)}"
            raise UserError(f"{path} reads {others}: export them separately")
        names = dictionaries
        models.append(model)
        contents[exported_checkpoint(number)] = content
    return models, names, contents


def _read_text_files(folder: Path) -> Tuple[Dict[str, Path], Optional[Dict[str, Any]]]:
    """The files that prepare raw text, by their names in the export, and the record if it changes.

    The record may name a tokenizer in any folder. The export holds a copy, and its record names the copy.
    """
    subwords, record = find_subwords(folder), read_record(folder)
    files = {} if subwords is None else {subwords.name: subwords}
    if (folder / TEXT_RECORD).is_file():
        files[TEXT_RECORD] = folder / TEXT_RECORD
    if not record.tokenizer.startswith(HUGGING_FACE):
        return files, None
    tokenizer = folder / record.tokenizer.removeprefix(HUGGING_FACE)
    check_file(tokenizer, wanted="the tokenizer's file")
    found = json.loads((folder / TEXT_RECORD).read_text(encoding="utf-8"))
    return {**files, tokenizer.name: tokenizer}, {**found, "tokenizer": f"{HUGGING_FACE}{tokenizer.name}"}


def _read(path: Path, folder: Path) -> Tuple[BaseFairseqModel, List[str], Dict[str, Any]]:
    """A model, the names of its dictionaries, and the content of its exported checkpoint."""
    model, task = load_with_task(path, folder)
    if not isinstance(model, (FairseqLanguageModel, FairseqEncoderDecoderModel)):
        raise UserError(f"{path} holds a {type(model).__name__}: give a language model or an encoder-decoder")
    state = read_state(path)
    config = training_config(state)
    forget_start(config)
    values: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    names = ["dict.txt"]
    if isinstance(task, TranslationTask):
        languages = {"source_lang": str(task.cfg.source_lang), "target_lang": str(task.cfg.target_lang)}
        names = [f"dict.{language}.txt" for language in languages.values()]
        _flags_of(values["task"]).update(languages)  # else fairseq reads them off the names of a split's files
    rest = without(("model", *OF_ONE_CHECKPOINT), state)
    rest["extra_state"] = without(OF_ONE_CHECKPOINT, state.get("extra_state", {}))
    return model, names, {**_without_folders({**rest, "args": None, "cfg": values}), "model": state["model"]}


ABSOLUTE = re.compile(r"""(^|[:="'])[/~](?!/)(?:[^:"']*/)?(?=[^/:"'])""")
"""An absolute path up to its last part, alone or in a list, behind a flag, or in JSON."""


def _without_folders(value: Any) -> Any:
    """The same flags and values with the last part of each absolute path."""
    if isinstance(value, str):
        return ABSOLUTE.sub(r"\1", value)
    if isinstance(value, dict):
        return {name: _without_folders(part) for name, part in value.items()}
    if isinstance(value, Namespace):
        return Namespace(**_without_folders(vars(value)))
    return type(value)(map(_without_folders, value)) if type(value) in (list, tuple) else value


def _check_out(out: Path, data: Path, paths: Sequence[Path]) -> None:
    """Refuse a folder that has other files than an export, or overlaps folders or checkpoints that are read."""
    output_folder(str(out))
    exports = [path.parent for path in paths if (path.parent / EXPORT_RECORD).is_file()]
    for folder in map(Path.resolve, [data, *exports]):
        if out == folder or folder in out.parents or out in folder.parents:
            raise UserError(f"--out {out}: {folder} is read: give a folder outside of it")
    for path in paths:
        if out in path.resolve().parents:
            raise UserError(f"--out {out} holds {path}, which is read: give another folder")
    if not out.exists():
        return
    names = {one.name for one in out.iterdir()}
    if names and EXPORT_RECORD not in names:
        raise UserError(f"--out {out} is no export and has files: give another folder")
    if others := sorted(names - {EXPORT_RECORD, *(exported_files(out) if names else [])}):
        raise UserError(f"--out {out} has {others[0]}, which is no part of an export: move it, or give another folder")


def _flags_of(section: Union[Namespace, Dict[str, Any]]) -> Dict[str, Any]:
    """The flags of a section, to change them in place. Models without a dataclass have a namespace."""
    return vars(section) if isinstance(section, Namespace) else section
