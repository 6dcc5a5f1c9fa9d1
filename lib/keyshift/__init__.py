"""keyshift: see, compare and invent ways of moving the state of a running job."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("keyshift")
except PackageNotFoundError:  # imported from a source tree that was never installed
    __version__ = "0+unknown"
