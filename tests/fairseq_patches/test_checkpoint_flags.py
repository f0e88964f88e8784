"""Nothing in the flags of a checkpoint runs code or names a file that is read."""

import re
from argparse import Namespace
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import fairseq
import pytest
import torch
from builders import make_dictionary
from fairseq import checkpoint_utils, utils
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_REGISTRY
from fairseq.models.fconv_lm import FConvLanguageModel
from fairseq.tasks import TASK_REGISTRY

from fairseq_plugins.fairseq_patches.checkpoints import EVALUATING, MODELS, TASKS, forget_start, literal

FAIRSEQ = Path(fairseq.__file__).parent
RUNS_CODE = re.compile(
    r"(?<![\w.])(eval|exec|compile|__import__)\(|literal_eval\(|import_module\(|(?<!def )import_user_module\("
    r"|torch\.load\(|hub\.load\(|(?<!\w)pickle\.loads?\(|joblib|allow_pickle=True|\bsubprocess\.\w+\(|os\.(system|popen)\("
    r"|\bshell=True|globals\(\)\[|yaml\.(unsafe_|full_)?load\(|instantiate\(|load_library\(|Tokenizer\.from_pretrained\("
)
"""Calls that can run code of a text or a file."""
PLACES = {
    # literals alone are evaluated, by checkpoints.literal
    **{"criterions/ctc.py": 1, "utils.py": 4, "data/audio/raw_audio_dataset.py": 1, "models/fconv.py": 3},
    **{"models/fconv_lm.py": 2, "models/fconv_self_att.py": 9, "models/hubert/hubert.py": 1},
    **{"models/lightconv_lm.py": 1, "models/multires_hubert/multires_hubert.py": 2, "models/transformer_lm.py": 1},
    **{"models/speech_to_text/s2t_wav_transformer.py": 2, "models/wav2vec/wav2vec.py": 2},
    **{"models/wav2vec/wav2vec2.py": 2, "optim/adafactor.py": 1, "optim/adam.py": 1, "optim/adamax.py": 1},
    **{"optim/cpu_adam.py": 1, "optim/fused_lamb.py": 1},
    # so do these by themselves
    **{"dataclass/utils.py": 2, "modules/gumbel_vector_quantizer.py": 1, "models/speech_to_text/berard.py": 2},
    "optim/lr_scheduler/manual_lr_scheduler.py": 1,
    # torch reads weights only, and fairseq's own flags that a user gives
    **{"checkpoint_utils.py": 3, "data/codedataset.py": 4, "models/text_to_speech/vocoder.py": 3},
    **{"models/speech_to_text/xm_transformer.py": 1, "modules/quantization/pq/em.py": 3},
    # the package's own modules, that of --user-dir, and those of processes that train together
    **{"criterions/__init__.py": 1, "data/audio/__init__.py": 1, "data/encoders/__init__.py": 1},
    **{"model_parallel/criterions/__init__.py": 1, "model_parallel/models/__init__.py": 1, "models/__init__.py": 2},
    **{"models/ema/__init__.py": 1, "models/huggingface/__init__.py": 1, "optim/__init__.py": 1},
    **{"optim/lr_scheduler/__init__.py": 1, "scoring/__init__.py": 1, "tasks/__init__.py": 2, "optim/fused_adam.py": 2},
    **{"hub_utils.py": 1, "options.py": 2, "distributed/utils.py": 3},
    # names that are checked
    **{"logging/meters.py": 1, "data/fasta_dataset.py": 4, "modules/quantization/scalar/ops.py": 1},
    # of tasks and models that are not set up from checkpoints, and of files of data
    **{"data/audio/data_cfg.py": 1, "data/encoders/hf_bert_bpe.py": 1, "data/plasma_utils.py": 2},
    **{"models/speech_to_text/hub_interface.py": 1, "tasks/audio_pretraining.py": 1},
    # what a user gives
    **{f"fairseq_cli/{name}.py": 1 for name in ("hydra_validate", "preprocess", "train")},
    **{f"fairseq_cli/{name}.py": 2 for name in ("eval_lm", "generate", "interactive", "validate")},
}
"""Number of lines with such calls in each file of fairseq."""


