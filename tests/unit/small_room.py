"""How much memory a thing takes: what lasts for days must not keep more and more."""

import gc
import sys
from types import FunctionType, ModuleType


def room_of(thing):
    """Bytes of the thing and of all that it has, but for code. What other languages keep for it does not count."""
    sizes, left = {}, [thing]
    while left:
        each = left.pop()
        if id(each) not in sizes and not isinstance(each, type | ModuleType | FunctionType):
            sizes[id(each)] = sys.getsizeof(each)
            left += gc.get_referents(each)
    return sum(sizes.values())
