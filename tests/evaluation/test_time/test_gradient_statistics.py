"""Gradient statistics on disk: kept, reused, replaced."""

import errno
import hashlib
import os
import shutil
import tracemalloc
from pathlib import Path

import pytest
import torch

from fairseq_plugins.evaluation.score_precision import prepare_to_score
from fairseq_plugins.evaluation.test_time import gradient_statistics
from fairseq_plugins.evaluation.test_time.gradient_statistics import kept_gradient_statistics
from fairseq_plugins.output_layers import output_precision


@pytest.fixture
def kept(tmp_path, build_tiny_lm, monkeypatch):
    """``kept(tokens, **options)``: the statistics, and whether they were computed; the checkpoint is a stand-in."""
    checkpoint = tmp_path / "checkpoint_best.pt"
    checkpoint.write_bytes(b"a checkpoint")
    computed = []
    compute = gradient_statistics.mean_squared_gradients

    def note(*args, **options):
        computed.append(options)
        return compute(*args, **options)

    monkeypatch.setattr(gradient_statistics, "mean_squared_gradients", note)

    def read(tokens, *, model=None, num_rows=4, segment=3):
        before = len(computed)
        statistics = kept_gradient_statistics(
            model or build_tiny_lm("tied"),
            tokens,
            checkpoint=checkpoint,
            num_rows=num_rows,
            segment=segment,
            device="cpu",
            show_progress=False,
        )
        return statistics, len(computed) > before

    return read


def file_in(folder):
    (path,) = folder.glob("*gradients-4x3.pt")
    return path


def test_they_are_computed_once(kept, tokens, tmp_path):
    first, computed = kept(tokens)
    assert (
        computed and all((one >= 0).all() for one in first.values()) and any((one > 0).any() for one in first.values())
    )
    again, computed = kept(tokens)
    assert not computed
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    assert torch.load(file_in(tmp_path), weights_only=True)["mean_squares"].keys() == first.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint_best.gradients-4x3.pt",
        "checkpoint_best.pt",
    ]


def test_rows_and_segments_have_files_of_their_own(kept, tokens):
    for options in ({}, {"num_rows": 2}, {"segment": 5}):
        assert kept(tokens, **options)[1]
    for options in ({}, {"num_rows": 2}, {"segment": 5}):
        assert not kept(tokens, **options)[1]


def test_a_text_is_known_by_its_tokens_without_a_copy_of_them(kept, tmp_path):
    stream, cut = torch.randint(23, (100_000,)), dict(num_rows=1000, segment=100)
    kept(stream, **cut)
    (path,) = tmp_path.glob("*gradients-*.pt")
    assert torch.load(path, weights_only=True)["tokens"] == hashlib.sha256(stream.numpy().tobytes()).hexdigest()
    assert not kept(stream.repeat_interleave(2)[::2], **cut)[1]
    tracemalloc.start()
    assert not kept(stream, **cut)[1]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < stream.nbytes


@pytest.mark.parametrize(
    "damage", ["other text", "other checkpoint", "cut off", "a flipped bit", "no file of torch", "other keys", "a list"]
)
def test_what_does_not_belong_is_replaced(damage, kept, tokens, tmp_path):
    kept(tokens)
    path, text = file_in(tmp_path), tokens
    if damage == "other text":
        text = tokens.flip(0)
    elif damage == "other checkpoint":
        (tmp_path / "checkpoint_best.pt").write_bytes(b"another checkpoint")
    elif damage == "cut off":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "a flipped bit":
        content = bytearray(path.read_bytes())
        content[content.index(next(iter(kept(tokens)[0].values())).numpy().tobytes())] ^= 1
        path.write_bytes(content)
    elif damage == "a list":
        torch.save([1], path)
    elif damage == "no file of torch":
        path.write_text("nothing")
    else:
        torch.save({"mean": 1}, path)
    expected = kept(text, segment=3, num_rows=4)
    assert expected[1]
    again, computed = kept(text)
    assert not computed
    torch.testing.assert_close(again, expected[0], rtol=0, atol=0)


def test_a_model_of_other_shapes_has_others(kept, tokens, build_tiny_lm):
    kept(tokens)
    other = build_tiny_lm("tied", embed_dim=6, hidden_sizes="6")
    statistics, computed = kept(tokens, model=other)
    assert computed and {name: one.shape for name, one in statistics.items()} == {
        name: one.shape for name, one in other.named_parameters()
    }


def test_a_folder_that_cannot_be_written_keeps_none(kept, tokens, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gradient_statistics.os, "access", lambda *_: False)
    assert kept(tokens)[1] and kept(tokens)[1]
    assert "not kept" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_best.pt"]


def test_a_full_disk_leaves_what_was_there_and_loses_no_result(kept, tokens, tmp_path, monkeypatch, capsys):
    kept(tokens)
    path = file_in(tmp_path)
    before = path.read_bytes()
    shutil.copy(path, tmp_path / "copy")

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", fail)
    statistics, computed = kept(tokens.flip(0))
    assert computed and statistics
    assert f"gradient statistics are not kept: {path}: No space left" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([path.name, "checkpoint_best.pt", "copy"])


def test_they_are_those_of_float32_whatever_the_evaluation_asks_for(kept, build_tiny_lm, tokens, monkeypatch):
    monkeypatch.setattr(output_precision, "has_native_bfloat16", lambda device: True)
    model = build_tiny_lm("doc")
    found = {}
    for precision in ("bfloat16", "float32"):
        prepare_to_score([model], device="cpu", precision=precision)
        found[precision] = gradient_statistics.mean_squared_gradients(
            model, tokens, num_rows=4, segment=3, device="cpu", show_progress=False
        )
        assert model.decoder.output.precision.scores_in == precision
    torch.testing.assert_close(found["bfloat16"], found["float32"], rtol=0, atol=0)
