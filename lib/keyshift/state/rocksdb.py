"""State in RocksDB: larger than memory. A database for each slot and process, which ends with it.

A key is the number of its state and the key itself, so that a state is a range: an export reads it in order, a large
arrival comes as sorted files, and a state that nobody needs is one deletion of a range. Nothing is logged ahead: what a
process leaves behind when it is killed is of no use, since its job goes on from a snapshot of all slots.
"""

import errno
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
from pydantic import Field

from keyshift.folders import MIB, own_folder
from keyshift.model.errors import BadInput, Damaged, ServiceUnavailable
from keyshift.state.cached import CachedStore
from keyshift.state.settings import Settings
from keyshift.state.table import Changes, Table

_FILE_BYTES = 1 << 20  # an arrival of more bytes than that comes as a sorted file
_PREFIX = struct.Struct(">I")
_SIGN = 1 << 63  # turned around, so that keys are sorted as bytes, too


class RocksSettings(Settings):
    """The settings of RocksDB in each slot."""

    state_folder: str = Field(
        default="",
        description="folder for the databases of slots; empty: beside the run's temporary files, in pods in the "
        "system's folder for such",
    )
    state_cache_mib: int = Field(
        default=128, ge=1, le=1 << 20, description="MiB of values that a slot keeps in Python, beside RocksDB's memory"
    )
    block_cache_mib: int = Field(default=32, ge=1, le=1 << 20, description="MiB of blocks that RocksDB keeps per slot")
    write_buffer_mib: int = Field(
        default=16, ge=1, le=1 << 12, description="MiB of changes that RocksDB gathers per slot, up to three times"
    )


class _Range(NamedTuple):
    """Where a state is. ``view``: an iterator, which sees what was there when it was made. None: as it is now.

    (The iterators of rocksdict's snapshots see what is there now.)
    """

    prefix: bytes
    view: Any = None


def open_store(slot: str, schema: pa.Schema, settings: RocksSettings) -> CachedStore:
    """A store of ``rocksdb``. Raises ServiceUnavailable if the folder cannot be written to."""
    return CachedStore(RocksTable(settings), schema, settings.state_cache_mib * MIB, through=False)


class RocksTable(Table):
    """See ``Table``. Raises ServiceUnavailable if the folder cannot be written to."""

    def __init__(self, settings: RocksSettings) -> None:
        import rocksdict  # not at the top: a library of ten megabytes that other backends do not need

        super().__init__()
        self._rocks = rocksdict
        self._options = _options(settings)
        self._folder, self._in_use = _new_folder(Path(settings.state_folder or tempfile.gettempdir()))
        try:
            self.db = rocksdict.Rdict(str(self._folder / "db"), self._options)
        except Exception as error:  # what rocksdict raises has no name of its own
            raise ServiceUnavailable(f"no database can be made in {self._folder}: {error}") from error
        unlogged: Any = rocksdict.WriteOptions()
        unlogged.disable_wal = True
        self.db.set_write_options(unlogged)
        self._numbers, self._files = count(1), count()

    def close(self) -> None:  # noqa: D102
        # What rocksdict raises has no name of its own: it is closed already, or the run has removed its folder.
        with self.lock, suppress(Exception):
            self.db.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._in_use.close()

    def region(self, unit: int) -> _Range:  # noqa: D102
        return _Range(_PREFIX.pack(next(self._numbers)))

    def copied_region(self, region: _Range) -> _Range:  # noqa: D102
        return region._replace(view=self.db.iter())

    def exchange(  # noqa: D102
        self, written: list[tuple[_Range, Changes]], wanted: list[tuple[_Range, list[int]]]
    ) -> list[Sequence[bytes | None]]:
        if written:
            batch = self._rocks.WriteBatch(raw_mode=True)
            for (prefix, _), changes in written:
                for key, value in changes.items():
                    if value is None:
                        batch.delete(_name(prefix, key))
                    else:
                        batch.put(_name(prefix, key), value)
            self.db.write(batch)
        if len(wanted) == 1 and wanted[0][0].view is not None:
            [(region, keys)] = wanted
            found = {key: data for first in keys for key, data in islice(self._from(region, first), 1)}
            return [[found.get(key) for key in keys]]
        together: Any = self.db.get([_name(region.prefix, key) for region, keys in wanted for key in keys])
        values = iter(together)
        return [[next(values) for _ in keys] for _, keys in wanted]

    def scan(self, region: _Range) -> Iterator[tuple[int, bytes]]:  # noqa: D102
        return self._from(region, -_SIGN)

    def _from(self, region: _Range, key: int) -> Iterator[tuple[int, bytes]]:
        found = region.view or self.db.iter()
        found.seek(_name(region.prefix, key))
        while found.valid() and (name := found.key()).startswith(region.prefix):
            yield _key(name), found.value()
            found.next()
        try:
            found.status()  # what cannot be read is an end, too
        except Exception as error:  # what rocksdict raises has no name of its own
            raise Damaged(f"the database in {self._folder} cannot be read: {error}") from error

    def fill(self, region: _Range, parts: Iterable[tuple[list[int], list[bytes]]]) -> None:  # noqa: D102
        for keys, values in parts:
            if sum(map(len, values)) < _FILE_BYTES:
                self.exchange([(region, dict(zip(keys, values, strict=True)))], [])
                continue
            path = str(self._folder / f"{next(self._files)}.sst")
            writer = self._rocks.SstFileWriter(self._options)
            writer.open(path)
            for key, value in sorted(zip(keys, values, strict=True)):
                writer[_name(region.prefix, key)] = value
            writer.finish()
            moved = self._rocks.IngestExternalFileOptions()
            moved.set_move_files(True)
            self.db.ingest_external_file([path], moved)

    def drop(self, regions: list[_Range]) -> None:  # noqa: D102
        # In a batch: the method of the database also deletes whole files, whoever has a snapshot of them.
        batch = self._rocks.WriteBatch(raw_mode=True)
        for region in regions:
            if region.view is None:
                (number,) = _PREFIX.unpack(region.prefix)
                batch.delete_range(region.prefix, _PREFIX.pack(number + 1))
        self.db.write(batch)


