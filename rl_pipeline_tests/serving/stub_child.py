"""Behaves as the model server does towards its gateway, and needs no second to start. Fails without its directory."""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        content = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}}]})
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, *_: object) -> None:
        pass


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    assert Path(sys.argv[sys.argv.index("--model") + 1]).is_dir()
    threading.Thread(target=_end_with_input, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    sys.stdout.write(f"ready {server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
