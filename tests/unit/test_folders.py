import errno
import os
import stat

import pytest

from keyshift import folders
from keyshift.control.files import Jobs
from keyshift.folders import require_file, require_folder, work_folder, write_whole
from keyshift.model.errors import BadInput, ServiceUnavailable


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_anybody_goes_on(tmp_path, monkeypatch):
    did, sync, replace = [], os.fsync, os.replace

    def synced(handle):
        found = os.fstat(handle)
        did.append("folder" if stat.S_ISDIR(found.st_mode) else f"file of {found.st_size} bytes")
        sync(handle)

    monkeypatch.setattr(folders.os, "fsync", synced)
    monkeypatch.setattr(folders.os, "replace", lambda *names: did.append("name") or replace(*names))
    file = tmp_path / "new" / "file"
    for text in ("four", "again"):
        write_whole(file, text)
        assert did == [f"file of {len(text)} bytes", "name", "folder"]
        did.clear()
        assert (file.read_text(), file.stat().st_mode & 0o777) == (text, 0o600)
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_cannot_be_written_is_as_it_was(tmp_path, monkeypatch):
    write_whole(tmp_path / "file", "old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folders.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "file", "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.usefixtures("ascii_locale")
def test_a_file_is_the_same_in_every_locale(tmp_path):
    write_whole(tmp_path / "file", "Größe")
    assert (tmp_path / "file").read_bytes() == "Größe".encode()


def test_an_interrupt_that_comes_as_a_file_gets_its_name_is_not_lost(tmp_path, monkeypatch):
    replace = os.replace

    def interrupted(*names):
        replace(*names)
        raise KeyboardInterrupt

    monkeypatch.setattr(folders.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "file", "text")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["text"]


def test_a_folder_that_cannot_be_synced_is_no_reason_to_fail(tmp_path, monkeypatch):
    sync = os.fsync

    def some(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(handle)

    monkeypatch.setattr(folders.os, "fsync", some)
    write_whole(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"


def test_temporary_files_go_at_the_end_and_those_of_a_process_that_was_killed_with_the_next_one(tmp_path):
    left = tmp_path / "keyshift-work" / "spark-left"
    left.mkdir(parents=True)
    (left / "in-use").touch()
    with work_folder(tmp_path, "spark-") as first:
        (first / "results.parquet").touch()
        assert not left.exists(), "nobody has it any more"
        with work_folder(tmp_path, "peer-") as second:
            assert first.exists() and (first.name[:6], second.name[:5]) == ("spark-", "peer-")
        assert first.exists() and not second.exists()
    assert [path.name for path in left.parent.iterdir() if path.is_dir()] == []


def test_a_disk_without_a_place_for_temporary_files_is_told_in_words(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folders.tempfile, "mkdtemp", full)
    with pytest.raises(ServiceUnavailable, match=rf"^cannot write to {tmp_path}: No space left on device; set "):
        work_folder(tmp_path, "run-").__enter__()


@pytest.mark.parametrize("use", [lambda home: work_folder(home, "spark-"), lambda home: Jobs(home).naming()])
def test_a_state_folder_is_for_its_user_alone_whatever_makes_it(tmp_path, use):
    before = os.umask(0o022)
    try:
        with use(tmp_path / "home"):
            assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
    (tmp_path / "file").touch()
    refused = pytest.raises(ServiceUnavailable, match=r"^cannot write to .*; set KEYSHIFT_HOME")
    with refused, use(tmp_path / "file" / "in"):
        pytest.fail("it was made")


def test_a_file_that_could_not_be_written_at_the_end_is_refused_at_the_beginning(tmp_path, monkeypatch):
    (tmp_path / "old").write_text("")
    for file in (None, tmp_path / "new", tmp_path / "old"):
        require_file("--out", file)
    wrong = [(tmp_path, "it is a folder"), (tmp_path / "nowhere" / "new", "its folder does not exist")]
    for file, why in (*wrong, (tmp_path / ("long" * 64), "File name too long; name another one")):
        with pytest.raises(BadInput, match=f"^--out {file}: {why}"):
            require_file("--out", file)
    for use in (require_file, require_folder):
        with pytest.raises(BadInput, match=r"^-o /.*/xxx+: File name too long; name another one$"):
            use("-o", tmp_path / ("x" * 300))
    forbidden = [tmp_path]
    monkeypatch.setattr(folders.os, "access", lambda path, mode: path not in forbidden)
    require_file("--out", tmp_path / "old")
    with pytest.raises(BadInput, match=f"^--out {tmp_path / 'new'}: you may not write into its folder"):
        require_file("--out", tmp_path / "new")
    with pytest.raises(BadInput, match=f"^--output {tmp_path / 'new'}: you may not write into its folder"):
        require_folder("--output", tmp_path / "new")
    for long in (tmp_path / ("long" * 64), tmp_path / ("long" * 64) / "new"):
        with pytest.raises(BadInput, match=f"^--output {long}: File name too long; name another one$"):
            require_folder("--output", long)
    forbidden[:] = [tmp_path / "old"]
    with pytest.raises(BadInput, match=f"^--out {tmp_path / 'old'}: you may not write into it"):
        require_file("--out", tmp_path / "old")
