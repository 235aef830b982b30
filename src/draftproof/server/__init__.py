"""A server that speaks OpenAI's API and says what speculation did.

Needs the extra ``server``. One thread owns the engine and steps it; the front is
asynchronous and never waits for a pass.
"""

from draftproof.server.app import Service, create_app
from draftproof.server.log import RequestLog
from draftproof.server.run import serve
from draftproof.server.settings import ServerConfig

__all__ = ["RequestLog", "ServerConfig", "Service", "create_app", "serve"]
