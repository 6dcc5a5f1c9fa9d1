"""Folders and files on this machine: the state folder, the cache, what is installed; locks, and room on the disk."""

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import platformdirs

from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable, service_errors
from keyshift.progress import Say
from keyshift.waiting import wait_until

MIB = 1024 * 1024
HOME, CACHE = "KEYSHIFT_HOME", "KEYSHIFT_CACHE"  # folders, in the environment
REMEDY = f"set {HOME} to another folder"
WORK = "keyshift-work"  # in the state folder; nobody else has a folder of this name, as we empty it
_LOCK = "in-use"
_PACKAGE = Path(__file__).parent


class Cancelled(Exception):
    """Ends a background thread that has noticed that whoever wanted its result no longer does."""


def state_folder(home: Path | None = None) -> Path:
    """The folder of data, logs and pid files: ``home``, else $KEYSHIFT_HOME, else the user's state folder.

    Raises BadInput as ``cache_folder``.
    """
    return _whole(HOME, home or os.environ.get(HOME), platformdirs.user_state_dir)


def cache_folder() -> Path:
    """The folder of what can be fetched or built again (jars, MinIO): $KEYSHIFT_CACHE, else the user's cache folder.

    Raises BadInput if it is below a home folder that is not known.
    """
    return _whole(CACHE, os.environ.get(CACHE), platformdirs.user_cache_dir)


def settle_folders() -> None:
    """Make folders that the environment names absolute: processes that are started from here may be in others.

    Raises BadInput as ``cache_folder``.
    """
    for name, folder in ((HOME, state_folder), (CACHE, cache_folder)):
        if os.environ.get(name):
            os.environ[name] = str(folder())


def _whole(variable: str, chosen: str | Path | None, usual: Callable[..., str]) -> Path:
    try:
        return Path(chosen or usual("keyshift", appauthor=False)).expanduser().resolve()
    except RuntimeError:
        told = f"{variable} = '{chosen or ''}': the home folder that it needs is not known; set it to a path from / on"
        raise BadInput(told) from None


def resource(name: str) -> Path:
    """A file of the repository's ``cluster`` folder: inside an installed package, else beside ``lib``."""
    for folder in (_PACKAGE / "cluster", _PACKAGE.parents[1] / "cluster"):
        if (folder / name).is_file():
            return folder / name
    raise KeyshiftError(f"the installation lacks cluster/{name}; install keyshift again")


def require_disk_space(folder: Path, needed_bytes: int, remedy: str) -> None:
    """Create ``folder`` and prove that it can be written to and has ``needed_bytes`` free.

    Raises ServiceUnavailable naming the folder, what is free, what is needed, and ``remedy``.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            pass
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ServiceUnavailable(f"cannot write to {folder}: {error.strerror or error}; {remedy}") from error
    if free < needed_bytes:
        raise ServiceUnavailable(
            f"the disk of {folder} is too full: {free // MIB} MiB ({free} bytes) free, "
            f"{needed_bytes // MIB} MiB needed; free some, or {remedy}"
        )


def write_whole(path: Path, text: str) -> None:
    """Write a private (0600) file so that a reader sees the old text or the new, never a part, also when the machine
    has gone down meanwhile; what is there when this returns stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)  # an interrupt may come when it has its own name already
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system can; the file itself is there
            os.fsync(folder)
    finally:
        os.close(folder)


def remove_whole(path: Path) -> None:
    """Remove a file of ``write_whole``, and what processes have left beside it that were killed while they wrote it."""
    for each in (path, *path.parent.glob(f".{path.name}.*")):
        each.unlink(missing_ok=True)


@contextmanager
def work_folder(home: Path, prefix: str) -> Iterator[Path]:
    """A folder of temporary files in the state folder ``home``, until the end. What a process has left there that was
    killed, the next one removes. Raises ServiceUnavailable if ``home`` cannot be written to.
    """
    require_disk_space(home, 0, REMEDY)  # makes it, for its user alone
    parent = home / WORK
    # A disk that is full may have a place for a file, and none for a folder.
    with service_errors(OSError, lambda error: f"cannot write to {home}: {error.strerror or error}; {REMEDY}"):
        parent.mkdir(mode=0o700, exist_ok=True)
        mine, in_use = own_folder(parent, prefix)
    with in_use:
        try:
            yield mine
        finally:
            shutil.rmtree(mine, ignore_errors=True)


