"""Methods of an output layer's loss have the same gradients; their times and memory become a table and a picture."""

import json
import math
import os
import platform
import signal
import subprocess
import sys
from argparse import ArgumentTypeError

import output_layer
import pytest
import torch
from benchmark import main, report_name
from binarised_data import write_split
from builders import make_dictionary
from output_layer import (
    BARS,
    BENCHMARK,
    DEFAULT_CASES,
    NOISE,
    Case,
    Inputs,
    as_markdown,
    draw,
    measure,
    methods_of,
    peak_memory,
)
from printed_tables import rows_of
from speed_recipes import SPEED_LABELS

from fairseq_plugins.processes import ALLOCATOR_VARIABLES, fairseq_command, training_environment
from fairseq_plugins.recipes import training_arguments


@pytest.mark.parametrize(
    "parts, expected",
    [
        (["lm", "mmlstm-reduced", "cpu"], "lm_mmlstm-reduced_cpu"),
        (["lm", "ptb", "cpu", "fp16", "max-update", "7"], "lm_ptb_cpu_fp16_max-update_7"),
        (["lm", "ptb", "cpu", "restore-file", "../a b/last.pt"], "lm_ptb_cpu_restore-file_..-a-b-last.pt"),
        (["transformer", "cuda", "9:1"], "transformer_cuda_9-1"),
        (["a" * 300], "a" * 200),
    ],
)
def test_what_a_name_should_not_hold_becomes_a_dash(parts, expected):
    assert report_name(*parts) == expected


CPU = torch.device("cpu")


def methods(case, dtype=torch.float64):
    return methods_of(case, device=CPU, dtype=dtype)


def gradients_of(method, case, dtype=torch.float64):
    x = Inputs(case, device=CPU, dtype=dtype)
    method(x)
    return {name: getattr(x, name).grad for name in ("latents", "scores", "weight", "bias")}


@pytest.mark.parametrize(
    "case, others", [(Case(23, 3, 5, 7), ["published", "plain"]), (Case(23, 1, 5, 7), ["published", "torch"])]
)
def test_all_methods_have_the_same_gradients(case, others):
    known = methods(case)
    fused = gradients_of(known["fused"], case)
    for name in others:
        if name not in known:
            pytest.skip("this torch has no chunked cross-entropy")
        found = gradients_of(known[name], case)
        for part, gradient in found.items():
            if gradient is not None:
                torch.testing.assert_close(gradient, fused[part], rtol=1e-5, atol=1e-6, msg=f"{name}, {part}")


def test_the_matrix_products_alone_write_gradients_of_the_same_shapes():
    case = Case(23, 3, 5, 7)
    floor = gradients_of(methods(case)["floor"], case)
    assert floor["latents"].shape == (7, 3, 5) and floor["weight"].shape == (23, 5) and floor["bias"] is None


def test_noise_stands_beside_one_softmax_and_reads_the_rows_of_its_words_alone():
    assert NOISE not in methods(Case(23, 3, 5, 7))
    case = Case(500, 1, 5, 3)
    x = Inputs(case, device=CPU, dtype=torch.float64)
    drawn = []
    draw = x.noise.draw
    x.noise.draw = lambda *args, **kwargs: drawn.append(draw(*args, **kwargs)) or drawn[-1]
    methods(case)[NOISE](x)
    (words,) = drawn
    weight, hidden = x.weight.detach().requires_grad_(), x.single.detach().squeeze(1).requires_grad_()
    # log k q(w) - log Z' is log 25 - log V + log V: all words are as likely, and Z is V
    margins = hidden @ weight.T - math.log(25)
    told = -torch.nn.functional.logsigmoid(margins.gather(1, x.target.unsqueeze(1))).sum()
    others = torch.nn.functional.logsigmoid(-margins.gather(1, words)).masked_fill(words == x.target.unsqueeze(1), 0)
    (told - others.sum()).backward()
    assert x.weight.grad.is_sparse and len(x.weight.grad.coalesce().values()) <= 3 + 3 * 25
    torch.testing.assert_close(x.weight.grad.to_dense(), weight.grad)
    torch.testing.assert_close(x.single.grad.squeeze(1), hidden.grad)
    assert 0 < x.gradient_bytes() < weight.nbytes


@pytest.fixture
def native(monkeypatch):
    """A processor that has products in bfloat16."""
    monkeypatch.setattr(output_layer, "has_native_bfloat16", lambda device: True)


NARROW = ["fused, bfloat16 chunks", "floor, bfloat16 chunks"]


