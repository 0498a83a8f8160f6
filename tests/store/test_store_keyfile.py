"""The key of an installation: made once, private, the same for everyone who starts at once."""

import base64
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from tidegate.engine.checkpoint import StoreError
from tidegate.store import keyfile
from tidegate.store.keyfile import Keys, load_or_create

SECRET = bytes(range(100, 132))

posix = pytest.mark.skipif(os.name != "posix", reason="modes are a POSIX idea")


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(SECRET).decode(),
        base64.b64encode(SECRET).decode().rstrip("="),
        base64.urlsafe_b64encode(SECRET).decode(),
        SECRET.hex(),
        SECRET.hex().upper(),
        f"  {SECRET.hex()}\n",
    ],
    ids=["base64", "base64 without padding", "base64url", "hex", "HEX", "with white space"],
)
def test_one_secret_in_any_spelling_is_one_key(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    assert load_or_create(path) == Keys.of(SECRET)
    assert load_or_create(tmp_path / "unused", text) == Keys.of(SECRET)
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("hunter2!", "neither base64 nor hex"),
        ("c2hvcnQ=", "5 bytes are too few"),
        (SECRET.hex()[:-2], "31 bytes are too few"),
        (SECRET.hex() + "0", "cut short"),
        ("ключ" * 20, "neither base64 nor hex"),
        ("x" * 45, "cut short"),
        (SECRET.hex() + "\n" + SECRET.hex(), "neither base64 nor hex"),
    ],
)
def test_what_is_no_key_is_refused_by_name_and_not_shown(tmp_path: Path, text: str, cause: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    for given, source in ((None, str(path)), (text, "the store key")):
        with pytest.raises(StoreError, match=cause) as caught:
            load_or_create(path, given)
        assert source in str(caught.value)
        assert "at least 32 random bytes in base64 or hex" in str(caught.value)
        assert text not in str(caught.value)
    assert path.read_text() == text


def test_an_empty_variable_is_no_variable(tmp_path: Path) -> None:
    assert load_or_create(tmp_path / "key", "  ") == load_or_create(tmp_path / "key")


def test_an_empty_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyfile, "_BEGUN_SECONDS", 0.05)
    path = tmp_path / "key"
    path.touch(0o600)
    with pytest.raises(StoreError, match="is empty"):
        load_or_create(path)


def test_the_first_start_makes_the_key_and_later_ones_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "key"
    made = load_or_create(path)
    assert load_or_create(path) == made
    assert made.hash_key != made.seal_key
    assert load_or_create(tmp_path / "other") != made
    assert [p.name for p in path.parent.iterdir()] == ["key"]


@posix
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_key_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "folder" / "key"
    before = os.umask(umask)
    try:
        load_or_create(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666])
def test_a_key_that_others_get_at_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    load_or_create(path)
    path.chmod(mode)
    with pytest.raises(StoreError, match=f"chmod 600 {path}"):
        load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("place", ["folder", "below a file"])
def test_an_impossible_place_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    path = tmp_path if place == "folder" else tmp_path / "file" / "key"
    with pytest.raises(StoreError, match="key file "):
        load_or_create(path)


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    made = load_or_create(tmp_path / "key")
    assert load_or_create(tmp_path / "key") == made
    assert [p.name for p in tmp_path.iterdir()] == ["key"]


def _start(path: Path, gate: object, out: object) -> None:
    gate.wait()  # type: ignore[attr-defined]
    keys = load_or_create(path)
    out.put(keys.hash_key + keys.seal_key)  # type: ignore[attr-defined]


@posix
def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    gate, out = context.Barrier(6), context.Queue()
    workers = [context.Process(target=_start, args=(tmp_path / "key", gate, out)) for _ in range(6)]
    for worker in workers:
        worker.start()
    seen = {out.get(timeout=20) for _ in workers}
    for worker in workers:
        worker.join(20)
    assert len(seen) == 1


def test_keys_are_not_shown() -> None:
    assert repr(Keys.of(SECRET)) == "Keys()"
