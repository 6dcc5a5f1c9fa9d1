"""Java takes Spark's classes from an archive if it can; if it cannot, it starts all the same, and nobody sees why."""

import runpy
import shlex
import subprocess
from unittest.mock import Mock

import pytest
from pyspark import SparkContext

from keyshift.driver.spark import archived_classes
from keyshift.model.errors import ServiceUnavailable
from keyshift.place import class_archive
from keyshift.services.jars import require_java


def archive(folder, content, size=None):
    made = folder / f"keyshift-classes-{len(content) if size is None else size}.jsa"
    made.write_bytes(content)
    return made


def test_a_whole_archive_is_named_and_one_that_was_cut_off_is_not(tmp_path):
    assert archived_classes(tmp_path) == ""
    archive(tmp_path, b"123", size=4)
    assert archived_classes(tmp_path) == ""
    whole = archive(tmp_path, b"123")
    assert shlex.split(archived_classes(tmp_path))[0] == f"-XX:SharedArchiveFile={whole}"


def test_java_starts_with_an_archive_that_is_none_and_prints_nothing(tmp_path):
    archive(tmp_path, b"no archive" * 1000)
    options = shlex.split(archived_classes(tmp_path))
    assert options
    started = subprocess.run([require_java(), *options, "--version"], capture_output=True, text=True, check=True)
    plain = subprocess.run([require_java(), "--version"], capture_output=True, text=True, check=True)
    assert len(started.stdout.splitlines()) == len(plain.stdout.splitlines()), started.stdout


@pytest.fixture
def written(monkeypatch):
    """Makes an archive without Spark, whose JVM writes this and ends with this status."""

    def make(folder, content, status=0):
        def session(master, jars, work, log, more):
            made = next(each for each in shlex.split(more["spark.driver.extraJavaOptions"]) if "ArchiveClasses" in each)
            if content is not None:
                archive = work.joinpath(made.partition("=")[2])
                archive.write_bytes(content)
                archive.chmod(0o400)  # all that Spark writes is private
            log.write_text("no space left\n")
            return Mock()

        monkeypatch.setattr(class_archive, "session", session)
        monkeypatch.setattr(class_archive, "dataflow", Mock())
        monkeypatch.setattr(class_archive, "wait_until", Mock())  # its query has worked
        monkeypatch.setattr(class_archive, "forget_jvm", Mock())
        monkeypatch.setattr(SparkContext, "_gateway", Mock(**{"proc.wait.return_value": status}))
        class_archive.make(folder)

    return make


def test_a_new_archive_takes_the_place_of_the_one_before(tmp_path, written):
    written(tmp_path, b"old")
    written(tmp_path, b"new one")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("keyshift-classes-7.jsa", b"new one")]
    written(tmp_path, b"another")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("keyshift-classes-7.jsa", b"another")]
    assert [each.stat().st_mode & 0o777 for each in tmp_path.iterdir()] == [0o644], "others may use it"


@pytest.mark.parametrize(("content", "status"), [(None, 0), (b"a part", 1)])
def test_an_archive_that_was_not_written_to_its_end_leaves_what_was_there(tmp_path, written, content, status):
    written(tmp_path, b"old")
    words = rf"wrote no archive of classes \(exit status {status}\):\nno space left"
    with pytest.raises(ServiceUnavailable, match=words):
        written(tmp_path, content, status)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("keyshift-classes-3.jsa", b"old")]


def test_whoever_calls_it_is_told_that_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="no archive of Spark's classes: JAVA_HOME="):
        runpy.run_path(class_archive.__file__, run_name="__main__")
