"""The thumbs and stars of the Agent Zero plugin, in a real browser, beside stand-ins for Agent Zero's own modules.

As in Agent Zero's `messages.js`: after the messages are drawn, the default function of every JavaScript extension of
`set_messages_after_loop` is called with a context whose `results` hold, for each message, its `args` (`id`, `type`) and
the `element` that was drawn; bars of buttons have the class `step-action-buttons`, and are emptied to be drawn again.
"""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

import pytest

EXTENSION = files("rl_pipeline.collection.agent_zero") / "plugin/extensions/webui/set_messages_after_loop"
PAGES = {
    "/": (
        "text/html",
        "<div id=old><div class=step-action-buttons></div></div>"
        "<div id=new><div class=step-action-buttons></div></div>"
        "<div id=tool><div class=step-action-buttons></div></div>"
        "<script>globalThis.getContext = () => 'chat-1'; globalThis.calls = [];</script>",
    ),
    "/ratings.js": ("text/javascript", (EXTENSION / "rl_pipeline_feedback.js").read_text()),
    "/components/messages/action-buttons/simple-action-buttons.js": (
        "text/javascript",
        "export function createActionButton(icon, title, handler) {"
        "  const button = document.createElement('button'); button.title = title; button.className = `action-${icon}`;"
        "  button.onclick = handler; return button; }",
    ),
    "/js/api.js": (
        "text/javascript",
        "export async function callJsonApi(endpoint, data) { calls.push([endpoint, data]); return { ok: true }; }",
    ),
}
DRAW = """async () => {
  const { default: addRatings } = await import('/ratings.js');
  const element = (id) => document.getElementById(id);
  const drawn = (id, type) => ({ args: { id: `message-${id}`, type }, result: { element: element(id) } });
  await addRatings({ results: [drawn('old', 'response'), drawn('new', 'response'), drawn('tool', 'tool'), {}] });
}"""


@pytest.fixture
def url() -> Iterator[str]:
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, content = PAGES.get(self.path, ("text/plain", ""))
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.chromium
def test_answers_have_thumbs_and_stars_that_are_sent_with_their_message(url: str) -> None:
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
        page = browser.new_page()
        page.goto(url)
        page.evaluate(DRAW)
        page.evaluate(DRAW)  # drawn again: no second set of buttons
        page.evaluate("document.querySelector('#new .step-action-buttons').replaceChildren()")
        page.evaluate(DRAW)  # emptied: they are back
        assert [page.locator(f"#{place} button").count() for place in ("old", "new", "tool")] == [7, 7, 0]
        page.get_by_title("Good answer").first.click()
        page.locator("#new").get_by_title("4 stars").click()
        calls = json.loads(page.evaluate("JSON.stringify(calls)"))
        browser.close()
    told = {"context": "chat-1"}
    assert calls == [
        ["plugins/rl_pipeline/feedback", told | {"kind": "thumbs_up", "message_id": "message-old", "is_last": False}],
        [
            "plugins/rl_pipeline/feedback",
            told | {"kind": "stars", "rating": 4, "message_id": "message-new", "is_last": True},
        ],
    ]
