"""Answers are the model's, whoever asks at the same time; limits and hostile requests end in a status and one line."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection

import pytest
from binarised_data import copy_data
from paths import SMALL_MODELS

import fairseq_plugins
from fairseq_plugins.options import UserError

pytest.importorskip("fastapi")
from fairseq_plugins.serving.server import Limits, ModelServer, listen, make_runner  # noqa: E402

LIMITS = {"lines": 8, "characters": 60, "body": 2000, "waiting": 30, "seconds": 20, "batch": 64, "tokens": 200_000}


def load(name, data, folder):
    folder = copy_data(SMALL_MODELS / "data" / data, folder)
    (folder / "text.json").write_text('{"tokenizer": "moses", "language": "en", "case": "lower tokens"}\n')
    return fairseq_plugins.load(SMALL_MODELS / f"{name}.pt", folder)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return load("lstm_encdec_doc", "translation", tmp_path_factory.mktemp("pairs") / "data")


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    return load("lstm_lm_doc", "lm", tmp_path_factory.mktemp("text") / "data")


@contextmanager
def running(model, **limits):
    """A server in a thread, with its ``port``."""
    with listen("127.0.0.1", 0) as listening:
        server = ModelServer(model, name="tiny", limits=Limits(**{**LIMITS, **limits}))
        server.port = listening.getsockname()[1]
        runner = make_runner(server)
        thread = threading.Thread(target=runner.run, args=([listening],))
        thread.start()
        try:
            yield server
        finally:
            runner.should_exit = True
            thread.join(60)


def ask(server, path, body=None, method=None, **headers):
    """Status, answer and headers of a request. A body is bytes, a tuple of chunks, or sent as JSON."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    content = body if body is None or isinstance(body, (bytes, tuple)) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers}
    connection.request(method or ("GET" if body is None else "POST"), path, content, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, json.loads(content), answer.headers


def test_answers_of_many_clients_are_those_of_the_model_alone(translator):
    letters = "achiklbd"
    lines = [[" ".join(letters[: 1 + (i + j) % 8]) for j in range(1 + i % 3)] for i in range(12)]
    with running(translator) as server:
        sizes, work = [], server.batcher._work
        server.batcher._work = lambda lines, options: sizes.append(len(lines)) or work(lines, options)
        bodies = [{"lines": some, "beam": 2 + i % 2, "nbest": 2} for i, some in enumerate(lines)]
        with ThreadPoolExecutor(12) as clients:
            answers = list(clients.map(lambda body: ask(server, "/translate", body), bodies))
    for body, (status, found, _) in zip(bodies, answers):
        assert status == 200 and [one["source"] for one in found["translations"]] == body["lines"]
        for line, one in zip(body["lines"], found["translations"]):
            (alone,) = translator.translate([line], beam=body["beam"], nbest=2)
            for found_one, expected in zip(one["hypotheses"], [alone, *alone.others], strict=True):
                assert (found_one["text"], found_one["tokens"]) == (expected.text, expected.target)
                assert found_one["score"] == pytest.approx(expected.score, rel=1e-5)
                assert list(map(tuple, found_one["alignment"])) == expected.alignment
    assert sum(sizes) == sum(map(len, lines)) and max(sizes) > 3


def test_an_answer_does_not_wait_for_acknowledgements():
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        with listening.accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_scores_and_continuations_are_those_of_the_model(language_model):
    lines = ["The dog eats .", "", "the cat"]
    with running(language_model) as server:
        for context in ("line", "document"):
            status, found, _ = ask(server, "/score", {"lines": lines, "context": context})
            assert status == 200
            for one, expected in zip(found["scores"], language_model.score(lines, context=context), strict=True):
                assert (one["text"], one["tokens"]) == (expected.text, expected.tokens)
                assert one["nats"] == pytest.approx(expected.nats, rel=1e-5)
        options = {"num": 2, "seed": 3, "temperature": 0.8, "top_k": 9, "top_p": 0.9, "max_length": 5}
        status, found, _ = ask(server, "/generate", {"lines": lines, **options})
        expected = [language_model.continuations(line, **options) for line in lines]
        assert status == 200
        assert [[one["text"] for one in texts] for texts in found["continuations"]] == [
            [one.text for one in texts] for texts in expected
        ]
        health = {"model": "tiny", "kind": "language model", "version": fairseq_plugins.__version__}
        assert ask(server, "/health")[:2] == (200, health)


DEEP, LONG = b"[" * 1900, b'{"lines": ["a"], "beam": %s}' % (b"9" * 1900)


@pytest.mark.parametrize(
    "body, status, told",
    [
        (b"{", 400, "no JSON"),
        (b'{"lines": ["\xff"]}', 400, "as JSON in UTF-8"),
        (DEEP, 400, "JSON"),
        (LONG, 422, "beam: "),
        (b'{"lines": ["a"], "beam": NaN}', 422, "beam: "),
        (b'{"lines": ["a"], "beam": 1e999}', 422, "beam: "),
        (b'{"lines": ["\\ud800"]}', 422, "line 1 has half a character"),
        (b'{"lines": ["a"], "\\ud800": 1}', 422, "the body"),
        ([], 422, "the body"),
        ({}, 422, "lines: "),
        ({"lines": []}, 422, "lines: "),
        ({"lines": "a"}, 422, "lines: "),
        ({"lines": ["a", 5]}, 422, "lines.1: "),
        ({"lines": ["a"], "beem": 5}, 422, "beem: "),
        ({"lines": ["a"], "beam": True}, 422, "beam: "),
        ({"lines": ["a"], "beam": 2, "nbest": 3}, 422, "give a larger beam"),
        ({"lines": ["a"] * 9}, 422, "9 lines: a request has up to 8"),
        ({"lines": ["a", "b" * 61]}, 422, "line 2 has 61 characters: give up to 60"),
        ({"lines": ["a\nb"]}, 422, "line 1 has a line break"),
        (b'{"lines": ["%s"]}' % (b"a" * 2000), 413, "more than 2,000 bytes"),
        ((b'{"lines": ["', *[b"a" * 500] * 9, b'"]}'), 413, "more than 2,000 bytes"),
    ],
)
def test_a_wrong_body_is_refused_in_a_line(body, status, told, shared):
    found, answer, headers = ask(shared, "/translate", body)
    assert (found, list(answer)) == (status, ["error"]) and told in answer["error"]
    assert headers["Content-Type"] == "application/json" and "/" not in answer["error"].replace("application/json", "")
    assert ask(shared, "/translate", {"lines": ["a"]})[0] == 200


@pytest.fixture(scope="module")
def shared(translator):
    with running(translator) as server:
        yield server


def test_no_request_asks_for_too_many_tokens(translator, language_model):
    with running(translator, tokens=1100) as server:
        told = "lines, beam ask for up to 1,255 tokens: a request has up to 1,100"
        assert ask(server, "/translate", {"lines": ["a"], "beam": 5})[:2] == (422, {"error": told})
        assert ask(server, "/translate", {"lines": ["a"], "beam": 4})[0] == 200
    with running(language_model, tokens=1000) as server:
        told = "lines, num and max_length ask for up to 1,200 tokens: a request has up to 1,000"
        request = {"lines": ["a", "b"], "num": 6}
        assert ask(server, "/generate", request)[:2] == (422, {"error": told})


@pytest.mark.parametrize("path, status", [("/", 200), ("/health", 200), ("/translate", 405), ("/nothing", 404)])
def test_head_is_get_without_a_body(path, status, shared):
    connection = HTTPConnection("127.0.0.1", shared.port, timeout=30)
    found = []
    for method in ("HEAD", "GET"):
        connection.request(method, path)
        answer = connection.getresponse()
        found.append((answer.status, answer.getheader("Content-Length"), answer.read()))
    assert found[0] == (*found[1][:2], b"") and found[0][0] == status and found[1][2]
    connection.close()


@pytest.mark.parametrize("path, method, status", [("/score", "POST", 404), ("/translate", "DELETE", 405)])
def test_an_unknown_address_names_the_others(path, method, status, shared):
    found, answer, _ = ask(shared, path, {"lines": ["a"]}, method)
    assert found == status and "POST /translate" in answer["error"]


def test_errors_of_the_model(translator, monkeypatch, caplog):
    with running(translator) as server:
        for error, status, told in (
            (UserError("line 1 has 99 subwords"), 422, "line 1 has 99 subwords"),
            (RuntimeError("/home/secret"), 500, "a fault of the server, which its log describes"),
        ):
            monkeypatch.setattr(translator, "translate", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
            assert ask(server, "/translate", {"lines": ["a"]})[:2] == (status, {"error": told})
    assert "/home/secret" in caplog.text


@pytest.fixture
def held(translator, monkeypatch):
    """An event that translations wait for, and the lines whose translation has begun."""
    go_on, translate, seen = threading.Event(), translator.translate, []

    def slow(lines, **options):
        seen.extend(lines)
        assert go_on.wait(20)
        return translate(lines, **options)

    monkeypatch.setattr(translator, "translate", slow)
    return go_on, seen


def test_too_many_and_too_slow(translator, held):
    """With room for one that waits, others come back later. An answer that is late is not waited for."""
    go_on, seen = held
    with running(translator, waiting=1, seconds=1.5) as server, ThreadPoolExecutor(2) as clients:
        first = clients.submit(ask, server, "/translate", {"lines": ["a"]})
        while not seen:
            time.sleep(0.01)
        second = clients.submit(ask, server, "/translate", {"lines": ["b"]})
        while not server.batcher._jobs:
            time.sleep(0.01)
        status, answer, headers = ask(server, "/translate", {"lines": ["c"]})
        assert (status, headers["Retry-After"]) == (503, "1") and "requests that wait: 1; try again" in answer["error"]
        assert ask(server, "/health")[0] == 200
        assert [one.result()[0] for one in (first, second)] == [504, 504]
        go_on.set()
        assert ask(server, "/translate", {"lines": ["d"]})[0] == 200
    assert seen == ["a", "d"]


def test_requests_of_clients_that_have_left_are_dropped(translator, held):
    go_on, seen = held
    with running(translator, waiting=2) as server, ThreadPoolExecutor(2) as clients:
        first = clients.submit(ask, server, "/translate", {"lines": ["a"]})
        while not seen:
            time.sleep(0.01)
        body = b'{"lines": ["b"]}'
        head = f"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", server.port)) as leaving:
                leaving.sendall(f"{head}\r\n\r\n".encode() + body)
                while not any(not job.answer.cancelled() for job in server.batcher._jobs):
                    time.sleep(0.01)
            while any(not job.answer.cancelled() for job in server.batcher._jobs):
                time.sleep(0.01)
        last = clients.submit(ask, server, "/translate", {"lines": ["c"]})
        time.sleep(0.2)
        go_on.set()
        assert [one.result()[0] for one in (first, last)] == [200, 200]
    assert seen == ["a", "c"]


