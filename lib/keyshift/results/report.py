"""Runs as one HTML file that opens anywhere: an index of the runs, what they show together, and a part for each.

Texts and parameters have passed ``anonymous``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import FigureBase

from keyshift.analysis import metrics
from keyshift.analysis.conclusions import enumerated, sentences, tradeoff_sentences, verdict_sentences
from keyshift.analysis.machine import with_disturbed
from keyshift.analysis.plots.strategies import ccdf_figure, pareto, steps_gantt
from keyshift.analysis.plots.timelines import panels, resource_panels, throughput_panels
from keyshift.analysis.tables import MEASURES, RunTables, comparison_table, tradeoffs
from keyshift.analysis.timelines import faults, tail
from keyshift.results.alike import differing
from keyshift.results.anonymous import anonymous_all
from keyshift.results.manifest import COUNTS, Manifest
from keyshift.results.pages import page, svg, table
from keyshift.results.store import ResultStore, row_of

TemplateValues = dict[str, Any]  # what the template of the page shows of a run, or of several


def report(store: ResultStore, run_ids: Sequence[str]) -> str:
    """The HTML of these runs, in the order given. Raises BadInput for a run that is not there, or if none is given."""
    manifests = store.get_manifests(run_ids)
    runs = (_run(manifest, tables_of(store, manifest)) for manifest in manifests)
    return _page(manifests, runs, together=list(_together(manifests)))


def overview(manifests: Sequence[Manifest], links: Mapping[str, str]) -> str:
    """The index of these runs and what they show together. ``links``: the page with the figures of each run."""
    return _page(manifests, [], together=list(_together(manifests)), links=links)


def page_of(manifest: Manifest, tables: RunTables) -> str:
    """The page of one run, from its ``tables_of``."""
    return _page([manifest], [_run(manifest, tables)], together=[])


def tables_of(store: ResultStore, manifest: Manifest) -> RunTables:
    """Read what figures are drawn from; nothing of a run that died."""
    return store.get_tables(manifest.run_id) if manifest.summary else {}


def _page(
    manifests: Sequence[Manifest],
    runs: Iterable[TemplateValues],
    together: list[TemplateValues],
    links: Mapping[str, str] | None = None,
) -> str:
    """The page of these runs. ``links``: where the index leads to for each run; None: to its part of the same page."""
    links = links or {manifest.run_id: f"#{manifest.run_id}" for manifest in manifests}
    return page(
        "keyshift.results",
        "report.html.jinja",
        title=f"{len(manifests)} runs" if len(manifests) > 1 else manifests[0].run_id,
        index=[_index_row(manifest) | {"link": links[manifest.run_id]} for manifest in manifests],
        together=together,
        runs=runs,
    )


def _index_row(manifest: Manifest) -> TemplateValues:
    summary = manifest.summary.model_dump() if manifest.summary else {}
    names = ("P99 before (ms)", "P99 spike (ms)", "silence (ms)", "completion (s)", "completion (× floor)")
    return {
        "run": manifest.run_id,
        "workload": manifest.workload,
        "strategy": manifest.strategy,
        "status": manifest.status,
        "figures": {name: _number(MEASURES[name](summary)) for name in names},
    }


def _together(manifests: Sequence[Manifest]) -> Iterator[TemplateValues]:
    """For each workload of which there are several runs with a verdict: what they show side by side; of runs that
    cannot be compared why that is, and their verdicts.
    """
    ended = [row_of(manifest) for manifest in manifests if manifest.summary]
    for workload in dict.fromkeys(row["workload"] for row in ended):
        stored = [row for row in ended if row["workload"] == workload]
        if len(stored) < 2:
            continue
        rows = [anonymous_all(row) for row in stored]
        if apart := differing(stored):
            names = enumerated("the version of keyshift" if name == "keyshift" else name for name in apart)
            said = [*verdict_sentences(rows), f"These runs differ in {names}: their figures are not compared."]
            yield {"workload": workload, "table": "", "figure": "", "said": said}
            continue
        costs = tradeoffs(rows)
        drawable = costs["spike_ms"].notna() & costs["completion_s"].notna()
        yield {
            "workload": workload,
            "table": table(comparison_table(rows)),
            "figure": svg(pareto(costs).figure) if drawable.any() else "",
            "said": [*sentences(rows), *(tradeoff_sentences(rows) if drawable.any() else [])],
        }


def _run(manifest: Manifest, tables: RunTables) -> TemplateValues:
    told = anonymous_all(manifest.model_dump(mode="json"))
    summary = told["summary"] or {}
    figures = {name: _number(measure(summary)) for name, measure in MEASURES.items()}
    verdict, machine = told["verdict"], told["machine"]
    latency = metrics.without_warm_up(tables["latency"], manifest.measured_from_s) if tables else None
    return {
        "told": told,
        "facts": {
            "started": told["started_at"],
            "finished": told["finished_at"],
            "machine": f"{machine['cpus']} × {machine['cpu']}, {machine['memory_mib']} MiB, {machine['system']}",
            "stages": ", ".join(stage["name"] for stage in told["stages"]),
        },
        "counts": {name: verdict[name] for name in COUNTS} | verdict["others"] if verdict else {},
        "figures": {name: value for name, value in figures.items() if value},
        "tail": "" if latency is None else table(tail({manifest.strategy: latency}).drop(columns="name")),
        "drawn": [] if latency is None else [svg(each) for each in _drawn(manifest.strategy, tables, latency)],
    }


def _drawn(strategy: str, tables: RunTables, measured: pd.DataFrame) -> Iterator[FigureBase | None]:
    """The figures of a run. ``measured``: latencies without the warm-up, which the timelines begin with."""
    latency, migration = tables["latency"], tables["migration"]
    if len(latency):
        struck = {strategy: [at_s for at_s, _ in faults(tables["metrics"])]}
        seconds = with_disturbed(metrics.per_second(latency), tables["metrics"])
        yield panels({strategy: (seconds, migration)}, title="Latency per second", faults=struck)
        yield throughput_panels({strategy: tables})
    if len(measured):
        yield ccdf_figure({strategy: metrics.ccdf(measured)}).figure
    if len(migration):
        yield steps_gantt(migration).figure
    if {"cpu_cores", "rss_mib"} <= set(tables["metrics"]["metric"]):
        yield resource_panels({strategy: tables})


def _number(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.4g}"
