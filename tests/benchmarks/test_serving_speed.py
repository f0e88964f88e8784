"""Requests to a server are timed, and none is lost."""

import json

import pytest
from benchmark import main
from binarised_data import copy_data
from paths import SMALL_MODELS
from printed_tables import rows_of

from fairseq_plugins.evaluation.export import export_model

pytest.importorskip("fastapi")
from serving import BENCHMARK  # noqa: E402


@pytest.mark.slow  # the server is a process of its own
def test_clients_are_timed_by_turns(tmp_path, capsys):
    record = dict(tokenizer="moses", language="en", case="kept")
    folder = copy_data(SMALL_MODELS / "data/translation", tmp_path / "data", **record)
    export_model([SMALL_MODELS / "lstm_encdec_doc.pt"], data=folder, out=tmp_path / "model", command="")
    (tmp_path / "text").write_text("a b c\nh i\n")
    typed = f"{tmp_path}/model --input {tmp_path}/text --requests 12 --clients 3 --cpu --out {tmp_path}/out --name x"
    main(BENCHMARK, typed.split())
    _, _, *rows = rows_of(capsys.readouterr().out.partition("\n\n")[0])
    figures = json.loads((tmp_path / "out/serving_cpu_x.json").read_text())
    assert [row[0] for row in rows] == list(figures["by_clients"]) == ["1", "3"]
    assert (figures["num_requests"], figures["num_different"]) == (12, 0)
    assert all(one["requests_per_second"] > 0 for one in figures["by_clients"].values())
