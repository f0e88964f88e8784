"""Wrong flags and files: every command ends with one line that names them, prints nothing and writes nothing."""

import json
import shlex
import shutil

import pytest
import torch
from binarised_data import copy_data, write_split
from paths import SMALL_MODELS

from fairseq_plugins.commands.app import COMMANDS
from fairseq_plugins.files import file_digest

SCORE, GENERATE, TRANSLATE = "lm score lm --path lm.pt", "lm generate lm --path lm.pt", "translate pairs --path mt.pt"
RESCORE = "rescore lm --path lm.pt --input lists --input-format tab"
ROUGE, BLEU = "evaluate rouge --input text --input-format text --reference", "evaluate bleu --input generate.txt"
TRAIN, MASKING = "ngram train lm --out new.arpa", "analyze masking lm --path"
COMPARE, GATE_WORDS = "compare runs lm --path A=nowhere --out out", "analyze gate-words lm --words '</s>' --path"
NO_LANGUAGE_MODEL = "was trained for --task translation: give a language model's checkpoint"
UNFIT = "does not fit the model that the flags and the data's dictionary make"

REFUSALS = {
    "lm eval lm": "--path",
    "lm eval --path a.pt lm": "--path: lm is no model: give DATA first",
    "lm eval lm more --path a.pt": "unrecognized arguments: more",
    "lm eval typo --path a.pt": "DATA: typo does not exist",
    "lm eval lm --path a.pt --cache 50,1,0.5": "--cache WEIGHT is 1",
    "lm eval lm --path a.pt --tune cashe=50": "--tune cashe=50",
    "lm eval lm --path . --tune temperature=1": ". holds no checkpoint_best.pt",
    "lm eval lm --path '' --tune temperature=1": "the path is empty",
    "lm eval lm --path nowhere.pt": "nowhere.pt does not exist: give a checkpoint",
    "lm eval lm --path truncated.pt": "truncated.pt is no checkpoint or was cut short",
    "lm eval lm --path lm.pt --split dev": "there is no split 'dev'",
    "lm eval lm --path lm.pt --rows 0": "argument --rows: 0: give a whole number of at least 1",
    "lm eval lm --path mt.pt": f"mt.pt {NO_LANGUAGE_MODEL}",
    f"{SCORE} --input empty": "empty is empty",
    f"{SCORE} --input nowhere.txt": "nowhere.txt does not exist",
    f"{SCORE} --per token --json": "--per token --json",
    f"{SCORE} --context page": "--context",
    f"{SCORE} --plot nowhere/picture.png": "--plot: nowhere/picture.png",
    "lm score bare --path lm.pt": "text.json is missing",
    "lm score lm --path mt.pt": f"mt.pt {NO_LANGUAGE_MODEL}",
    "lm score lm --path nowhere.pt": "nowhere.pt does not exist",
    f"{GENERATE} --seed -1": "argument --seed: -1: give a whole",
    f"{GENERATE} --temperature 0": "temperature 0.0",
    f"{GENERATE} --top-p 2": "top-p 2.0",
    f"{GENERATE} --beam 2 --num 3": "--num 3 of a beam of 2",
    f"{GENERATE} --beam 2 --top-k 3": "--beam",
    f"{GENERATE} --beam 2 --seed 3": "--seed are for sampling: leave them or --beam out",
    f"{GENERATE} --after nowhere.txt": "nowhere.txt does not exist",
    f"{GENERATE} --after -": "--after - and --input -",
    f"{GENERATE} --input nowhere.txt": "nowhere.txt does not exist",
    f"{TRANSLATE} --input empty": "empty is empty",
    f"{TRANSLATE} --input long": "has 1,100 subwords",
    f"{TRANSLATE} --input nowhere.txt": "nowhere.txt does not exist",
    f"{TRANSLATE} --plot nowhere/picture.png": "--plot: nowhere/picture.png",
    f"{TRANSLATE} --plot picture.doc": "--plot: picture.doc",
    "translate pairs --path lm.pt": "lm.pt was trained for --task stateful_lm",
    "translate pairs --path nowhere.pt": "nowhere.pt does not exist",
    "translate nowhere --path mt.pt": "nowhere does not exist",
    "translate unprepared --path mt.pt": "has no bpe.codes",
    f"{RESCORE} --tune w.json": "lists has no references: give --reference",
    f"{RESCORE} --tune w.json --weights w.json": "--weights",
    f"{RESCORE} --tune lm/dict.txt": "--tune lm/dict.txt is read by this command",
    f"{RESCORE} --weights other.json --seed 2": "--seed 2",
    f"{RESCORE} --weights nowhere.json": "nowhere.json: No such file",
    f"{RESCORE} --weights lists": "lists holds no weights",
    f"{RESCORE} --weights unnamed.json": "unnamed.json holds no weights",
    f"{RESCORE} --weights other.json": "lm.pt is none of the models",
    f"{RESCORE} --weights two.json": "--path lacks x.pt",
    f"{RESCORE} --weights older.json": "older.json holds no weights",
    f"{RESCORE} --weights metrics.json": "metrics.json holds no weights",
    f"{RESCORE} --tune w.json --reference text": "text has 1 lines",
    f"{RESCORE} --tune w.json --reference blank": "blank, line 1: blank",
    f"{RESCORE} --tune w.json --reference russian --metric rougeL": "take --metric bleu or chrf",
    f"{RESCORE} --weights this.json --reference russian --output scores": "take --metric bleu or chrf",
    f"{RESCORE} --weights this.json --reference nowhere": "--reference has no effect on --output text",
    f"{RESCORE} --weights this.json --metric bleu": "--metric has no effect on --output text",
    f"{RESCORE} --weights this.json --output lists --target-lang de": "--target-lang has no effect on --output lists",
    f"{RESCORE} --weights this.json --source three": "--source is read by encoder-decoders",
    f"{RESCORE} --weights this.json --json": "--json only applies with --output scores",
    f"{RESCORE} --tune three --reference three": "--tune three is read",
    RESCORE: "--tune --weights",
    "evaluate rouge --input empty --input-format text --reference three": "empty is empty",
    f"{ROUGE} void": "void, line 1: blank",
    "evaluate rouge --input text --reference three": "text holds no candidate: lines are H-NUMBER",
    f"{ROUGE} three --reference nowhere": "nowhere does not exist",
    "evaluate rouge --input text": "--reference FILE",
    "evaluate rouge --input text --path a.pt --reference three": "--path, --out",
    "evaluate rouge lm --path a.pt --input text --out o": "--input",
    "evaluate rouge pairs --path mt.pt --out o --reference russian": "take the unicode tokeniser",
    "evaluate rouge lm --path a.pt --lenpen 3 --out o": "--lenpen: flags of fairseq-generate come after --",
    "evaluate rouge lm --path a --out o --input-format text": "--input-format",
    "evaluate rouge lm --out o": "--path",
    "evaluate rouge text --reference three": "DATA: text is a file",
    f"{ROUGE} three --split valid": "--split",
    f"{ROUGE} three --max-tokens 9": "--max-tokens",
    f"{ROUGE} three --cpu": "--cpu",
    f"{ROUGE} three --max-bytes -1": "-1 bytes",
    f"{ROUGE} three --stemming maybe": "--stemming",
    f"{BLEU} --reference three --write-hypotheses no/text": "--write-hypotheses: no/text",
    f"{BLEU} --reference three raw.de": "--reference three raw.de",
    f"{BLEU} --reference three --reference raw.de": "--reference three raw.de",
    f"{BLEU} --reference three --against nowhere": "nowhere has no generate.txt",
    f"{BLEU} --reference .": "--reference . is a folder",
    f"{BLEU} --reference three": "--target-lang",
    f"{BLEU} --reference raw.de --target-lang xx": "--target-lang xx",
    f"{BLEU} --reference blank --target-lang de": "blank, line 1: blank",
    "evaluate bleu --input three --input-format text --reference blank": "blank, line 1: blank",
    "evaluate bleu typo --out o": "DATA: typo does not exist",
    "evaluate bleu . --path mt.pt --out o": ". has no test set: it holds no pairs",
    "evaluate bleu pairs --path mt.pt:nowhere.pt --out o": "nowhere.pt does not exist: give a checkpoint",
    "evaluate bleu pairs --path lm.pt --out o": "lm.pt was trained for --task stateful_lm: give an encoder-",
    "evaluate bleu pairs --path truncated.pt --out o": "truncated.pt is no checkpoint or was cut short",
    "evaluate bleu pairs --path mt.pt --out o -- --lenpan 3": "fairseq-generate: unrecognized arguments: --lenpan 3",
    "evaluate bleu pairs --path mt.pt --out o --reference blank --target-lang de": "blank, line 1: blank",
    f"{BLEU} --reference russian --target-lang de": "russian is not the reference of the text that generate.txt was",
    f"{BLEU} --reference raw.de --write-hypotheses raw.de": "--write-hypotheses raw.de is read by this command",
    f"{BLEU} --reference raw.de --write-hypotheses generate.txt": "--write-hypotheses generate.txt is read",
    f"{BLEU} --reference raw.de --against three --write-hypotheses three": "--write-hypotheses three is read",
    f"{TRAIN} --order 90": "order 90",
    f"{TRAIN} --split dev": "dev",
    f"{TRAIN} --split empty": "split 'empty' in",
    f"{TRAIN} --split blank": "2 blank lines and no word",
    f"{TRAIN} --split marked": "the text holds <s>",
    "ngram train lm --out no/new.arpa": "--out: no/new.arpa",
    "ngram train lm --out lm/dict.txt": "--out lm/dict.txt is read by this command",
    "ngram eval lm --path no.arpa": "no.arpa does not exist",
    "ngram eval lm --path no.arpa --unigram-cache 100": "--unigram-cache 100",
    "compare runs --path A=save lm --out o": "--path: lm is no model: give DATA first",
    f"{COMPARE} --reference text": "--reference",
    f"{COMPARE} --gen-subset valid": "--split",
    f"{COMPARE} --tokenizer unicode": "--tokenizer",
    f"{COMPARE} --metric bleu --max-words 9": "--max-words",
    f"{COMPARE} --metric rouge --max-words -9": "-9 words",
    "analyze frequency lm --path A=a.pt": "--path: give two models",
    "analyze frequency lm --path A=a.pt A=b.pt": "NAME",
    "analyze frequency lm --path A=no.pt B=no.pt": "no.pt does not exist",
    "analyze gate-words lm --path no.pt --words unheardof": "unheardof: not in the dictionary of the data",
    f"{GATE_WORDS} no.pt": "no.pt does not exist: give a checkpoint",
    f"{GATE_WORDS} a.pt b.pt": "--path: give one checkpoint; there are 2",
    f"{GATE_WORDS} lm.pt": "lm.pt: the model has no gate: give a model with --output-gate iog",
    f"{GATE_WORDS} mt.pt": f"mt.pt {NO_LANGUAGE_MODEL}",
    "analyze rank lm --path no.pt": "no.pt does not exist",
    "analyze rank lm --path mt.pt": f"mt.pt {NO_LANGUAGE_MODEL}",
    "analyze rank lm --path a.pt:b.pt": "--path: give one checkpoint; there are 2",
    "analyze rank lm --path a.pt --postions 3": "--postions 3 (did you mean --positions",
    "analyze rank lm --path lm.pt --threshold nan": "--threshold nan",
    "analyze rank lm --path lm.pt --threshold inf": "--threshold inf",
    "analyze rank lm --path lm.pt --threshold -1": "--threshold -1.0",
    "analyze timescales lm --path A=mt.pt": f"mt.pt {NO_LANGUAGE_MODEL}",
    "analyze timescales lm --path A=lm.pt": "lm.pt: layer 1 has no self-connections",
    "analyze spectrum lm --path A=lm.pt": "lm.pt: layer 1 has no recurrent matrix without gates",
    f"{MASKING} no.pt": "no.pt: give it as NAME=PATH",
    f"{MASKING} =no.pt": "=no.pt: give it as NAME=PATH",
    f"{MASKING} A=no.pt": "no.pt does not exist",
    f"{MASKING} A=lm.pt lm": "lm is no model: give DATA first",
    f"{MASKING} A=lm": "A=lm is no model",
    f"{MASKING} A=no.pt A=other.pt": "NAME",
    f"{MASKING} A=no.pt --probabilities 50": "--probabilities 50",
    f"{MASKING} A=no.pt --probabilities 0 0": "--probabilities",
    f"{MASKING} A=no.pt --plot nowhere/masking.png": "--plot: nowhere/masking.png",
    f"{MASKING} A=no.pt --plot masking.foo": "--plot: masking.foo",
    f"{MASKING} A=lm.pt --rows 90000": "--rows 90000",
    "analyze experts lm --path A=lm.pt --rows 90000 --out out": "--rows 90000",
    "analyze experts lm --path A=a.pt A=b.pt --out out": "--path",
    "analyze experts lm --path nowhere.pt --tokenised --out out": "--tokenised",
    "analyze experts lm --path nowhere.pt --input blank --out out": "all lines are blank",
    "analyze experts lm --path lm.pt --split dev --out out": "dev",
    "analyze experts lm --path mt.pt --out out": "lm holds no sentence pairs: ",
    "analyze experts pairs --path mt.pt --split dev --out out": "dev",
    "analyze experts pairs --path mt.pt --tokenised --input three --out out": "mt.pt: encoder-decoders read raw",
    "analyze experts bare --path lm.pt --input text --out out": "text.json is missing",
    "analyze experts pairs --path mt.pt drill.pt --out out": "drill.pt: the model has no mixture",
    "analyze attention pairs --path mt.pt --input blank --out out": "all lines are blank",
    "analyze expert-history lm --path A=nowhere": "nowhere is no folder",
    "analyze expert-history lm --path A=.": "checkpoint_EPOCH_UPDATES.pt",
    "analyze expert-history lm --path nowhere": "NAME=PATH",
    "analyze expert-history pairs --path A=history": "history/checkpoint_1_5.pt: the model has no mixture",
    "fine-tune pairs --path truncated.pt --save-dir o": "truncated.pt is no checkpoint or was cut short",
    "fine-tune pairs --path nothing.pt --save-dir o": "nothing.pt does not exist",
    "fine-tune pairs --path lm.pt --save-dir o": "dict.txt does not exist: a language model needs a folder of one side",
    "fine-tune lm --path mt.pt --save-dir o": "lm holds no sentence pairs",
    "fine-tune lm --arch gated_lm --path lm.pt --save-dir o": "--arch gated_lm has no fine-tuning of its own",
    "lm score lm --path unfit-lm.pt --tokenised": f"unfit-lm.pt {UNFIT}",
    "lm generate lm --path unfit-lm.pt --tokenised": f"unfit-lm.pt {UNFIT}",
    "analyze gate-words lm --words the --path unfit-lm.pt": f"unfit-lm.pt {UNFIT}",
    "analyze rank lm --path unfit-lm.pt": f"unfit-lm.pt {UNFIT}",
    "analyze experts lm --out out --path unfit-lm.pt": f"unfit-lm.pt {UNFIT}",
    "rescore pairs --tune w.json --input decoded --path unfit-mt.pt": f"unfit-mt.pt {UNFIT}",
    "translate pairs --path unfit-mt.pt": f"unfit-mt.pt {UNFIT}",
    "analyze attention pairs --out out --path unfit-mt.pt": f"unfit-mt.pt {UNFIT}",
}
"""For each command line, the words of its error: a flag with its value, or a file."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, models and texts."""
    folder = tmp_path_factory.mktemp("refusals")
    copy_data(SMALL_MODELS / "data/lm", folder / "bare")
    copy_data(SMALL_MODELS / "data/lm", folder / "lm", tokenizer="blanks", case="lower tokens")
    copy_data(SMALL_MODELS / "data/translation", folder / "unprepared")
    copy_data(SMALL_MODELS / "data/translation", folder / "pairs", subwords=True)
    for split, lines in (("empty", []), ("blank", [[2], [2]]), ("marked", [[4, 0, 2]])):
        write_split(folder / "lm", split, lines, vocab_size=10)
    shutil.copy(SMALL_MODELS / "lstm_lm_doc.pt", folder / "lm.pt")
    shutil.copy(SMALL_MODELS / "lstm_encdec_doc.pt", folder / "mt.pt")
    shutil.copy(SMALL_MODELS / "transformer_drill.pt", folder / "drill.pt")
    (folder / "history").mkdir()
    shutil.copy(folder / "drill.pt", folder / "history/checkpoint_1_5.pt")
    for name in ("lm", "mt"):
        state = torch.load(folder / f"{name}.pt")
        del state["model"]["decoder.embedding.weight"]
        torch.save(state, folder / f"unfit-{name}.pt")
    three = ["ein Haus .", "das Haus .", "ein Hund ."]
    texts = {
        "text": "the dog\n",
        "empty": "",
        "void": "\n",
        "blank": "\n\n\n",
        "three": "\n".join([*three, ""]),
        "long": "a " * 1100,
    }
    texts["raw.de"], texts["russian"] = texts["three"].replace(" .", "."), "кошка спит\n" * 3
    texts["generate.txt"] = "".join(f"T-{n}\t{line}\nH-{n}\t-1\t{line}\n" for n, line in enumerate(three))
    texts["decoded"] = "S-0\ta\nT-0\txa\nH-0\t-1\txa\n"
    texts["lists"] = "".join(f"{n}\t-1\tthe {word}\n" for n in range(3) for word in ("dog", "cat"))
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "truncated.pt").write_bytes((folder / "lm.pt").read_bytes()[:5000])
    this, other = {"lm.pt": file_digest(folder / "lm.pt")}, {"x.pt": "0" * 64}
    for name, metric, weighted, digests in (
        ("unnamed", "bleu", this, {}),
        ("other", "bleu", other, other),
        ("two", "bleu", {**this, **other}, {**this, **other}),
        ("older", "meteor", this, this),
        ("this", "rouge1", this, this),
        ("metrics", ["bleu"], this, this),
    ):
        content = {"metric": metric, "weights": dict.fromkeys(["list", "length", *weighted], 1), "digests": digests}
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("typed", REFUSALS)
def test_what_is_wrong_is_named_in_one_line(typed, folder, refuse, monkeypatch):
    monkeypatch.chdir(folder)
    words = shlex.split(typed)
    length = 1 if words[0] in COMMANDS else 2
    before = times_of(folder)
    assert REFUSALS[typed] in refuse(" ".join(words[:length]), *words[length:], typed="a\n")
    assert times_of(folder) == before


def times_of(folder):
    """When each file was written; digests of binarised text are written at its first reading."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "digests.json")
    return {path: path.stat().st_mtime_ns for path in files}
