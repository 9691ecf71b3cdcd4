"""Routes on Starlette, served by uvicorn: the body names the route. Argument: the port."""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route


def route(path, name):
    async def answer(request):
        return PlainTextResponse(f"<{name}>")

    return Route(path, answer)


app = Starlette(
    routes=[
        route("/login", "login"),
        route("/api/health", "health"),
        route("/api", "api"),
        route("/api/{rest:path}", "api"),
        route("/search", "search"),
        route("/search/{rest:path}", "search"),
        route("/pair/{a}/{b}", "pair"),
        route("/{rest:path}", "other"),
    ]
)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), http="h11", log_level="warning")
