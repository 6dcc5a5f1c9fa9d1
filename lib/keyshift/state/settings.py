"""What a user sets of a backend."""

from typing import Self

from pydantic import BaseModel, ConfigDict, PrivateAttr


class Settings(BaseModel):
    """No settings. A backend that has some declares them in a subclass.

    ``secret``: what slots need beside them, such as a password. It is in no result, no log and no ``repr``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    _secret: str = PrivateAttr(default="")

    @property
    def secret(self) -> str:
        """Empty unless ``with_secret`` gave one."""
        return self._secret

    def in_place(self, redis: str) -> Self:
        """The settings where ``redis`` is the address of a Redis server for state; empty: where there is none."""
        return self

    def with_secret(self, secret: str) -> Self:
        """The same settings with this secret."""
        other = self.model_copy()
        other._secret = secret
        return other