def own_folder(parent: Path, prefix: str = "") -> tuple[Path, IO[str]]:
    """A folder of this process in ``parent``, and the file whose lock says that the process lives: folders there that
    are in nobody's use are removed. Raises OSError.

    The system gives the lock free however a process ends. No link is followed.
    """
    with _lock_file(parent) as entrance:
        fcntl.flock(entrance, fcntl.LOCK_EX)
        for folder in parent.iterdir():
            if folder.is_dir() and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)
        mine = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        in_use = _lock_file(mine)
        fcntl.flock(in_use, fcntl.LOCK_EX)
        return mine, in_use


def work_in_use(home: Path) -> list[Path]:
    """The folders of ``work_folder`` in ``home`` behind which there is a process. Raises OSError."""
    if not (parent := home / WORK).is_dir():
        return []
    with _lock_file(parent) as entrance:
        fcntl.flock(entrance, fcntl.LOCK_EX)
        return sorted(folder for folder in parent.iterdir() if folder.is_dir() and not _is_left(folder))


def _is_left(folder: Path) -> bool:
    """Whether nobody is behind a folder any more."""
    try:
        with _lock_file(folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def _lock_file(folder: Path) -> IO[str]:
    """Open the lock file of a folder. It is made if it is not there, and never through a link."""
    return open(folder / _LOCK, "a", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600))


@contextmanager
def locked(
    path: Path,
    what: str,
    say: Say,
    deadline_s: float,
    cancel: threading.Event | None = None,
    shared: bool = False,
) -> Iterator[None]:
    """Hold the lock file ``path``; others, also in other processes, wait. The system frees it if we die. ``shared``:
    those who hold it so as well do not wait.

    Raises ServiceUnavailable naming the holder after ``deadline_s`` (0: at once), or the path if it cannot be locked,
    Cancelled once ``cancel`` is set.
    """

    def reason(error: OSError) -> str:
        return f"cannot lock {path}: {error.strerror or error}; that takes write access, and a disk that has locks"

    with ExitStack() as stack:
        with service_errors(OSError, reason):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "a+"))
        told = False

        def ours() -> bool:
            nonlocal told
            with service_errors(OSError, reason), suppress(BlockingIOError):
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                return True
            if cancel is not None and cancel.is_set():
                raise Cancelled
            if not told:
                say(f"waiting for {what} in {_holder(file)}")
                told = True
            return False

        if not wait_until(ours, deadline_s):
            waited = f" after {deadline_s:.0f} s" if deadline_s else ""
            raise ServiceUnavailable(
                f"{what} is still busy in {_holder(file)}{waited}; let it finish or end it ({path})"
            )
        with suppress(OSError):  # on a full disk: the number is only for people
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), str(os.getpid()).encode())
        yield


def _holder(lock: IO[str]) -> str:
    lock.seek(0)
    return f"process {lock.read().strip() or '?'}"


def writing(path: Path) -> AbstractContextManager[None]:
    """Inside, a file or a folder that a user has named is written. Raises ServiceUnavailable, naming it, if that cannot
    be done, as on a full disk.
    """
    return service_errors(OSError, lambda error: f"{path} cannot be written: {error.strerror or error}")


def is_there(option: str, path: Path) -> bool:
    """Say whether something is at ``path``, of ``option``. Raises BadInput if nothing can be, or nobody may look."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # a name that is too long, or a folder that is not for us
        raise BadInput(f"{option} {path}: {error.strerror}; name another one") from None
    return True


def require_folder(option: str, path: Path) -> None:
    """Raise BadInput if there is no folder in which ``path``, of ``option``, could be made."""
    is_there(option, path)
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{option} {path}: its folder does not exist; make it first")
    if not os.access(path.absolute().parent, os.W_OK):
        raise BadInput(f"{option} {path}: you may not write into its folder; name another one")


def require_file(option: str, path: Path | None) -> None:
    """Raise BadInput if the file of ``option`` cannot be written at the end."""
    if path is None:
        return
    if not is_there(option, path):
        require_folder(option, path)
    elif path.is_dir():
        raise BadInput(f"{option} {path}: it is a folder; name a file")
    elif not os.access(path, os.W_OK):
        raise BadInput(f"{option} {path}: you may not write into it; name another file")
