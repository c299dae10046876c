"""Prompts for poems: `python -m sgrpo_lightning.tasks.poem_prompts --out poems.jsonl`.

A chat model is asked which instruction each poem answers; the pairs are what `task=poetry task.data=poems.jsonl`
reads (paper, appendix B.3). Any endpoint that speaks OpenAI's chat completions will do. Its key is read from
OPENAI_API_KEY; a local server needs none. The file is also the cache: each answer is appended as it arrives, and a
command that was stopped goes on from there when it is run again.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from sgrpo_lightning.tasks.files import load_rows

TEMPLATE = """\
Work backwards from the poem below. Someone typed a request, and a poet who followed it wrote this poem.
What did the request most likely say?

Write it in one to three sentences, as a person would type it. Let it name the theme and the mood, and the form as far
as the poem has one (length, stanzas, rhyme, metre, free verse). Quote no line of the poem, and give neither its title
nor its author. Answer with the request alone, without an introduction and without quotation marks.

The poem:

{poem}"""
COLUMNS = ("poem", "content", "text")
TIMEOUT = 120.0  # seconds that a server may be silent
BACKOFF, LONGEST_WAIT = 1.0, 60.0  # seconds before the second attempt, doubled after each, and the most
GIVE_UP = 25  # so many failures in a row are the server's, not the poems'
START = b'{"key": "'  # of every line of the file
OF_ONE_POEM = {"content_filter", "invalid_prompt", "context_length_exceeded"}  # error codes
HINTS = {401: " (set OPENAI_API_KEY to a valid key)", 404: " (check --base-url and --model)"}


class Failed(Exception):
    """One poem got no answer; the others may."""


@dataclass
class Endpoint:
    """A server of chat completions, over urllib: where no key is given, huggingface_hub would send it the hub token."""

    base_url: str
    model: str
    key: str
    retries: int
    stopped: threading.Event = field(default_factory=threading.Event)

    def ask(self, poem: str) -> str:
        """The instruction for `poem`; `Failed` if there is none, ValueError if the other poems would fare no better."""
        reason, wait = "stopped", 0.0
        for attempt in range(self.retries + 1):
            if self.stopped.wait(wait):
                break
            wait = min(BACKOFF * 2**attempt, LONGEST_WAIT)
            try:
                status, body, retry_after = self._post(poem)
            except (OSError, http.client.HTTPException) as error:
                reason = f"{self.base_url}: {error or type(error).__name__}"
                continue
            if status == 200:
                return read_reply(body)
            message, code = read_error(body)
            message = message.replace(self.key or "\0", "***")[:300]  # some servers repeat the key
            reason = f"{self.base_url} answered {status}: {message}"
            if code in OF_ONE_POEM:
                break
            if code == "insufficient_quota" or (status < 500 and status not in (408, 429)):
                raise ValueError(reason + HINTS.get(status, ""))
            if retry_after.isdecimal():
                wait = min(float(retry_after), LONGEST_WAIT)
        raise Failed(reason)

    def _post(self, poem: str) -> tuple[int, bytes, str]:
        """Status, body and Retry-After of the reply. No temperature is sent: some models accept only their own."""
        messages = [{"role": "user", "content": TEMPLATE.format(poem=poem)}]
        body = json.dumps({"model": self.model, "messages": messages}).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "sgrpo-lightning"}  # some refuse urllib's own
        request = urllib.request.Request(f"{self.base_url.rstrip('/')}/chat/completions", body, headers)
        if self.key:
            request.add_unredirected_header("Authorization", f"Bearer {self.key}")
        try:
            reply = urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            reply = error
        with reply:
            return reply.status, reply.read(), reply.headers.get("Retry-After", "")


def read_reply(body: bytes) -> str:
    """The instruction in a chat completion, without thinking and quotes around it; `Failed` if it is not whole."""
    try:
        choice = json.loads(body)["choices"][0]
        message, end = choice["message"], choice.get("finish_reason")
        text = (message.get("content") or "").rpartition("</think>")[2].strip()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Failed("the reply is no chat completion") from error
    pair = text[:1] + text[-1:]
    if pair in ('""', "''", "\u201c\u201d", "\u2018\u2019") and not set(pair) & set(text[1:-1]):
        text = text[1:-1].strip()
    if message.get("refusal") or end == "content_filter":
        raise Failed("refused")
    if not text or end == "length":
        raise Failed("the answer is cut at the server's limit of tokens" if end == "length" else "empty answer")
    return text


def read_error(body: bytes) -> tuple[str, str]:
    """(message in one line, code) of an error reply; of any other text all of it, and no code."""
    try:
        reply = json.loads(body)
        error = reply.get("error", reply)
        message, code = error.get("message", error), str(error.get("code"))
    except (ValueError, AttributeError):
        message, code = body.decode(errors="replace"), ""
    return " ".join(str(message).split()), code


def read_poems(data: str, *, split: str, column: str | None, subset: str | None = None) -> tuple[str, list[str]]:
    """The column's name, and its distinct poems in the order of the data."""
    rows = load_rows(data, split=split, subset=subset)
    wanted = [column] if column else COLUMNS
    found = next((name for name in wanted if name in rows.column_names), None)
    if found is None:
        raise ValueError(f"--data {data}: no column {' or '.join(wanted)}; choose a --column of {rows.column_names}")
    return found, list(dict.fromkeys(text for text in rows[found] if isinstance(text, str) and text.strip()))


