"""A server that speaks the endpoints of vLLM's which the sampler uses, with a function of the seed for a model."""

import json
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from safetensors.torch import load_file

GENERATE = "/inference/v1/generate"


def completion(prompt, seed, limit, ends):
    """Tokens that a prompt and a seed decide; the last is an end token, unless the limit came first."""
    rng = random.Random(f"{prompt} {seed}")
    length = rng.randint(1, limit + 2)
    tokens = [rng.randrange(10, 300) for _ in range(min(length, limit))]
    return [*tokens[:-1], ends[0]] if ends and length <= limit else tokens


def logprob(token):
    return -token / 100 - 0.01


class FakeVLLM:
    """One server on a free port of this machine.

    Args:
        seconds: that an answer takes.
        config: changes to what /server_info says, by section.
    """

    def __init__(self, *, seconds=0.0, workers=1, **config):
        self.seconds, self.workers, self.dev_mode, self.scale_out = seconds, workers, True, True
        self.config = {
            "model_config": {"logprobs_mode": "processed_logprobs", "max_model_len": 64},
            "scheduler_config": {"max_num_seqs": 100},
            "weight_transfer_config": None,
            **config,
        }
        self.calls, self.asked, self.joined = [], [], []  # paths; bodies of GENERATE; init infos
        self.spoil = lambda choices: choices
        self.trouble = {}  # path -> status
        self.dies_after = None  # requests for completions
        self.uncleared = 0  # times that the cache is not reset
        self.lock = threading.Lock()
        self.restart()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def restart(self):
        """What a new process has forgotten."""
        self.dead, self.label, self.weights, self.paused = False, "default", {}, False
        self.updating = False

    def close(self):
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path, query, body):
        """(status, what is sent as JSON); None where the connection breaks."""
        if self.dead:
            return None
        with self.lock:
            self.calls.append(path)
        if path in self.trouble:
            return self.trouble[path], {"error": {"message": f"no {path}"}}
        if not self.dev_mode and path not in (GENERATE, "/health"):
            return 404, {"detail": "Not Found"}
        if path == GENERATE:
            return self.generate(body)
        return 200, getattr(self, path.strip("/").replace("/", "_"))(query, body)

    # ---- endpoints ----

    def health(self, query, body):
        return None

    def weight_info(self, query, body):
        return {"weight_version": self.label}

    def server_info(self, query, body):
        assert query == "config_format=json"
        return {"vllm_config": self.config}

    def get_world_size(self, query, body):
        return {"world_size": self.workers}

    def pause(self, query, body):
        assert query == "mode=wait"
        self.paused = True
        return {"status": "paused"}

    def resume(self, query, body):
        self.paused = False
        return {"status": "resumed"}

    def collective_rpc(self, query, body):
        assert self.paused
        assert body["method"] == "reload_weights"
        folder = Path(body["kwargs"]["weights_path"])
        files = sorted(folder.glob("*.safetensors"))
        assert (folder / "config.json").exists()
        self.weights = {name: tensor for file in files for name, tensor in load_file(file).items()}
        self.files = len(files)
        return {"results": [None]}

    def reset_prefix_cache(self, query, body):
        self.uncleared -= 1
        return {"success": self.uncleared < 0}

    def update_weight_version(self, query, body):
        self.label = body["new_version"]
        return {"success": True}

    def init_weight_transfer_engine(self, query, body):
        self.joined.append(body["init_info"])
        return {}

    def shutdown_weight_transfer_engine(self, query, body):
        return {}

    def start_weight_update(self, query, body):
        assert self.paused
        assert not self.updating
        self.updating, self.announced = True, []
        return {}

    def update_weights(self, query, body):
        assert self.updating
        info = body["update_info"]
        self.announced += list(zip(info["names"], info["dtype_names"], map(tuple, info["shapes"]), strict=True))
        return {}

    def finish_weight_update(self, query, body):
        self.updating = False
        return {}

    def generate(self, body):
        if not self.scale_out:
            return 403, {"error": {"message": "Scale-out endpoints are disabled."}}
        with self.lock:
            self.asked.append(body)
            if self.dies_after is not None and len(self.asked) > self.dies_after:
                self.dead = True
                return None
        time.sleep(self.seconds)
        assert not self.paused
        params = body["sampling_params"]
        choices = []
        for index in range(params["n"]):
            seed, limit = params["seed"] + index, params["max_tokens"]
            tokens = completion(body["token_ids"], seed, limit, params["stop_token_ids"])
            scored = [{"token_id": token, "logprob": logprob(token), "top_logprobs": []} for token in tokens]
            choices.append(
                {
                    "index": index,
                    "finish_reason": "stop",
                    "token_ids": tokens,
                    "logprobs": {"content": scored},
                    "weight_versions": [{"version": self.label, "start": 0, "end": len(tokens)}],
                }
            )
        return 200, {"choices": self.spoil(choices)}


def handler_of(fake):
    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            parts = urlsplit(self.path)
            answer = fake.answer(parts.path, parts.query, body)
            if answer is None:
                return
            status, content = answer
            text = b"" if content is None else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = answer

        def log_message(self, *_):
            pass

    return Handler
