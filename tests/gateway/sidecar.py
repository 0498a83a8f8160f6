"""A compactor in a process: its first argument says what it does; it prints its port, then what it is shown."""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

MOOD = sys.argv[1]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        view = json.loads(self.rfile.read(int(self.headers["content-length"])))
        shown = {"path": self.path, "headers": dict(self.headers), "view": view}
        print(json.dumps(shown), flush=True)
        if self.path == "/wants":
            self.told({"wants": MOOD != "unwilling", "plans": MOOD == "plans"})
            return
        if self.path == "/plan":
            prompt = [{"role": "user", "content": "<transcript>FACT-00</transcript> Sum it up."}]
            self.told({"call": {"body": {"messages": prompt, "max_tokens": 200}, "keep": "kept"}})
            return
        if self.path == "/finish":
            self.told({"summary": f"NOTES {view['keep']} {view['reply']['finish']} {view['reply']['text']}"})
            return
        facts = [word for item in view["items"][: view["until"]] for word in json.dumps(item).split() if "FACT" in word]
        if MOOD == "slow":
            time.sleep(3)
        if MOOD == "crash":
            self.send_response(200)
            self.send_header("content-length", "500")
            self.end_headers()
            self.wfile.write(b'{"summ')
            return
        if MOOD == "error":
            self.send_response(500)
            self.end_headers()
            return
        if MOOD == "redirect":
            self.send_response(302)
            self.send_header("location", "http://127.0.0.1:9/")
            self.end_headers()
            return
        answers = {"nonsense": ["no"], "empty": {"summary": "  "}, "huge": {"summary": "word " * 100_000}}
        self.told(answers.get(MOOD, {"summary": f"NOTES {' '.join(facts)}", "input_tokens": 7, "output_tokens": 3}))

    def told(self, value: object) -> None:
        body = b"<html>" if MOOD == "no json" else json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