@cache
def sources():
    """The lines of every file of fairseq, by its name, without comments."""
    paths = [(path, path.relative_to(FAIRSEQ)) for path in FAIRSEQ.rglob("*.py") if "examples" not in path.parts]
    paths += [(path, path.relative_to(FAIRSEQ.parent)) for path in (FAIRSEQ.parent / "fairseq_cli").rglob("*.py")]
    texts = {str(name): path.read_text().splitlines() for path, name in paths}
    return {name: [line for line in text if not line.lstrip().startswith("#")] for name, text in texts.items()}


def test_every_place_of_fairseq_that_can_run_code_is_known():
    """If a new version of fairseq has another: check what it runs, and whether a checkpoint can control it."""
    found = Counter({name: sum(bool(RUNS_CODE.search(line)) for line in lines) for name, lines in sources().items()})
    assert +found == PLACES


def test_every_module_of_fairseq_that_evaluates_takes_literals_alone():
    calls = re.compile(r"(?<![\w.])eval\(")
    modules = {
        f"fairseq.{name.removesuffix('.py').replace('/', '.')}"
        for name, lines in sources().items()
        if any(map(calls.search, lines)) and not name.startswith("fairseq_cli")  # which evaluate a user's flags
    }
    assert modules == set(EVALUATING)
    assert all(vars(__import__(name, fromlist=["eval"]))["eval"] is literal for name in EVALUATING)


@pytest.mark.parametrize(
    "text, value",
    [
        ("[(512, 3)] * 20", [(512, 3)] * 20),
        ("[(512, 10, 5)] + [(512, 3, 2)] * 4 + 2 * [(1, 2)]", [(512, 10, 5)] + [(512, 3, 2)] * 4 + 2 * [(1, 2)]),
        (" (0.9, -1e-3)", (0.9, -1e-3)),
        ("10000,20000", (10000, 20000)),
        ("{'name': 'scaled_dot_product', 'dropout': 0}", {"name": "scaled_dot_product", "dropout": 0}),
        *(("True", True), ("None", None), ("1", 1), ("'a'", "a")),
    ],
)
def test_literals_of_fairseq_have_their_values(text, value):
    assert literal(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("print(1)", "__import__('os').getpid()", "().__class__", "[x for x in (1,)]", "lambda: 0", "f'{1}'", "a"),
        *("[0] * 10**9", "[0] * 1000000000", "2 ** 9", "'a' * 100", "{**{}}", "1 if 1 else 2", "(yield)", "x := 1"),
        *("(" * 3000, "[0] * 9999 * 9999", "[0] + (1,)", "- 'a'", "", "1\x00"),
    ],
)
def test_other_expressions_are_refused(text):
    with pytest.raises(ValueError, match="is no literal such as 3"):
        literal(text)


def test_other_values_than_texts_are_what_they_were_and_fairseq_alone_runs_code(monkeypatch, tmp_path):
    assert utils.eval_bool(True) is False and utils.eval_str_list([1]) == [1.0] and utils.eval_bool("True") is True
    monkeypatch.delattr(utils, "eval")
    utils.eval_bool(f"open({str(tmp_path / 'canary')!r}, 'w')")
    assert (tmp_path / "canary").exists()


def test_a_convolutional_model_of_fairseq_is_built_from_its_texts():
    args = Namespace(decoder_layers="[(8, 2)] * 2", decoder_attention="[True, False]", decoder_embed_dim=8, dropout=0.0)
    args.tokens_per_sample, args.criterion = 9, ""
    ARCH_CONFIG_REGISTRY["fconv_lm"](args)
    dictionary = make_dictionary(20)
    model = FConvLanguageModel.build_model(args, SimpleNamespace(dictionary=dictionary, target_dictionary=dictionary))
    assert len(model.decoder.convolutions) == 2


# what a checkpoint holds


