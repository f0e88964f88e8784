"""A folder with small files of every kind that the commands read."""

import gzip
import os
import shutil
import subprocess
from pathlib import Path

import torch
from binarised_data import SUBWORDS
from command_table import DYNAMIC
from fairseq.data import Dictionary, data_utils
from generated_corpora import write_parses
from paths import PLUGINS, ROOT, SMALL_MODELS
from typed_commands import type_command

SMALL = ("--embed-dim", 8, "--hidden-sizes", "8")
PAIRS = [("a b c", "xa xb xc"), ("d e", "xd xe"), ("f", "xf")]


def furnish(folder: Path, *, python: str) -> Path:
    """Fill an empty folder by commands of a Python.

    ``lm`` and ``translation`` are data, ``lm.pt``, ``mos.pt`` and ``translator.pt`` models, ``run`` and ``history``
    save directories; the others are texts, lists and records.
    """
    shutil.copytree(SMALL_MODELS / "data", folder, dirs_exist_ok=True)
    (folder / "lm/text.json").write_text('{"tokenizer": "blanks", "case": "lower tokens"}\n')
    shutil.copy(SMALL_MODELS / "lstm_lm_doc.pt", folder / "lm.pt")
    shutil.copy(SMALL_MODELS / "mmlstm_lm_mos.pt", folder / "mos.pt")
    shutil.copy(SMALL_MODELS / "lstm_encdec_doc.pt", folder / "translator.pt")
    (folder / "run").mkdir()
    shutil.copy(SMALL_MODELS / "lstm_lm_doc.pt", folder / "run/checkpoint_best.pt")
    state = torch.load(SMALL_MODELS / "lstm_lm_doc.pt")
    for epoch in (1, 2):
        state["optimizer_history"][-1]["num_updates"] = epoch
        torch.save(state, folder / f"run/checkpoint{epoch}.pt")
    (folder / "run/train.log").write_text(
        "2026-11-21 09:59:50 | INFO | fairseq_cli.train | {'_name': None, 'common': {'_name': None, 'seed': 1}}\n"
        "2026-11-21 09:59:55 | INFO | fairseq_cli.train | num. shared model params: 900 (num. trained: 900)\n"
        "2026-11-21 10:00:00 | INFO | train_inner | epoch 001: 10 / 20 loss=3, ppl=8, wps=900.5, ups=5, wall=9\n"
        "2026-11-21 10:00:01 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 3 | ppl 8.25 | wps 2000\n"
        "2026-11-21 10:00:02 | INFO | train | epoch 001 | loss 3 | ppl 8 | wps 900.5 | wall 10\n"
    )
    (folder / "history").mkdir()
    shutil.copy(SMALL_MODELS / "lstm_lm_doc.pt", folder / "history/checkpoint_1_20.pt")
    (folder / "text").write_text("the big cat wants a mouse today\nthe dog finds a bone\n")
    (folder / "sources").write_text("".join(f"{source}\n" for source, _ in PAIRS))
    (folder / "targets").write_text("".join(f"{target}\n" for _, target in PAIRS))
    (folder / "generated").write_text(
        "".join(f"S-{i}\t{s}\nT-{i}\t{t}\nH-{i}\t-0.5\t{t}\nD-{i}\t-0.5\t{t}\n" for i, (s, t) in enumerate(PAIRS))
    )
    (folder / "translation/raw").mkdir()
    dictionary = Dictionary.load(str(folder / "translation/dict.tgt.txt"))
    targets = data_utils.load_indexed_dataset(str(folder / "translation/test.src-tgt.tgt"), dictionary)
    (folder / "translation/raw/test.tgt").write_text("".join(f"{dictionary.string(line)}\n" for line in targets))
    (folder / "translation/bpe.codes").write_text(SUBWORDS)
    (folder / "translation/text.json").write_text('{"tokenizer": "moses", "case": "kept"}\n')
    (folder / "weights").write_text('{"weights": {"list": 1.0, "length": 0.0, "model 1": 0.5}, "metric": "bleu"}\n')
    type_command("ngram train", [str(folder / "lm"), "--order", "2", "--out", str(folder / "ngram.arpa")])
    type_command("lm eval", [str(folder / "lm"), "--path", str(folder / "lm.pt"), *DYNAMIC, "--cpu"])
    _train(python, folder / "lm", folder / "fpnn.pt", "--arch", "fpnn_lm", *SMALL)
    _train(python, folder / "lm", folder / "rnn.pt", "--arch", "rectifier_rnn_lm", *SMALL)
    gate = ("--arch", "gated_lm", "--base-model", folder / "lm.pt", "--gate-dim", 4)
    _train(python, folder / "lm", folder / "gated.pt", *gate)
    _furnish_trees(folder, programs=str(Path(python).parent))
    return folder


def _furnish_trees(folder: Path, *, programs: str) -> None:
    write_parses(folder / "downloads")
    prepare = ["bash", ROOT / "data-prep/wsj/prepare.sh", "--from", folder / "downloads"]
    prepare += ["--dest", folder / "parses", "--work", folder / "downloads/work"]
    path = os.pathsep.join((programs, os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "EXPECTED_COUNTS": "skip"}
    subprocess.run(prepare, check=True, capture_output=True, env=environment)
    for path in (folder / "downloads").glob("nbest.*.gz"):
        (folder / "parses" / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    shutil.rmtree(folder / "downloads/work")
    sizes = ("--embed-dim", 8, "--hidden-sizes", "8 8")
    _train(f"{programs}/python", folder / "parses", folder / "trees.pt", "--arch", "lstm_lm_awd", *sizes)


def _train(python: str, data: Path, checkpoint: Path, *flags) -> None:
    """Train a language model for two updates."""
    flags = ("--task", "stateful_lm", "--batch-size", 2, "--tokens-per-sample", 5, "--max-update", 2, "--cpu", *flags)
    flags += ("--user-dir", PLUGINS, "--num-workers", 0, "--optimizer", "sgd", "--lr", 1)
    command = [python, "-m", "fairseq_cli.train", data, "--save-dir", checkpoint.with_suffix(""), *flags]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (checkpoint.with_suffix("") / "checkpoint_last.pt").rename(checkpoint)
    shutil.rmtree(checkpoint.with_suffix(""))
