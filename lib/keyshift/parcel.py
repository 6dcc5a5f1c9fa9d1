"""What was defined in a notebook's cell, on its way to other processes that work for the same user.

They find by its name what the library has. The rest goes along by value, with Spark's own pickler, as in what a query's
closures hold. Whoever unpacks a parcel runs its code: it comes from the process that has started this one, or from a
file that only its owner may write.
"""

import base64
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keyshift.model.errors import BadInput


def packed(thing: Any, defined_in: str, name: str) -> str:
    """``thing`` as a text, with the code of its module ``defined_in`` that it needs, unless that is of the library.

    Raises BadInput, with its ``name``, if something that it refers to cannot leave this process.
    """
    from pyspark import cloudpickle  # here: who only plans does not load Spark

    with _by_value(cloudpickle, defined_in):
        try:
            return base64.b64encode(cloudpickle.dumps(thing)).decode()
        except (TypeError, pickle.PicklingError) as error:
            raise BadInput(
                f"{name} cannot be sent to other processes: {error}; keep locks, files, connections and "
                "functools.cached_property out of it, and out of what it refers to"
            ) from None


def unpacked(parcel: str) -> Any:
    """Unpack what was ``packed``. Raises BadInput if a module that its code imports is not here, or is another one."""
    try:
        return pickle.loads(base64.b64decode(parcel))  # see above for where it is from
    except (ImportError, AttributeError) as error:
        raise BadInput(
            f"code of a notebook cannot be used here: {error}; name the folder of the module that it imports in "
            "PYTHONPATH"
        ) from None


@contextmanager
def _by_value(cloudpickle: Any, module: str) -> Iterator[None]:
    """Let the code of ``module`` go along, inside; that of a notebook's cells (``__main__``) does anyway."""
    if module == "__main__" or module.startswith("keyshift.") or module not in sys.modules:
        yield
        return
    cloudpickle.register_pickle_by_value(sys.modules[module])
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[module])
