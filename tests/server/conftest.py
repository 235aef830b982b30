"""A server over a table model: in this process, and on a port."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest

from draftproof.backends.table import FunctionTable, PagedStore, TableBackend, seeded_probs
from draftproof.build.grammars import lazy_constraints
from draftproof.engine import Engine, EngineCore, SchedulerConfig
from draftproof.errors import PromptError
from draftproof.proposers import NgramProposer, PredictionProposer, SuffixProposer
from draftproof.server import RequestLog, ServerConfig, Service, create_app
from draftproof.server.run import make_server

CHARACTERS = "\n" + "".join(map(chr, range(0x20, 0x7F)))
EOS = len(CHARACTERS)
#: The two bytes of one character, each a token of its own.
LEAD, TAIL = EOS + 1, EOS + 2
SPLIT_CHARACTER = "é"
VOCAB_SIZE = EOS + 3
#: The model's row after this character is NaN; it never writes it itself.
DEADLY = CHARACTERS.index("!")


def next_law(held):
    """Peaked and of order one, so that greedy text soon repeats itself."""
    law = seeded_probs(VOCAB_SIZE, held, seed=8, spread=6.0)
    law[DEADLY] = law[TAIL] = 0.0
    law[LEAD] = 0.1
    law[EOS] = 0.01
    if held[-1] == LEAD:
        law[:] = 0.0
        law[TAIL] = 1.0
    return law / law.sum()


class CharacterTokenizer:
    """One token per ASCII character, one per byte of é, and one that ends."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = frozenset({EOS})

    def encode(self, text, *, add_special=True):
        ids = []
        for char in text:
            if char == SPLIT_CHARACTER:
                ids += [LEAD, TAIL]
            elif char in CHARACTERS:
                ids.append(CHARACTERS.index(char))
            else:
                raise PromptError(f"character {char!r} is unknown; expected ASCII or é")
        return ids

    def encode_chat(self, messages):
        turns = [f"{turn['role']}: {turn['content']}\n" for turn in messages]
        return self.encode("".join(turns) + "assistant: ")

    def token_bytes(self, token_id):
        if token_id in (LEAD, TAIL):
            return SPLIT_CHARACTER.encode()[token_id - LEAD : token_id - LEAD + 1]
        return b"" if token_id == EOS else CHARACTERS[token_id].encode()

    def decode(self, token_ids):
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")


class GatedBackend(TableBackend):
    """A table whose passes can be held up, slowed down or made to raise."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.gate = threading.Event()
        self.gate.set()
        self.pass_s = 0.0

    def forward(self, batch):
        self.gate.wait(30)
        if self.pass_s:
            time.sleep(self.pass_s)
        return super().forward(batch)

    @property
    def usage(self):
        return self.store.cache.usage()


def make_engine(
    *, context_length=512, num_pages=512, kappa=0, max_rows=8, proposers=None, **options
):
    backend = GatedBackend(
        FunctionTable(VOCAB_SIZE, next_law, span=1),
        PagedStore(num_pages=num_pages),
        context_length=context_length,
        nan_after=[DEADLY],
    )
    tokenizer = CharacterTokenizer()
    core = EngineCore(
        backend,
        tokenizer=tokenizer,
        proposers=proposers
        or [NgramProposer(min_n=1, max_n=4), SuffixProposer(), PredictionProposer()],
        kappa=kappa,
        constraints=lazy_constraints(tokenizer, VOCAB_SIZE),
        scheduler=SchedulerConfig(max_rows=max_rows),
        **options,
    )
    return Engine(core)


class Kit:
    """A service, and what tests look at from outside."""

    def __init__(self, *, kappa=4, engine=None, max_rows=8, **config):
        self.engine = engine or make_engine(kappa=kappa, max_rows=max_rows)
        self.backend = self.engine.core.target
        self.lines = []
        self.config = ServerConfig(
            model_name="table", default_kappa=kappa, max_running=max_rows, port=0, **config
        )
        self.renew()

    def renew(self):
        """Put a new service in front of the engine: each lives once."""
        self.service = Service(self.engine, self.config, RequestLog(self.lines.append))
        self.app = create_app(self.service)
        self.has_lived = False

    @property
    def events(self):
        return [json.loads(line) for line in self.lines]

    def is_idle(self):
        usage = self.backend.usage
        return (
            self.service.worker.num_in_flight == 0
            and usage.num_sequences == 0
            and usage.held_pages == 0
            and not self.engine.core.has_work
        )

    def wait_idle(self, limit_s=20.0):
        wait_for(self.is_idle, limit_s)

    @asynccontextmanager
    async def client(self, **options):
        """An HTTP client of the app in this process."""
        if self.has_lived:
            self.renew()
        self.has_lived = True
        options.setdefault("base_url", "http://localhost")
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        async with (
            self.service.lifespan(self.app),
            httpx.AsyncClient(transport=transport, timeout=30, **options) as client,
        ):
            yield client

    def call(self, method, path, **options):
        """Send one request to a service that lives for it alone."""

        async def send():
            async with self.client() as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def post(self, path, **fields):
        return self.call("POST", path, json=fields)

    @contextmanager
    def listening(self):
        """The base URL of the service on a free port."""
        ready = threading.Event()
        ports = []

        def on_start(port):
            ports.append(port)
            ready.set()

        server = make_server(self.service, on_start)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        assert ready.wait(20)
        try:
            yield f"http://127.0.0.1:{ports[0]}"
        finally:
            self.backend.gate.set()
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def wait_for(condition, limit_s=20.0):
    """Wait until something holds; a test that waits in vain fails here."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def read_events(text):
    """Parse a stream of server-sent events; the last one must say so."""
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]", events[-1]
    return [json.loads(event) for event in events[:-1]]


@pytest.fixture(scope="session")
def kit_type():
    return Kit


@pytest.fixture
def kit():
    return Kit()


@pytest.fixture(scope="session")
def tools():
    """The names of this file that tests need."""
    from types import SimpleNamespace

    return SimpleNamespace(**globals())


@pytest.fixture(scope="module")
def live():
    """A service on a port that the tests of a module share."""
    kit = Kit()
    with kit.listening() as url:
        kit.url = url
        yield kit


CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser():
    """A Chromium without a window, found on the path or named by ``DRAFTPROOF_CHROMIUM``."""
    tool = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = os.environ.get("DRAFTPROOF_CHROMIUM") or next(
        filter(None, map(shutil.which, CHROMIUMS)), ""
    )
    if not found:
        pytest.skip("no Chromium was found; DRAFTPROOF_CHROMIUM names one")
    with tool.sync_playwright() as running:
        # The root user of a container has no namespaces for the sandbox.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = running.chromium.launch(executable_path=found, args=options)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser, live):
    """Open a path of the server; the console must stay empty, and nobody else be asked."""
    opened, seen = [], []

    def note_message(message):
        # That the server refused something is said there too, and is not the page's fault.
        if "the server responded with a status of 4" not in message.text:
            seen.append(message.text)

    def run(path="/", url=live.url, **options):
        def note_request(request):
            if not request.url.startswith((url, "data:")):
                seen.append(f"the page asked {request.url}")

        context = browser.new_context(**options)
        opened.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", note_message)
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", note_request)
        page.goto(url + path)
        return page

    yield run
    for context in opened:
        context.close()
    assert not seen