def test_an_overlong_line_is_refused_before_others_are_translated(translator, monkeypatch):
    monkeypatch.setattr(translator, "_translate_group", lambda *_, **__: pytest.fail("lines were translated"))
    with pytest.raises(UserError, match="the text: line 2 has 1,100 subwords, the model reads up to"):
        translator.translate(["a b", "a " * 1100])


def test_slow_clients_are_cut(translator):
    """Whether header or body comes byte by byte, or nothing at all. Others are answered meanwhile."""
    body = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    with running(translator, seconds=1) as server:
        header, silent, half = (socket.create_connection(("127.0.0.1", server.port)) for _ in range(3))
        half.sendall(body)
        ended = time.monotonic() + 10
        with header, silent, half:
            try:
                while time.monotonic() < ended:
                    header.sendall(b"G")
                    time.sleep(0.1)
            except OSError:
                pass
            assert time.monotonic() < ended - 5 and ask(server, "/health")[0] == 200
            half.settimeout(10)
            answer = half.makefile("rb").read()
            assert answer.startswith(b"HTTP/1.1 408 ") and b"did not come within 1 s" in answer
            silent.settimeout(10)
            with pytest.raises(ConnectionResetError):
                if not silent.recv(1):
                    raise ConnectionResetError


def test_clients_that_do_not_read_answers_are_cut(translator):
    with running(translator, seconds=1) as server, socket.create_connection(("127.0.0.1", server.port)) as deaf:
        deaf.settimeout(0.1)
        ended = time.monotonic() + 20
        with pytest.raises(ConnectionError):  # a cut connection takes no more requests
            while time.monotonic() < ended:
                with suppress(TimeoutError):
                    deaf.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 1000)