@contextmanager
def served(settings: RocksSettings, job: str, folder: Path | None) -> Iterator[RocksSettings]:
    """Put the databases into a folder of the run, if slots are on this machine: workers end without closing them.

    If the user names one, it is below that. Raises ServiceUnavailable if that cannot be written to.
    """
    if folder is None:
        yield settings
    elif not settings.state_folder:
        yield settings.model_copy(update={"state_folder": str(folder)})  # it goes when Spark has ended
    else:
        of_run, in_use = _new_folder(Path(settings.state_folder).absolute())
        with in_use:
            try:
                yield settings.model_copy(update={"state_folder": str(of_run)})
            finally:
                shutil.rmtree(of_run, ignore_errors=True)


def require(settings: RocksSettings, here: bool) -> None:
    """Refuse a folder that a run cannot use: BadInput, one line. ``here``: slots are on this machine."""
    if here and settings.state_folder:
        within = Path(settings.state_folder)
        try:
            if not os.access(_parent(within), os.R_OK | os.W_OK | os.X_OK):
                raise _unusable(within, os.strerror(errno.EACCES))
        except ServiceUnavailable as error:
            raise BadInput(str(error)) from error


def _name(prefix: bytes, key: int) -> bytes:
    return prefix + (key + _SIGN).to_bytes(8, "big")


def _key(name: bytes) -> int:
    return int.from_bytes(name[_PREFIX.size :], "big") - _SIGN


def _options(settings: RocksSettings) -> Any:
    """Options by which memory is that of the settings, and little else: filters and indexes are in the cache, too."""
    import rocksdict

    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(settings.block_cache_mib * MIB))
    blocks.set_bloom_filter(10, False)
    blocks.set_block_size(16 << 10)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(settings.write_buffer_mib * MIB)
    options.set_max_write_buffer_number(3)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_max_background_jobs(2)
    options.set_max_open_files(256)
    options.set_keep_log_file_num(1)
    return options


def _new_folder(within: Path) -> tuple[Path, IO[str]]:
    """A folder of this process, and the file whose lock says that the process lives: those of dead ones are removed.

    ``within`` may be a folder that everybody writes to: what is used of it is ours alone.
    """
    parent = _parent(within)
    try:
        return own_folder(parent)
    except OSError as error:
        raise _unusable(within, error.strerror) from error


def _parent(within: Path) -> Path:
    """The folder in ``within`` that is this user's alone."""
    parent = within / f"keyshift-state-{os.getuid()}"
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = parent.lstat()
    except OSError as error:
        raise _unusable(within, error.strerror) from error
    others = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or others:
        raise ServiceUnavailable(
            f"state_folder = {str(within)!r}: {parent.name} in it is not a folder of this user alone; remove it, "
            "or name another folder"
        )
    return parent


def _unusable(within: Path, why: str | None) -> ServiceUnavailable:
    return ServiceUnavailable(f"state_folder = {str(within)!r}: {why}; name a folder that can be written to")
