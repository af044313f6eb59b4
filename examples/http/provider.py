#!/usr/bin/python3
"""A payment provider to test against: counts what it is asked for, and can be
made to wait, so that a test decides what happens while a call is out.

POST /charges {"reference": ..., "amount": ...}: 402 above 5000; 500 for 500,
after charging all the same; for 501 a page that is no JSON; 429 the first time
that it is asked for 429; 201 otherwise.

On its own: provider.py PORT
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Provider:
    def __init__(self, port):
        self.port, self.asked = port, []
        self.gate = threading.Event()
        self.gate.set()
        self.open()

    def open(self):
        self.server = Server(("127.0.0.1", self.port), Handler)
        self.server.provider = self
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        """From now on connections are refused."""
        self.server.shutdown()
        self.server.server_close()

    def charge(self, reference, amount):
        first = reference not in self.asked
        self.asked.append(reference)
        self.gate.wait()
        if amount > 5000:
            return 402, {"error": "declined"}
        if amount == 500:
            return 500, {"error": "please try again"}
        if amount == 501:
            return 501, "<title>Not today</title>"
        if amount == 429 and first:
            return 429, {"error": "not so fast"}
        return 201, {"charge": f"ch_{len(self.asked)}"}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, document = self.server.provider.charge(**request)
        body = (document if isinstance(document, str) else json.dumps(document)).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            pass  # whoever asked has been killed

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    Provider(int(sys.argv[1]))
    threading.Event().wait()
