"""What a user sets of a backend."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Nothing. A backend that has settings declares them in a subclass."""

    model_config = ConfigDict(extra="forbid", frozen=True)