@pytest.fixture
def refuse_flags(save_checkpoint, tmp_path):
    """``refuse_flags(said, **content)``: a checkpoint with these flags is refused by name, and runs nothing."""

    def refuse(said, **content):
        path = save_checkpoint(**content)
        with pytest.raises(ValueError) as error:
            checkpoint_utils.load_checkpoint_to_cpu(path)
        assert str(error.value).startswith(f"{path} ") and re.search(said, str(error.value)), error.value
        assert not (tmp_path / "canary").exists()

    return refuse


@pytest.mark.parametrize("name", sorted(set(MODEL_REGISTRY) - MODELS))
def test_other_models_of_fairseq_are_not_built(name, refuse_flags, save_checkpoint):
    if MODEL_REGISTRY[name].__module__.startswith("fairseq."):
        for flags in (Namespace(arch=name), Namespace(_name=name), {"_name": name}, {name: {"a": 1}}):
            refuse_flags(r"--arch .*(not built from checkpoints: .*transformer_lm|which neither)", cfg={"model": flags})
    else:
        checkpoint_utils.load_checkpoint_to_cpu(save_checkpoint(cfg={"model": Namespace(arch=name, _name=name)}))


@pytest.mark.parametrize("name", sorted(set(TASK_REGISTRY) - TASKS))
def test_other_tasks_of_fairseq_are_not_set_up(name, refuse_flags, save_checkpoint):
    if TASK_REGISTRY[name].__module__.startswith("fairseq."):
        for content in ({"cfg": {"task": {"_name": name}}}, {"cfg": {"task": Namespace(task=name)}}):
            refuse_flags(f"--task {name}, which is not built from checkpoints: .*translation", **content)
        refuse_flags(f"--task {name}", args=Namespace(task=name, arch="transformer"))
    else:
        checkpoint_utils.load_checkpoint_to_cpu(save_checkpoint(cfg={"task": {"_name": name}}))


@pytest.mark.parametrize(
    "flags, said",
    [
        ({"a": b"code"}, "--a is of type bytes"),
        ({"a": bytearray(b"code")}, "--a is of type bytearray"),
        ({"a": torch.zeros(1)}, "--a is of type torch.Tensor"),
        ({"a": {1: 2}}, "has the name 1"),
        ({"a": {"b": [{"c": "${oc.env:HOME}"}]}}, "--c is .*stands for another value"),
        ({"arch": "no such"}, "--arch no such, which neither fairseq nor this package has"),
        ({"arch": ["transformer"]}, "--arch .*which neither fairseq"),
        ({"tokenizer": "../../file"}, "--tokenizer is .*no name"),
        ({"dataset_impl": "fasta"}, "--dataset-impl fasta fairseq runs commands of a shell"),
    ],
)
def test_flags_are_plain_data(flags, said, refuse_flags):
    refuse_flags(said, cfg={"model": Namespace(**{"arch": "transformer", **flags})})
    refuse_flags(said, args=Namespace(**{"task": "translation", **flags}))


@pytest.mark.parametrize("flags", [3, [1], torch.zeros(1)])
def test_flags_of_another_kind_are_refused(flags, refuse_flags):
    refuse_flags("flags are of type", args=flags)


def test_flags_are_nested_only_so_deep(refuse_flags):
    nested = []
    for _ in range(100):
        nested = [nested]
    refuse_flags("nested too deeply", args=Namespace(a=nested))


@pytest.mark.parametrize("name", ["OrderedDict", "os", "", 3])
def test_a_meter_is_one_of_fairseqs(name, refuse_flags):
    extra_state = {"train_iterator": {"epoch": 1}, "metrics": {"train": [(1, "loss", name, {})]}}
    refuse_flags("holds a meter", extra_state=extra_state)


@pytest.mark.parametrize("kind", [Namespace, dict])
def test_files_of_the_start_are_forgotten(kind, save_checkpoint):
    files = {"encoder_embed_path": "a", "decoder_embed_path": "b", "pretrained_checkpoint": "c", "base_model": "d"}
    model = kind(**{"_name": "transformer", "dropout": 0.1, **files})
    config = checkpoint_utils.load_checkpoint_to_cpu(save_checkpoint(cfg={"model": model}))["cfg"]
    forget_start(config)
    found = config.model
    assert found.dropout == 0.1 and [getattr(found, name) for name in files] == [None] * len(files)