@pytest.mark.parametrize("num_experts", [1, 3])
def test_chunks_in_bfloat16_have_the_gradients_of_float32_but_for_their_rounding(native, num_experts):
    case = Case(23, num_experts, 5, 7)
    known = methods(case, torch.float32)
    exact = gradients_of(known["fused"], case, torch.float32)
    found = gradients_of(known[NARROW[0]], case, torch.float32)
    for part, gradient in found.items():
        error = (gradient - exact[part]).norm() / exact[part].norm().clamp(min=1)
        assert gradient.dtype == torch.float32 and error < 2**-7, part
    assert not torch.equal(found["latents"], exact["latents"])


def test_the_products_in_bfloat16_are_those_of_float32_but_for_their_rounding(native):
    case = Case(23, 3, 5, 7)
    known = methods(case, torch.float32)
    exact, found = (gradients_of(known[name], case, torch.float32) for name in ("floor", NARROW[1]))
    for part in ("latents", "weight"):
        assert found[part].dtype == torch.float32
        assert 0 < (found[part] - exact[part]).norm() / exact[part].norm() < 2**-6
    assert found["bias"] is None


def test_chunks_in_bfloat16_are_measured_in_float32_where_they_are_native(native, monkeypatch):
    case = Case(23, 3, 5, 7)
    assert list(methods(case, torch.float32))[-2:] == NARROW
    assert not set(NARROW) & set(methods(case, torch.bfloat16))
    monkeypatch.setattr(output_layer, "has_native_bfloat16", lambda device: False)
    assert not set(NARROW) & set(methods(case, torch.float32))


def test_a_case_is_four_numbers():
    assert Case.parse("10,2,3,4") == Case(vocab_size=10, num_experts=2, width=3, num_tokens=4)
    assert len([Case.parse(text) for text in DEFAULT_CASES]) == 8
    for text in ("10,2,3", "0,1,1,1", "a,b,c,d", "1,2,3,4,5"):
        with pytest.raises(ArgumentTypeError, match="give four numbers, VOCABULARY,EXPERTS,WIDTH,TOKENS"):
            Case.parse(text)


def test_every_method_is_measured(monkeypatch):
    asked = []

    def peak(case, name, **_):
        asked.append(name)
        return {"peak": 3, "gradients": 1}

    monkeypatch.setattr(output_layer, "peak_memory", peak)
    case = Case(23, 3, 5, 7)
    found = measure(case, device=CPU, dtype=torch.float32, num_repetitions=2)
    assert asked == list(found["seconds"]) == list(methods(case, torch.float32)) == list(found["memory_bytes"])
    assert found["vocab_size"] == 23 and all(seconds > 0 for seconds in found["seconds"].values())


def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_memory_of_a_process_that_is_killed_is_not_known(monkeypatch):
    monkeypatch.setattr(output_layer, "_peak_memory", killed)
    with pytest.warns(UserWarning, match=r"plain, Case\(.*its process was killed, usually because memory ran out"):
        assert peak_memory(Case(23, 3, 5, 7), "plain", device=CPU, dtype=torch.float32) is None


def result(num_experts, memory=True, **milliseconds):
    peaks = {name: {"peak": value * 2**20, "gradients": 2**20} for name, value in milliseconds.items()}
    return {
        **dict(vocab_size=10000, num_experts=num_experts, width=280, num_tokens=420),
        "seconds": {name: value / 1e3 for name, value in milliseconds.items()},
        "memory_bytes": peaks if memory else dict.fromkeys(milliseconds),
    }


BFLOAT16 = {NARROW[0]: 250, NARROW[1]: 200}
MIXTURE = result(20, fused=500, published=1500, plain=1000, floor=400, tied=20)
SINGLE = result(1, fused=100, published=200, floor=90, torch=180)


def test_the_table_has_times_memory_and_ratios():
    title, _, mixture, single = rows_of(as_markdown([MIXTURE, SINGLE]))
    assert title[:5] == ["V", "J", "d", "tokens", "fused"]
    assert mixture == [
        *("10,000", "20", "280", "420", "500 ms", "1,500 ms", "1,000 ms", "400 ms", "20 ms", ""),
        *("1.25", "0.33", "0.50", "500 MiB", "1,500 MiB", "1,000 MiB", "20 MiB", "0.333", "499 MiB"),
    ]
    assert single[9] == "180 ms" and single[6] == single[12] == ""
    with_bfloat16 = result(20, fused=500, published=1500, plain=1000, floor=400, tied=20, **BFLOAT16)
    title, _, first, second = rows_of(as_markdown([with_bfloat16, SINGLE]))
    assert title[19:21] == NARROW and len(title) == len(first) == 25 and first[:19] == mixture
    assert first[19:] == ["250 ms", "200 ms", "0.50", "1.25", "250 MiB", "0.500"] and set(second[19:]) == {""}
    with_noise = result(1, fused=100, published=200, floor=90, torch=180, **{NOISE: 8})
    title, _, first, second = rows_of(as_markdown([MIXTURE, with_noise]))
    assert title[19:] == [NOISE, f"fused / {NOISE}", f"memory: {NOISE}"]
    assert set(first[19:]) == {""} and second[19:] == ["8 ms", "12.5", "8 MiB"]


