"""Names of reports are names of files, whatever flags they hold."""

import pytest

from fairseq_plugins.benchmarks.report_name import report_name


@pytest.mark.parametrize(
    "parts, expected",
    [
        (["lm", "mmlstm-reduced", "cpu"], "lm_mmlstm-reduced_cpu"),
        (["lm", "ptb", "cpu", "fp16", "max-update", "7"], "lm_ptb_cpu_fp16_max-update_7"),
        (["lm", "ptb", "cpu", "restore-file", "../a b/last.pt"], "lm_ptb_cpu_restore-file_..-a-b-last.pt"),
        (["transformer", "cuda", "9:1"], "transformer_cuda_9-1"),
    ],
)
def test_what_a_name_should_not_hold_becomes_a_dash(parts, expected):
    assert report_name(*parts) == expected


def test_a_long_name_is_cut():
    assert report_name("a" * 300) == "a" * 200
