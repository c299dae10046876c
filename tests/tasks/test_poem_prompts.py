"""The command against a local server of chat completions that answers as each test says."""

import json
import re
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sgrpo_lightning.tasks import poem_prompts
from sgrpo_lightning.tasks.files import load_rows

KEY = "sk-a+secret"
POEMS = ["Rain on\nthe {roof}", "雪の夜\u2028e\u0301té ñ", "O \\ sea \U0001f30a"]


def completion(content, finish="stop", **message):
    return 200, {
        "choices": [{"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}]
    }


def error(status, message, code=None, **headers):
    return status, {"error": {"message": message, "type": "x", "param": None, "code": code}}, headers


def prompt_of(poem):
    return f"Write of {poem[:6]!r}, in ünrhymed lines."


def slowly(poem):
    """So that the command has ended long before the last of its poems."""
    time.sleep(0.01)
    return completion(prompt_of(poem))


class Server(ThreadingHTTPServer):
    """Counts how often each poem is asked; `script[poem]` holds the replies before the regular one."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.asked, self.script, self.requests, self.lock = Counter(), {}, [], threading.Lock()
        self.regular = lambda poem: completion(prompt_of(poem))

    def reply(self, headers, body):
        before, after = poem_prompts.TEMPLATE.split("{poem}")
        question = body["messages"][-1]["content"]
        poem = question.removeprefix(before).removesuffix(after)
        assert question == before + poem + after
        with self.lock:
            self.asked[poem] += 1
            self.requests.append((headers, body))
            script = self.script.get(poem)
            return script.pop(0) if script else self.regular(poem)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/chat/completions":
            self.server.asked[self.path] += 1
            status, body, *headers = error(404, "no such path")
        else:
            status, body, *headers = self.server.reply(dict(self.headers), json.loads(raw))
        if status is None:  # hangs up
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers[0] if headers else {}).items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def waits(monkeypatch):
    """How long each attempt waited, in seconds of the settings; nobody waits in truth."""
    waits, endpoint = [], poem_prompts.Endpoint

    class Event(threading.Event):
        def wait(self, timeout=None):
            waits.append(timeout)
            return self.is_set()

    monkeypatch.setattr(poem_prompts, "Endpoint", lambda *args: endpoint(*args, stopped=Event()))
    return waits


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def ask(server, tmp_path, capsys):
    """(poems, *arguments) -> exit code, rows written, stdout and stderr."""

    def run(poems, *arguments, column="poem"):
        data = tmp_path / "source.jsonl"
        data.write_text("".join(json.dumps({"id": i, column: poem}) + "\n" for i, poem in enumerate(poems)))
        out = tmp_path / "out" / "poems.jsonl"
        options = {"--data": data, "--out": out, "--base-url": server.url, "--model": "m"}
        code = poem_prompts.main([str(part) for pair in options.items() for part in pair] + [*map(str, arguments)])
        rows = [json.loads(line) for line in out.read_bytes().splitlines()] if out.exists() else []
        return code, rows, *capsys.readouterr()

    run.out = tmp_path / "out" / "poems.jsonl"
    return run


def pairs(rows):
    return {row["poem"]: row["prompt"] for row in rows}


# --- what is asked and written ---------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3, 20])
def test_writes_a_prompt_for_every_poem(ask, server, workers):
    poems = POEMS + [f"poem {i}" for i in range(15)]
    code, rows, out, err = ask(poems, "--workers", workers)
    assert (code, server.asked) == (0, Counter(poems))
    assert len(rows) == len(poems)
    assert pairs(rows) == {poem: prompt_of(poem) for poem in poems}
    assert {row["model"] for row in rows} == {"m"}
    assert len({row["key"] for row in rows}) == len(poems)
    assert "18 different poems in the column poem; 18 to ask" in out
    assert "error" not in err


def test_what_is_sent(ask, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    ask(POEMS[:1], "--model", "some/model")
    [(headers, body)] = server.requests
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert headers["Content-Type"] == "application/json"
    assert "urllib" not in headers["User-Agent"]
    assert set(body) == {"model", "messages"}
    assert body["model"] == "some/model"
    assert [message["role"] for message in body["messages"]] == ["user"]


def test_without_a_key_none_is_sent(ask, server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert ask(POEMS)[0] == 0
    assert all("Authorization" not in headers for headers, _ in server.requests)


def test_the_file_is_data_for_a_task(ask):
    ask(POEMS)
    rows = load_rows(str(ask.out), columns=("prompt", "poem"))
    assert {row["poem"]: row["prompt"] for row in rows} == {poem: prompt_of(poem) for poem in POEMS}


def test_a_line_is_there_as_soon_as_its_answer_is(ask, server):
    """The server answers a poem only once the one before it stands in the file."""

    def regular(poem):
        deadline = time.monotonic() + 10
        while (lines := ask.out.read_bytes().count(b"\n")) < int(poem) and time.monotonic() < deadline:
            time.sleep(0.001)
        return completion(f"{lines} lines")

    server.regular = regular
    assert pairs(ask(map(str, range(5)), "--workers", 1)[1]) == {str(i): f"{i} lines" for i in range(5)}


def test_a_lone_surrogate_in_an_answer_ends_nothing(ask, server):
    server.script["a"] = [(200, json.dumps(completion("x\ud800y")[1]).encode())]
    assert pairs(ask(["a", "b"])[1]) == {"a": "x?y", "b": prompt_of("b")}


def test_the_template_asks_for_the_instruction_alone():
    assert poem_prompts.TEMPLATE.count("{poem}") == 1
    for word in ("theme", "form", "Quote no line", "title", "author", "request alone"):
        assert word in poem_prompts.TEMPLATE


# --- the cache -------------------------------------------------------------------------------------------------


def test_nothing_is_asked_twice(ask, server):
    poems = [f"poem {i}" for i in range(6)]
    ask(poems[:4])
    code, rows, out, _ = ask(poems)
    assert (code, server.asked) == (0, Counter(poems))
    assert [row["poem"] for row in rows[4:]] in (poems[4:], poems[:3:-1])
    assert "6 different poems in the column poem; 2 to ask" in out
    assert "also has" not in out
    assert ask(poems)[0] == 0
    assert server.asked == Counter(poems)


@pytest.mark.parametrize("kept", [0, 1, 5, 9, 30, -2, -1])
def test_a_half_written_last_line_is_asked_again(ask, server, kept):
    ask(POEMS)
    lines = ask.out.read_bytes().splitlines(keepends=True)
    lost = json.loads(lines[-1])["poem"]
    ask.out.write_bytes(b"".join(lines[:-1]) + lines[-1][:kept])
    assert pairs(ask(POEMS)[1]) == {poem: prompt_of(poem) for poem in POEMS}
    assert server.asked == Counter([*POEMS, lost])


def test_a_line_cut_within_a_character(ask, server):
    ask(["雪"])
    whole = ask.out.read_bytes()
    ask.out.write_bytes(whole[: whole.index("雪".encode()) + 1])
    assert pairs(ask(["雪"])[1]) == {"雪": prompt_of("雪")}


def test_identical_poems_are_asked_once_and_blank_ones_not_at_all(ask, server):
    _, rows, *_ = ask(["a", "b", "a", " \n", "", None, "a "])
    assert server.asked == Counter(["a", "b", "a "])
    assert len(rows) == 3


def test_another_model_or_template_is_asked_anew(ask, server, monkeypatch):
    ask(["a"])
    _, rows, out, _ = ask(["a"], "--model", "other")
    assert [row["model"] for row in rows] == ["m", "other"]
    assert "also has 1 prompts of other poems, another model or another template" in out
    monkeypatch.setattr(poem_prompts, "TEMPLATE", "Why? {poem}")
    _, rows, out, _ = ask(["a"])
    assert len({row["key"] for row in rows}) == 3
    assert "also has 2 prompts" in out


def test_the_limit_counts_different_poems_from_the_first(ask, server):
    poems = ["a", "a", "b", "c", "d"]
    ask(poems, "--limit", 2)
    assert server.asked == Counter("ab")
    _, _, out, _ = ask(poems, "--limit", 3)
    assert server.asked == Counter("abc")
    assert "1 to ask" in out
    assert "also has" not in ask(poems, "--limit", 1)[2]


@pytest.mark.parametrize(
    "text", ['{"poem": "mine"}\n', '{"poem": "mine"}', '["key"]\n', "3\n", "\n", '{"key": "a"}\nnot json\n', "note"]
)
def test_a_file_of_others_is_left_as_it_is(ask, server, text):
    ask.out.parent.mkdir()
    ask.out.write_text(text)
    code = poem_prompts.main(["--data", "nowhere.jsonl", "--out", str(ask.out)])
    assert (code, ask.out.read_text()) == (1, text)


# --- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
def test_a_busy_or_broken_server_is_asked_again(ask, server, waits, status):
    server.script["a"] = [error(status, "overloaded")] * 2
    code, rows, *_ = ask(["a", "b"], "--retries", 2)
    assert (code, pairs(rows)) == (0, {poem: prompt_of(poem) for poem in "ab"})
    assert server.asked == Counter({"a": 3, "b": 1})


def test_the_wait_doubles_up_to_a_bound(ask, server, waits, monkeypatch):
    monkeypatch.setattr(poem_prompts, "BACKOFF", 0.5)
    monkeypatch.setattr(poem_prompts, "LONGEST_WAIT", 3.0)
    server.script["a"] = [error(500, "")] * 5
    assert ask(["a"], "--retries", 5)[0] == 0
    assert waits == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("said", "wait"), [("7", 7.0), ("0", 0.0), ("999", 60.0), ("Fri, 1 Jan 2027", 1.0), ("-1", 1.0)]
)
def test_the_server_says_how_long_to_wait(ask, server, waits, said, wait):
    server.script["a"] = [error(429, "slow down", Retry_After=said)]
    assert ask(["a"])[0] == 0
    assert waits == [0.0, wait]


def test_the_waits_are_real(ask, server, monkeypatch):
    """Without the stand-in of the other tests."""
    monkeypatch.setattr(poem_prompts, "BACKOFF", 0.01)
    server.script["a"] = [error(503, "later"), (None, b"")]
    assert ask(["a"])[0] == 0
    assert server.asked["a"] == 3


def test_a_poem_that_keeps_failing_is_counted_and_asked_by_the_next_run(ask, server, waits):
    server.script["a"] = [error(500, "brok\nen")] * 3
    code, rows, _, err = ask(["a", "b"], "--retries", 2)
    assert (code, pairs(rows)) == (1, {"b": prompt_of("b")})
    assert f"1 of 2 poems failed; run it again to ask them: 1 x {server.url} answered 500: brok en" in err
    code, rows, *_ = ask(["a", "b"], "--retries", 2)
    assert (code, len(rows), server.asked) == (0, 2, Counter({"a": 4, "b": 1}))


def test_without_retries_each_poem_is_asked_once(ask, server, waits):
    server.script["a"] = [error(500, "broken")]
    assert ask(["a"], "--retries", 0)[0] == 1
    assert server.asked["a"] == 1


def test_a_silent_server_is_asked_again(ask, server, waits, monkeypatch):
    monkeypatch.setattr(poem_prompts, "TIMEOUT", 0.5)
    silent = threading.Event()

    def regular(poem):
        silent.wait(5) if server.asked[poem] == 1 else silent.set()
        return completion("x")

    server.lock = threading.Semaphore(9)  # lets the second request in beside the first
    server.regular = regular
    assert ask(["a"])[0] == 0
    assert server.asked["a"] >= 2


def test_an_absent_server_is_named(ask, server, waits):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        code, rows, _, err = ask(["a"], "--base-url", url, "--retries", 3)
    assert (code, rows, len(waits)) == (1, [], 4)
    assert f"1 x {url}: " in err
    assert "refused" in err


def test_many_failures_in_a_row_end_the_command(ask, server, waits, monkeypatch):
    monkeypatch.setattr(poem_prompts, "GIVE_UP", 3)
    server.regular = lambda poem: slowly(poem) and error(500, "down")
    code, _, _, err = ask([f"poem {i}" for i in range(200)], "--workers", 1, "--retries", 0)
    assert code == 1
    assert "3 poems in a row failed, the last with: " in err
    assert "answered 500: down" in err
    assert len(server.asked) < 100


def test_scattered_failures_do_not(ask, server, waits, monkeypatch):
    monkeypatch.setattr(poem_prompts, "GIVE_UP", 6)
    poems = [str(i) for i in range(20)]
    server.regular = lambda poem: error(500, "down") if slowly(poem) and int(poem) % 2 else completion("x")
    code, rows, _, err = ask(poems, "--workers", 1, "--retries", 0)
    assert (code, len(rows)) == (1, 10)
    assert "10 of 20 poems failed" in err


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (error(401, f"Incorrect key: {KEY}"), "answered 401: Incorrect key: *** (set OPENAI_API_KEY to a valid key)"),
        (error(404, "no such model"), "answered 404: no such model (check --base-url and --model)"),
        (error(400, "bad request", "invalid_value"), "answered 400: bad request"),
        (error(429, "no money", "insufficient_quota"), "answered 429: no money"),
        ((403, b"<html>\n blocked\xff" + b"x" * 900), "answered 403: <html> blocked"),
        ((422, {"detail": [{"msg": "missing"}]}), "answered 422: {'detail': [{'msg': 'missing'}]}"),
        ((400, {"error": "plain"}), 'answered 400: {"error": "plain"}'),
    ],
)
def test_an_error_of_all_poems_ends_the_command(ask, server, waits, monkeypatch, reply, expected):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    poems = [f"poem {i}" for i in range(200)]
    server.script, server.regular = {poems[2]: [reply]}, slowly
    code, rows, _, err = ask(poems, "--workers", 1)
    assert code == 1
    [line] = re.findall("error: .*", err)
    assert line.startswith(f"error: {server.url} {expected}")
    assert len(line) < 450
    assert server.asked[poems[2]] == 1
    assert len(server.asked) < 100
    assert len(rows) == len(server.asked) - 1  # what was under way is written


@pytest.mark.parametrize("code", ["content_filter", "invalid_prompt", "context_length_exceeded"])
def test_an_error_of_one_poem_does_not(ask, server, waits, code):
    server.script["a"] = [error(400, "flagged", code)]
    code, rows, _, err = ask(["a", "b", "c"])
    assert (code, sorted(pairs(rows))) == (1, ["b", "c"])
    assert "1 of 3 poems failed" in err
    assert "answered 400: flagged" in err
    assert server.asked["a"] == 1


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (completion(""), "empty answer"),
        (completion(None), "empty answer"),
        (completion(' \n" "'), "empty answer"),
        (completion(None, refusal="I must not"), "refused"),
        (completion("Write", finish="content_filter"), "refused"),
        (completion("Write a", finish="length"), "the answer is cut at the server's limit of tokens"),
        ((200, {"choices": []}), "the reply is no chat completion"),
        ((200, {"choices": [{"message": None}]}), "the reply is no chat completion"),
        ((200, [1]), "the reply is no chat completion"),
        ((200, b"<html>"), "the reply is no chat completion"),
        (completion([{"type": "text"}]), "the reply is no chat completion"),
    ],
)
def test_no_answer_is_a_failure_of_its_poem(ask, server, waits, reply, reason):
    server.script = {"a": [reply], "c": [reply]}
    code, rows, _, err = ask(["a", "b", "c"])
    assert (code, pairs(rows)) == (1, {"b": prompt_of("b")})
    assert f"2 of 3 poems failed; run it again to ask them: 2 x {reason}\n" in err
    assert set(server.asked.values()) == {1}


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        ("  Write.\n", "Write."),
        ('"Write."', "Write."),
        ("\n\u201c Write. \u201d ", "Write."),
        ("\u2018Write.\u2019", "Write."),
        ("'Write.'", "Write."),
        ('Write of "home"', 'Write of "home"'),
        ('"Home" is the theme; end on "away"', '"Home" is the theme; end on "away"'),
        ("<think>a</think>\n\nWrite.", "Write."),
        ("Write.\n\nIn rhyme.", "Write.\n\nIn rhyme."),
    ],
)
def test_what_is_kept_of_an_answer(content, prompt):
    assert poem_prompts.read_reply(json.dumps(completion(content)[1]).encode()) == prompt


def test_the_key_appears_nowhere(ask, server, waits, monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.script = {"a": [error(500, f"{KEY} is tired")] * 9, "b": [completion("")]}
    _, _, *shown = ask(["a", "b", "c"], "--retries", 1)
    server.script = {"b": [error(403, f"key {KEY}")]}
    _, _, *more = ask(["a", "b", "c"])
    assert "*** is tired" in shown[1]
    assert "key ***" in more[1]
    written = [path.read_text() for path in tmp_path.rglob("*.jsonl")]
    assert not [text for text in [*shown, *more, *written] if KEY in text]


@pytest.mark.parametrize("key", ["sk-a\nb-secret", "sk-\u201csecret\u201d"])
def test_a_broken_key_is_not_shown_either(ask, server, monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    code, _, out, err = ask(["a"])
    assert (code, server.asked) == (1, Counter())
    assert "OPENAI_API_KEY has characters that no key has" in err
    assert "secret" not in out + err


def test_the_key_does_not_follow_a_redirection(ask, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with Server() as other:
        threading.Thread(target=other.serve_forever, args=(0.01,)).start()
        taken = []
        monkeypatch.setattr(
            Handler, "do_GET", lambda handler: (taken.append(dict(handler.headers)), handler.send_error(404))
        )
        server.script["a"] = [(302, b"", {"Location": other.url})]
        code, *_ = ask(["a"])
        other.shutdown()
    assert (code, len(taken)) == (1, 1)
    assert KEY not in str(taken)


def test_an_interruption_keeps_what_there_is(ask, server, monkeypatch):
    real = poem_prompts.as_completed

    def interrupted(futures):
        for count, future in enumerate(real(futures)):
            if count == 3:
                raise KeyboardInterrupt
            yield future

    monkeypatch.setattr(poem_prompts, "as_completed", interrupted)
    server.regular = slowly
    poems = [f"poem {i}" for i in range(300)]
    code, rows, _, err = ask(poems, "--workers", 1)
    assert (code, len(rows)) == (1, 3)
    assert "stopped; run the command again to go on" in err
    assert len(server.asked) < 100


# --- settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["poem", "content", "text"])
def test_the_column_is_found(ask, server, column):
    _, rows, out, _ = ask(["a"], column=column)
    assert pairs(rows) == {"a": prompt_of("a")}
    assert f"in the column {column};" in out


def test_the_columns_are_tried_in_order(tmp_path):
    data = tmp_path / "a.jsonl"
    data.write_text('{"text": "t", "content": "c", "title": "x"}\n')
    assert poem_prompts.read_poems(str(data), split="train", column=None) == ("content", ["c"])
    assert poem_prompts.read_poems(str(data), split="train", column="title") == ("title", ["x"])


@pytest.mark.parametrize(("arguments", "wanted"), [([], "poem or content or text"), (["--column", "verse"], "verse")])
def test_an_unknown_column_lists_those_there_are(ask, server, arguments, wanted):
    code, _, _, err = ask(["a"], *arguments, column="body")
    assert (code, server.asked) == (1, Counter())
    assert re.search(rf"error: --data \S+: no column {wanted}; choose a --column of \['id', 'body'\]\n", err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "--workers must be >= 1, got 0"),
        (["--limit", "0"], "--limit must be >= 1, got 0"),
        (["--retries", "-1"], "--retries must be >= 0, got -1"),
        (["--out", "poems.json"], "--out must end in .jsonl, got poems.json"),
        (["--base-url", "localhost:8000"], "--base-url must start with http:// or https://, got localhost:8000"),
        (["--data", "nowhere.jsonl"], "--data nowhere.jsonl: no such file"),
        (["--split", "test"], "no split 'test'; there are train"),
    ],
)
def test_a_bad_setting_is_one_line(ask, server, arguments, message):
    code, rows, _, err = ask(["a"], *arguments)
    assert (code, rows, server.asked) == (1, [], Counter())
    [line] = [line for line in err.splitlines() if "error" in line]
    assert line.startswith("error: ")
    assert message in line


def test_a_base_url_may_end_in_a_slash(ask, server):
    assert ask(["a"], "--base-url", server.url + "/")[0] == 0
