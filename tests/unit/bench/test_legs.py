"""Part d of ``make bench``: which frames and which samples of processes it counts."""

import contextlib

import pandas as pd

from bench import legs
from keyshift.experiment.spec import make_spec


def test_a_burst_is_measured_from_its_load_and_not_from_when_it_was_asked_for(monkeypatch, tmp_path):
    class Subject(contextlib.nullcontext):
        """Its generators need five seconds until they are ready."""

        def __init__(self, *given, trace):
            super().__init__(self)

        def burst(self, seconds, began=lambda start_s: None):
            began(105.0)

    class Sampler(contextlib.nullcontext):
        """Whatever it samples is busy for as many hundredths of a core as the time is; Kafka for a tenth more."""

        def __init__(self, around):
            super().__init__(self)
            cores = {"driver": ("harness_cores", 0), "kafka": ("harness_cores", 0.1), "spark_jvm": ("cpu_cores", 0)}
            self.rows = [
                (float(at_s), metric, name, at_s / 100 + more)
                for at_s in range(100, 115)
                for name, (metric, more) in cores.items()
            ]
            self.rows += [(109.0, "rss_mib", "spark_jvm", 512.0), (109.0, "machine_cores", "all", 2.0)]

    due_us = pd.Series(range(100, 115)) * 1_000_000
    passed = pd.DataFrame({column: due_us for leg in legs.LEGS.values() for column in leg})
    passed["sent_us"] = due_us + pd.Series(range(15)) * 1000
    monkeypatch.setattr(legs, "Subject", Subject)
    monkeypatch.setattr(legs, "Sampler", Sampler)
    monkeypatch.setattr(legs, "moments", lambda folder: passed)
    measured = {row.measure: row.keyshift for row in legs.measure(None, None, make_spec({}), tmp_path, 8.0)}
    assert measured["due -> sent, P50"] == [10.0], "of seconds 107 to 113"
    cpu = {name.removeprefix("CPU of "): round(share, 6) for name, [share] in measured.items() if "CPU" in name}
    busy = 109.5  # the mean of samples that begin at 107 or later, and end at 111 at the latest
    assert cpu == {"driver": busy, "kafka": busy + 10, "spark_jvm": busy, "all but the driver": 2 * busy + 10}
