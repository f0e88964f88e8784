"""Data that is not there is refused when it is named."""

from argparse import ArgumentTypeError

import pytest

from fairseq_plugins.flags.input_paths import check_data_folder, data_folder


def test_a_folder_is_a_path(tmp_path):
    assert data_folder(str(tmp_path)) == tmp_path


def test_what_is_no_folder_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "text").touch()
    for name, wrong in (("nowhere", "does not exist"), ("text", "is a file")):
        told = f"{tmp_path / name} {wrong}: give the directory that data-prep wrote"
        with pytest.raises(ArgumentTypeError) as refused:
            data_folder(str(tmp_path / name))
        assert str(refused.value) == told
        with pytest.raises(ValueError) as error:
            check_data_folder(tmp_path / name)
        assert str(error.value) == told
