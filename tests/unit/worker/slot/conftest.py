"""Small jobs, which end with their test."""

import pytest
from small_slots import SmallJob


@pytest.fixture
def make(monkeypatch):
    made = []

    def job(**config):
        made.append(SmallJob(monkeypatch, **config))
        return made[-1]

    yield job
    for each in made:
        each.close()
