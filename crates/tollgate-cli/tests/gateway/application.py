"""An application on uvicorn and h11: it counts what it receives and answers with the target. Argument: the port."""

import json
import logging
import sys

import uvicorn

seen = {"requests": 0, "errors": 0}


class Errors(logging.Handler):
    """Counts the requests that h11 does not accept."""

    def emit(self, record):
        seen["errors"] += record.getMessage().startswith("Invalid HTTP request")


async def receive_body(receive):
    length = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        length += len(message.get("body", b""))
        if not message.get("more_body"):
            return length


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    target = scope["raw_path"]
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    fields = [(b"x-application", b"yes")]
    if target == b"/_seen":
        body, fields = json.dumps(seen).encode(), []
    else:
        # A body that does not end is no request.
        if await receive_body(receive) is None:
            return
        seen["requests"] += 1
        body = target
    fields.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": body})


logging.getLogger("uvicorn.error").addHandler(Errors())
uvicorn.run(
    app, host="127.0.0.1", port=int(sys.argv[1]), http="h11", lifespan="off", log_level="warning",
    timeout_keep_alive=60, server_header=False, date_header=False,
)
