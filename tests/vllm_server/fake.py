"""A server that answers like vLLM's, for the faults that a real one cannot be made to show."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = {
    "model": "some/model", "dtype": "torch.float32", "max_model_len": 64, "logprobs_mode": "processed_logprobs",
}  # fmt: skip


class FakeServer:
    """What it says can be changed; what it was asked is kept."""

    def __init__(self, config) -> None:
        self.hf_config = config
        self.backend = "proa-files"
        self.version = "default"
        self.pages = None
        self.failures = 0
        """How often it will end the connection, when it is asked for its weights."""
        self.generated = []
        self.answers = []
        """Of each request in turn: the tokens, and whether the connection ends without an end."""
        self.ending = "length"
        self.refusals = []
        """Statuses with which the next requests are refused."""
        self.pushed = []
        self.largest_rank = 0
        self.adapters = []
        self.adapters_seen = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self):
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if fake.pages is not None:
                    return self._say(fake.pages, raw=True)
                if self.path.startswith("/server_info"):
                    config = {
                        "model_config": MODEL, "weight_transfer_config": fake.backend and {"backend": fake.backend},
                        "scheduler_config": {"max_num_seqs": 4}, "lora_config": {"max_lora_rank": fake.largest_rank},
                    }  # fmt: skip
                    return self._say({"vllm_config": config})
                if self.path == "/v1/models":
                    return self._say({"data": [{"id": name} for name in fake.adapters]})
                if self.path == "/weight_info" and fake.failures:
                    fake.failures -= 1
                    return None
                return self._say({"weight_version": fake.version} if self.path == "/weight_info" else {})

            def do_POST(self):
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                if self.path == "/inference/v1/generate":
                    return self._generate(content)
                if self.path == "/collective_rpc":
                    return self._say({"results": [fake.hf_config]})
                if self.path == "/v1/load_lora_adapter":
                    fake.adapters.append(content["lora_name"])
                    fake.adapters_seen.append(content)
                if self.path == "/v1/unload_lora_adapter":
                    fake.adapters.remove(content["lora_name"])
                if self.path == "/finish_weight_update":
                    fake.version = content["weight_version"]
                    fake.pushed.append(fake.version)
                return self._say({"success": True})

            def _say(self, content, *, raw=False):
                body = content.encode() if raw else json.dumps(content).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _generate(self, content):
                if fake.refusals:
                    self.send_error(fake.refusals.pop(0))
                    return
                fake.generated.append(content)
                tokens, is_cut = fake.answers.pop(0) if fake.answers else ([5] * 8, False)
                self.send_response(200)
                self.end_headers()
                for place, token in enumerate(tokens):
                    is_last = not is_cut and place == len(tokens) - 1
                    choice = {
                        "index": 0, "token_ids": [token], "finish_reason": fake.ending if is_last else None,
                        "logprobs": {"content": [{"token_id": token, "logprob": -1.0 - place}]},
                    }  # fmt: skip
                    self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
                if not is_cut:
                    self.wfile.write(b"data: [DONE]\n\n")

            def log_message(self, *arguments):
                pass

        return Handler
