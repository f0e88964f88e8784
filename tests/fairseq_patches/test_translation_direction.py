"""A model translates in the direction of its training, which its checkpoint keeps."""

from argparse import Namespace
from inspect import unwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import make_dictionary
from fairseq import checkpoint_utils, tasks
from fairseq.dataclass.configs import FairseqConfig
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import OmegaConf

from fairseq_plugins.data.pairs import complete_languages
from fairseq_plugins.fairseq_patches.checkpoints import _load_and_compare_flags
from fairseq_plugins.fairseq_patches.generation import check_direction
from fairseq_plugins.options import UserError


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.de-en.de.idx").touch()
    for language in ("de", "en"):
        make_dictionary(5).save(str(folder / f"dict.{language}.txt"))
    return str(folder)


def flags(data, *, path=None, **languages):
    """The flags of a run, which contain those of its task."""
    cfg = OmegaConf.structured(FairseqConfig())
    cfg.task = OmegaConf.structured(TranslationConfig(data=data, **languages))
    cfg.task._name = "translation"
    cfg.common_eval.path = path
    return cfg


SEVERAL = "{data} holds {pairs}: give --source-lang and --target-lang"


@pytest.mark.parametrize(
    "more, given, found",
    [
        (None, (None, None), ("de", "en")),
        (None, ("en", None), ("en", "de")),
        (None, (None, "de"), ("en", "de")),
        (None, ("de", None), ("de", "en")),
        (None, ("fr", "it"), ("fr", "it")),
        (None, (None, "fr"), "--target-lang fr: {data} holds {pairs}: give one of these languages"),
        ("fr-en", (None, None), SEVERAL),
        ("fr-en", (None, "en"), SEVERAL),
        ("fr-en", ("fr", None), ("fr", "en")),
        ("en-de", (None, None), SEVERAL),
        ("en-de", ("en", None), ("en", "de")),
    ],
)
def test_languages_are_those_of_the_pair_in_the_folder_that_fits(more, given, found, data):
    if more:
        Path(data, f"train.{more}.en.idx").touch()
    if isinstance(found, str):
        told = found.format(data=data, pairs=", ".join(["de-en", *filter(None, [more])]))
        with pytest.raises(UserError, match=f"^{told}"):
            complete_languages(given, data)
        return
    assert complete_languages(given, data) == found
    if "fr" not in given:
        cfg = flags(data, source_lang=given[0], target_lang=given[1])
        task = tasks.setup_task(cfg.task)
        assert (cfg.task.source_lang, cfg.task.target_lang) == found == (task.cfg.source_lang, task.cfg.target_lang)


def test_a_folder_without_pairs_is_named(tmp_path):
    with pytest.raises(UserError, match=f"^{tmp_path} holds no sentence pairs"):
        complete_languages((None, "fr"), str(tmp_path))


def test_fairseq_alone_forgets_the_languages(data):
    cfg = flags(data, source_lang="en")
    task = unwrap(tasks.setup_task)(cfg.task)
    assert task.cfg.source_lang == "de" and cfg.task.target_lang is None


def test_generation_begins_with_the_languages_of_the_model(data, save_checkpoint):
    trained = flags(data, source_lang="en", target_lang="de")
    path = save_checkpoint(cfg=OmegaConf.to_container(trained, resolve=True, enum_to_str=True))
    cfg = flags(data, path=f"{path}:missing.pt")
    assert tasks.setup_task(cfg.task).cfg.source_lang == "en"
    assert tasks.setup_task(flags(data, path="missing.pt").task).cfg.source_lang == "de"
    task = TranslationTask.setup_task(flags(data).task)
    with pytest.raises(ValueError, match="checkpoint.pt translates en into de: give --source-lang en"):
        checkpoint_utils.load_model_ensemble([path], task=task)
    with pytest.raises(ValueError, match="checkpoint.pt translates en into de: give --source-lang en"):
        checkpoint_utils.load_checkpoint_to_cpu(path, {"source_lang": "de"})
    kept = checkpoint_utils.load_checkpoint_to_cpu(path, {"source_lang": "fr", "data": "x"})["cfg"].task
    assert (kept.source_lang, kept.target_lang, kept.data) == ("fr", "de", "x")


def test_a_run_is_not_resumed_the_other_way(data, save_checkpoint):
    trained = OmegaConf.to_container(flags(data, source_lang="en", target_lang="de"), resolve=True, enum_to_str=True)
    path, task = save_checkpoint(cfg=trained), TranslationTask.setup_task(flags(data).task)
    trainer = SimpleNamespace(task=task, cfg=SimpleNamespace(model=Namespace()))
    with pytest.raises(UserError, match="checkpoint.pt translates en into de"):
        _load_and_compare_flags(lambda *_: {}, trainer, path)
    assert _load_and_compare_flags(lambda *_: {}, trainer, path, True) == {}  # --reset-optimizer: any weights will do


def test_languages_that_stand_on_no_other_side_are_left_alone():
    for given, trained in [
        (("fr", "en"), ("de", "en")),  # of another folder with the same dictionaries
        (("en", "en"), ("en", "en")),
        (("de", "en"), (None, None)),
        ((None, None), ("de", "en")),
    ]:
        check_direction(given, trained, name="a.pt")