def cache_key(poem: str, model: str) -> str:
    """Tells apart what was asked: the poem, the model and the template."""
    return hashlib.sha256("\0".join((TEMPLATE, model, poem)).encode()).hexdigest()[:24]


def read_cache(out: Path) -> set[str]:
    """The keys of the answers in the file; a half-written last line is cut off it."""
    whole, newline, rest = (out.read_bytes() if out.exists() else b"").rpartition(b"\n")
    try:
        keys = {json.loads(line)["key"] for line in whole.splitlines()}
        if rest[: len(START)] != START[: len(rest)]:
            raise ValueError
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"--out {out}: has a line that this command did not write; name another file") from None
    if rest:
        os.truncate(out, len(whole + newline))
    return keys


def fill(out: Path, poems: Sequence[str], endpoint: Endpoint, workers: int) -> Counter[str]:
    """Appends the poems' prompts to `out` as they arrive, and counts why others failed."""
    from rich.console import Console
    from rich.progress import track

    failures: Counter[str] = Counter()
    fatal, in_a_row = None, 0
    with ThreadPoolExecutor(workers) as pool, out.open("a", encoding="utf-8", errors="replace") as file:
        futures = {pool.submit(endpoint.ask, poem): poem for poem in poems}
        try:
            for future in track(as_completed(futures), "asking", len(poems), console=Console(stderr=True)):
                try:
                    prompt, poem, model = future.result(), futures[future], endpoint.model
                    row = {"key": cache_key(poem, model), "prompt": prompt, "poem": poem, "model": model}
                    print(json.dumps(row, ensure_ascii=False), file=file, flush=True)
                    in_a_row = 0
                except Failed as failure:
                    failures[str(failure)] += 1
                    in_a_row += 1
                    if in_a_row == GIVE_UP:
                        fatal = fatal or ValueError(f"{GIVE_UP} poems in a row failed, the last with: {failure}")
                except ValueError as error:
                    fatal = fatal or error
                if fatal:  # the answers under way are still written; the other poems are not asked
                    endpoint.stopped.set()
        finally:
            endpoint.stopped.set()
    if fatal:
        raise fatal
    return failures


def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0 once every poem has its prompt, else 1 and a line that says why not."""
    options = _options(argv)
    try:
        _run(options, os.environ.get("OPENAI_API_KEY", "").strip())
    except KeyboardInterrupt:
        print("stopped; run the command again to go on", file=sys.stderr)
    except (OSError, ValueError) as error:
        print("error:", *str(error).replace("task.data=", "--data ").split(), file=sys.stderr)
    else:
        return 0
    return 1


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    about, form = (__doc__ or "").partition("\n\n")[2], argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser("python -m sgrpo_lightning.tasks.poem_prompts", None, about, formatter_class=form)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the .jsonl file to write, or to go on with")
    add("--data", default="jnb666/poems", help="a file, a folder or a hub id")
    add("--subset", help="of a hub data set that has several")
    add("--split", default="train", help="which split of a folder or hub data set")
    add("--column", help=f"of the poems; None takes the first there is of {', '.join(COLUMNS)}")
    add("--model", default="gpt-5-instant", help="whom to ask")
    add("--base-url", default="https://api.openai.com/v1", help="where to ask")
    add("--workers", type=int, default=8, help="requests at a time")
    add("--limit", type=int, help="so many poems, the first; None takes all")
    add("--retries", type=int, default=5, help="after a busy, broken or absent server")
    return parser.parse_args(argv)


def _run(options: argparse.Namespace, key: str) -> None:
    _check(options, key)
    cached = read_cache(options.out)
    column, poems = read_poems(options.data, split=options.split, column=options.column, subset=options.subset)
    keys = {poem: cache_key(poem, options.model) for poem in poems}
    todo = [poem for poem in poems[: options.limit] if keys[poem] not in cached]
    print(f"{len(poems)} different poems in the column {column}; {len(todo)} to ask")
    if others := len(cached - set(keys.values())):
        print(f"{options.out} also has {others} prompts of other poems, another model or another template")
    if not todo:
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    endpoint = Endpoint(options.base_url, options.model, key, options.retries)
    failures = fill(options.out, todo, endpoint, options.workers)
    if failures:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in failures.most_common(3))
        raise ValueError(f"{failures.total()} of {len(todo)} poems failed; run it again to ask them: {reasons}")


def _check(options: argparse.Namespace, key: str) -> None:
    for name, least in {"workers": 1, "limit": 1, "retries": 0}.items():
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be >= {least}, got {value}")
    if options.out.suffix != ".jsonl":
        raise ValueError(f"--out must end in .jsonl, got {options.out}")
    if not options.base_url.startswith(("http://", "https://")):
        raise ValueError(f"--base-url must start with http:// or https://, got {options.base_url}")
    if not (key.isascii() and key.isprintable()):
        raise ValueError("OPENAI_API_KEY has characters that no key has")


if __name__ == "__main__":
    sys.exit(main())
