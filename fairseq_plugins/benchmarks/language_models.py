"""Suites of language models whose training is timed."""

from typing import Dict

from fairseq_plugins.benchmarks.suite import Suite

SUITES: Dict[str, Suite] = {
    **{name: Suite(f"speed_{name}") for name in ("ptb", "wt2", "labels", "mmlstm", "wt103", "fpnn", "host")},
    "rhn": Suite("speed_presets_ptb", ["rhn_lm_ptb", "rhn_lm_tied_ptb"]),
    "reduced": Suite("reduced", ["tied", "mos", "doc"]),
    "labels-reduced": Suite(
        "reduced", ["tied", "full", "bilinear", "dual", "drill1", "drill2", "drill3", "drill4", "standard"]
    ),
    "mmlstm-reduced": Suite("reduced", ["tied", "9:1", "7:3", "5:5", "mos", "mmlstm-mos", "mmlstm-doc"]),
}
"""By name. All models of a suite have the same data, and the same rows and window where their recipe says so."""
