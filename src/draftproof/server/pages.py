"""The pages for people, from the package's own data and nowhere else."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["page_routes"]

#: Every path there is, its file and its type. Files are read once, at the start: nothing
#: in a request's path can name one.
_PAGES = (("/", "index.html", "text/html; charset=utf-8"),)


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