def test_unknown_memory_is_left_empty_and_a_peak_of_zero_has_no_ratio():
    unknown = result(2, memory=False, fused=5, published=10, plain=6, floor=4, tied=1)
    *_, row = rows_of(as_markdown([unknown]))
    assert row[4] == "5 ms" and set(row[13:]) == {""}
    draw([unknown], hardware="").draw_without_rendering()
    *_, row = rows_of(as_markdown([result(2, fused=5, published=0, plain=6, floor=4, tied=1)]))
    assert row[13:15] == ["5 MiB", "0 MiB"] and row[11] == row[17] == ""


def bars(picture):
    """Lengths of the bars by their labels: time and memory."""
    times, memory = picture.axes
    names = [label.get_text() for label in times.get_yticklabels()]
    return [dict(zip(names, (round(bar.get_width()) for bar in axes.containers[0]))) for axes in (times, memory)]


def test_the_picture_shows_the_first_mixture():
    with_bfloat16 = result(20, fused=500, published=1500, plain=1000, floor=400, tied=20, **BFLOAT16)
    picture = draw([SINGLE, with_bfloat16, MIXTURE], hardware="2 CPU cores")
    times, memory = bars(picture)
    names = [BARS[name][0] for name in ("published", "plain", "fused", "floor")]
    assert times == dict(zip(names, [1500, 1000, 500, 400])) and memory[names[2]] == 500
    assert "20 softmaxes" in picture.get_suptitle() and "2 CPU cores" in picture.get_suptitle()


def test_the_picture_of_one_softmax_where_there_is_no_mixture():
    picture = draw([SINGLE], hardware="a GPU")
    assert bars(picture)[0][BARS["torch"][0]] == 180 and "one softmax" in picture.get_suptitle()


def test_a_wrong_number_is_one_line(capsys):
    with pytest.raises(SystemExit) as error:
        main(BENCHMARK, ["10,2,3,4", "--repetitions", "0"])
    (line,) = capsys.readouterr().err.splitlines()
    assert error.value.code == 2 and line.endswith("argument --repetitions: 0: give a whole number of at least 1")


@pytest.mark.slow
def test_the_script_writes_a_table_figures_and_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [output_layer.__file__])
    main(BENCHMARK, ["1000,2,16,50", "--repetitions", "1", "--cpu", "--out", "my results"])
    printed, stem = capsys.readouterr().out, tmp_path / "my results/output_layer_cpu_float32"
    assert stem.with_suffix(".md").read_text() == printed
    assert "output_layer.py 1000,2,16,50 --repetitions 1" in printed
    (case,) = json.loads(stem.with_suffix(".json").read_text())["cases"]
    assert case["num_experts"] == 2 and case["seconds"]["fused"] > 0
    memory = case["memory_bytes"]["published"]
    assert memory["gradients"] == 4 * (50 * 2 * 16 + 50 * 2 + 1000 * 16 + 1000) < memory["peak"]
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


NUM_WORDS = 10_000
LIMIT = 1.3
PEAK = """
import os, sys
_, status, usage = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Runs a command. Linux counts a child at least as large as its parent, and the tests are large."""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator of another C library is left alone")
def test_drill_needs_little_more_than_a_tied_softmax(tmp_path, monkeypatch):
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    dictionary = make_dictionary(NUM_WORDS + 4)
    data = tmp_path / "data"
    lines = [list(range(start, start + 100)) for start in range(4, NUM_WORDS, 100)]  # 20 rows of windows
    for split in ("train", "valid"):
        write_split(data, split, lines, vocab_size=len(dictionary))
    dictionary.save(str(data / "dict.txt"))
    flags = ["--tokens-per-sample", "30", "--no-save", "--disable-validation", "--cpu", "--log-format", "none"]
    peaks = {}
    for system, num_updates in (("tied", 1), ("drill", 2)):  # the second update tells whether freed blocks are reused
        more = [*flags, "--max-update", str(num_updates)]
        recipe, save_dir = SPEED_LABELS, str(tmp_path / system)
        arguments = training_arguments(recipe, system, data=str(data), save_dir=save_dir, seed=1, more=more)
        command = [sys.executable, "-c", PEAK, *fairseq_command("train", arguments)]
        run = subprocess.run(command, capture_output=True, text=True, env=training_environment())
        assert run.returncode == 0, run.stderr[-3000:]
        peaks[system] = int(run.stdout.splitlines()[-1])
    assert peaks["drill"] <= LIMIT * peaks["tied"], peaks
