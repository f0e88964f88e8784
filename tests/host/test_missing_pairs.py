"""Folders without the pairs of a translation task."""

import pytest
from fairseq.data import Dictionary, data_utils
from fairseq.tasks import translation

import fairseq_plugins  # noqa: F401


def load_split(function, folder):
    dictionary = Dictionary()
    return function(
        *(str(folder), "valid", "de", dictionary, "en", dictionary),
        combine=False,
        dataset_impl=None,
        upsample_primary=1,
        left_pad_source=True,
        left_pad_target=False,
        max_source_positions=9,
        max_target_positions=9,
    )


def test_the_names_of_files_tell_the_languages(tmp_path):
    (tmp_path / "train.de-en.de.idx").touch()
    assert data_utils.infer_language_pair(str(tmp_path)) == ["de", "en"]


def test_a_folder_without_pairs_is_named(tmp_path):
    (tmp_path / "train.idx").touch()
    with pytest.raises(ValueError, match=f"{tmp_path} holds no sentence pairs: give the directory that data-prep"):
        data_utils.infer_language_pair(str(tmp_path))
    with pytest.raises(ValueError, match="none: No such file or directory: give the directory that data-prep"):
        data_utils.infer_language_pair(str(tmp_path / "none"))


def test_a_missing_split_is_named(tmp_path):
    with pytest.raises(ValueError, match=f"no split 'valid' of de and en in {tmp_path}: take another split or folder"):
        load_split(translation.load_langpair_dataset, tmp_path)


def test_the_host_alone_names_no_remedy(tmp_path):
    assert data_utils.infer_language_pair.__wrapped__(str(tmp_path)) == (None, None)
    with pytest.raises(FileNotFoundError, match="Dataset not found: valid"):
        load_split(translation.load_langpair_dataset.__wrapped__, tmp_path)
