"""The pages for people, from the package's own data and nowhere else."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["PAGE_PATHS", "page_routes"]

_HTML = "text/html; charset=utf-8"
_CSS = "text/css; charset=utf-8"
_SCRIPT = "text/javascript; charset=utf-8"
#: Every path there is, its file and its type. Files are read once, at the start: nothing
#: in a request's path can name one.
_PAGES = (
    ("/", "index.html", _HTML),
    ("/models", "models.html", _HTML),
    ("/static/icon.svg", "icon.svg", "image/svg+xml"),
    *((f"/static/{name}.css", f"{name}.css", _CSS) for name in ("base", "playground", "models")),
    *(
        (f"/static/{name}.js", f"{name}.js", _SCRIPT)
        for name in (
            "api",
            "compare",
            "dom",
            "explain",
            "form",
            "models",
            "numbers",
            "playground",
            "text",
            "tokens",
        )
    ),
)
#: What may be read without a key: it holds nothing of this server.
PAGE_PATHS = frozenset(path for path, _, _ in _PAGES)


def page_routes() -> list[Route]:
    """Return the routes of the pages.

    Returns
    -------
    list of Route
        One per file.
    """
    folder = files("draftproof.server") / "static"
    return [_route(path, (folder / name).read_bytes(), kind) for path, name, kind in _PAGES]


def _route(path: str, body: bytes, kind: str) -> Route:
    async def page(_request: Request) -> Response:
        return Response(body, headers={"content-type": kind})

    return Route(path, page, methods=["GET"])
