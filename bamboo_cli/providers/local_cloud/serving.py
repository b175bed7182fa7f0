"""The little HTTP that the local cloud speaks, for its API and for its instances' metadata."""

import http.server
import socketserver
import sys


class Server(socketserver.ThreadingTCPServer):
    """Not http.server.HTTPServer, whose bind asks the resolver for a name and may hang."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no error; anything else goes to the log with its traceback."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Exchange(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 5.0
    """Seconds for a request to arrive."""

    def answer(self, status: int, body: bytes = b"", *, content_type: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Two polls a second and node are no story."""
