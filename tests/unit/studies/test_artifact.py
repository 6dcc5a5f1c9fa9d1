"""What is published of runs: whole, what its metadata says, of stored data alone, and made again from itself."""

import json
import re
from hashlib import sha256
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from rocrate.rocrate import ROCrate
from small_batches import Bench, prepared, write_notebook
from small_html import Elements
from small_store import result_store, run, tables

from keyshift.model.errors import BadInput
from keyshift.results.exchange import import_runs, read_export
from keyshift.results.tables import TABLES
from keyshift.studies import artifact as artifacts
from keyshift.studies.artifact import Batches, pack
from keyshift.studies.batch import ended
from keyshift.studies.crate import Imprint
from keyshift.studies.gallery import write_gallery
from keyshift.studies.notebook import MIME, Executed
from memory_bucket import MemoryBucket

WHERE = {"text": "/home/ada/books/moby.txt", "<b>": "<i>"}
PNG = "iVBORw0KGgo="


def notebook(run_id, title="Load"):
    outputs = [
        new_output("display_data", data={"image/png": PNG, "text/plain": "<Figure>"}),
        new_output("display_data", data={MIME: [{"run_id": run_id}], "text/plain": "published"}),
    ]
    words = f"# {title}\n\n- a $x$, [as told](../../docs/x.md#y), [here](#{title})"
    cells = [new_markdown_cell(words), new_code_cell("measure()", outputs=outputs, execution_count=1)]
    return nbformat.writes(new_notebook(cells=cells)).encode()


LOAD = notebook(run(1, "meces").run_id)  # its cells have random names


@pytest.fixture(scope="module")
def store():
    store = result_store()
    drrs = run(0, "drrs", parameters=WHERE, cpu_busy=0.95)
    store.put_run(drrs, tables())
    store.put_run(run(1, "meces", "bad", parameters=WHERE), tables())
    store.put_run(run(2, "lazy", "died"), {})
    for manifest in (drrs, run(1, "meces", "bad")):  # one notebook that has made both runs
        store.put_file(manifest.run_id, "load.ipynb", LOAD)
    return store


@pytest.fixture(scope="module")
def folder(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("of") / "out"
    imprint = Imprint(title="a study", authors=["Ada", "Grace"], license="CC-BY-4.0", doi="10.5281/zenodo.1")
    assert pack(store, [], folder, imprint, {"rate": "events per second"}) == 3
    return folder


@pytest.fixture(scope="module")
def crate(folder):
    return ROCrate(folder)


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_crate_says_whose_it_is_and_of_every_file_and_run_what_they_are(folder, crate):
    described = {entity.id: entity for entity in crate.data_entities}
    assert described.keys() == names(folder) - {"ro-crate-metadata.json"}
    for name, entity in described.items():
        content = (folder / name).read_bytes()
        assert (entity["contentSize"], entity["sha256"]) == (str(len(content)), sha256(content).hexdigest()), name
        assert entity["description"] and entity["encodingFormat"], name
    assert crate.name == "keyshift: a study"
    assert [author["name"] for author in crate.root_dataset["author"]] == ["Ada", "Grace"]
    assert crate.license.id == "https://spdx.org/licenses/CC-BY-4.0"
    assert crate.root_dataset["identifier"] == "https://doi.org/10.5281/zenodo.1"
    assert crate.datePublished and crate.description.startswith("3 runs of keyshift")
    assert crate.metadata["conformsTo"].endswith("/1.1")
    actions = crate.root_dataset["mentions"]
    assert [(a.id[1:], a["description"], a["actionStatus"].rpartition("/")[2]) for a in actions] == [
        (run(0, "drrs").run_id, "verdict ok", "CompletedActionStatus"),
        (run(1, "meces").run_id, "verdict bad", "CompletedActionStatus"),
        (run(2, "lazy").run_id, "died", "FailedActionStatus"),
    ]
    assert actions[0]["startTime"] == "2026-01-01T12:00:00+00:00"
    files = {"data/runs.parquet", "data/manifests.jsonl", f"runs/{run(0, 'drrs').run_id}.html"}
    assert {result.id for result in actions[0]["result"]} == files


def test_what_there_is_to_know_of_the_runs_is_there_and_nothing_tells_whose_machine_it_was(folder):
    exported = read_export(folder / "data")
    assert [manifest.status for manifest in exported.manifests] == ["ok", "bad", "died"]
    assert exported.manifests[0].parameters["rate"] == 2000.0
    assert "parameter.rate,JSON,,events per second" in (folder / "data" / "dictionary.csv").read_text()
    assert {f"data/{name}.parquet" for name in ("runs", *TABLES)} <= names(folder)
    environment = json.loads((folder / "environment.json").read_text())
    (place,) = environment["runs"]
    assert place["versions"]["pyspark"] == "4.3.0" and place["machine"]["cpus"] == 2 and len(place["runs"]) == 3
    assert environment["made_with"]["pandas"]
    assert_anonymous(folder)


def test_pages_lead_to_files_of_the_folder_alone(folder):
    reached = set()
    for path in folder.rglob("*.html"):
        page = Elements(path.read_text())
        assert not {"script", "link", "iframe"} & page.count.keys(), path.name
        for link in page.links:
            if link.startswith("#"):
                assert link[1:] in page.ids, (path.name, link)
            elif not link.startswith("data:image/png;base64,"):
                assert (path.parent / link).is_file(), (path.name, link)
                reached.add((path.parent / link).resolve().relative_to(folder.resolve()).as_posix())
    assert reached >= {name for name in names(folder) if name.endswith((".html", ".ipynb"))} - {"index.html"}


def test_each_run_has_its_figures_the_verdict_of_each_is_on_the_first_page_and_a_notebook_is_one_static_page(folder):
    for number, strategy, figures in ((0, "drrs", 5), (1, "meces", 5), (2, "lazy", 0)):
        page = (folder / "runs" / f"{run(number, strategy).run_id}.html").read_text()
        assert page.count("<svg") == figures
    assert "meces is not correct (1 lost)" in (folder / "runs" / "keycount.html").read_text()
    index = (folder / "index.html").read_text()
    cells = re.findall(r"<td>(.*?)</td>", index.partition("Verdicts")[2].partition("</table>")[0])
    assert " ".join(cells) == "keycount drrs 1 0 0 keycount lazy 0 0 1 keycount meces 0 1 0"
    assert "by Ada, Grace" in index and "of 3 stored runs" in index and "anew, but for the notebooks:" in index
    (page,) = (folder / "notebooks").glob("*.html")
    assert re.fullmatch(r"load-[0-9a-f]{8}\.html", page.name)
    assert f"data:image/png;base64,{PNG}" in page.read_text()
    assert ", as told, <a" in page.read_text()
    assert page.with_suffix(".ipynb").read_bytes() == LOAD
    assert f'<a href="notebooks/{page.name}">Load</a>, 1 run (' in (folder / "index.html").read_text()


def test_a_run_that_a_notebook_shows_has_a_page_of_its_own_if_it_is_not_correct_or_named(tmp_path):
    store, (shown, bad, alone) = result_store(), (run(0), run(1, status="bad"), run(2))
    for manifest in (shown, bad, alone):
        store.put_run(manifest, tables())
    for manifest in (shown, bad):
        store.put_file(manifest.run_id, "load.ipynb", notebook(manifest.run_id))
    pack(store, [], tmp_path / "out", Imprint())
    own = {f"{each.run_id}.html" for each in (bad, alone)}
    assert {path.name for path in (tmp_path / "out" / "runs").iterdir()} == own | {"keycount.html"}
    (link,) = re.findall(rf'href="(.*?)">{shown.run_id}<', (tmp_path / "out" / "runs" / "keycount.html").read_text())
    page = (tmp_path / "out" / "runs" / link).resolve()
    assert page.with_suffix(".ipynb").read_bytes() == store.get_file(shown.run_id, "load.ipynb")
    actions = {action.id[1:]: action for action in ROCrate(tmp_path / "out").root_dataset["mentions"]}
    pages = {run_id: [file.id for file in action["result"]][2:] for run_id, action in actions.items()}
    assert pages == {shown.run_id: []} | {each.run_id: [f"runs/{each.run_id}.html"] for each in (bad, alone)}
    test_pages_lead_to_files_of_the_folder_alone(tmp_path / "out")
    pack(store, [shown.run_id], tmp_path / "named", Imprint())
    assert (tmp_path / "named" / "runs" / f"{shown.run_id}.html").is_file()


@pytest.mark.usefixtures("ascii_locale")
def test_the_page_of_a_notebook_is_the_same_in_every_locale(tmp_path):
    (shown,) = write_gallery({"one": notebook("2026", title="≤ 5 s")}, tmp_path)
    assert "≤ 5 s" in (tmp_path / shown.page).read_text(encoding="utf-8")


def test_published_numbers_stand_beside_ours_or_alone_as_those_of_one_stage_beside_a_run_of_several(folder, tmp_path):
    page = (folder / "published.html").read_text()
    assert page.count("No run of these compares") == 9, "the run of Meces is not correct"
    assert "<td>LiveRobin, 10/s</td><td>15.6</td>" in page
    assert "full before the migration in 1 of 1 runs" in page
    alone = run(3, "lazy", parameters={"ordering": "live_robin", "heartbeat_ms": 50.0}, p50_ms=9.0)
    several = alone.model_copy(update={"stages": alone.stages * 2})
    searched = alone.model_copy(update={"summary": alone.summary.model_copy(update={"rate_changed": True})})
    # P50 is known, and P99; where the rate was searched, they are of many rates.
    for name, each, lines in (("alone", alone, 2), ("several", several, 0), ("searched", searched, 0)):
        (store := result_store()).put_run(each, tables())
        store.put_file(each.run_id, "load.ipynb", notebook(each.run_id))  # so that nobody draws a page of it
        pack(store, [], tmp_path / name, Imprint())
        assert (tmp_path / name / "published.html").read_text().count("<h3>") == lines


def assert_anonymous(folder):
    content = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    for text in (b"/home/ada", b"moby", b"10.1.2.3", str(folder.parent).encode()):
        assert text not in content


def without(text, *what):
    for pattern in (r"Made on .* UTC", r"<clipPath id=\S+", *what):
        text = re.sub(pattern, "", text)
    return text


def test_what_was_published_can_be_made_again_from_its_tables(folder, tmp_path):
    other = result_store()
    import_runs(other, read_export(folder / "data"))
    assert pack(other, [], tmp_path / "again", Imprint(title="a study")) == 3
    assert names(tmp_path / "again") == {name for name in names(folder) if not name.startswith("notebooks/")}
    for name in names(folder):
        if name.startswith("runs/") or name == "published.html":
            again, first = ((each / name).read_text() for each in (tmp_path / "again", folder))
            assert without(again) == without(first), name


def test_many_runs_are_drawn_by_several_processes_with_the_same_pages(store, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(artifacts, "SHARE", 1)
    monkeypatch.setattr(artifacts.os, "cpu_count", lambda: 2)
    run_id = run(0, "drrs").run_id
    pack(store, [run_id, run(2, "lazy").run_id], tmp_path / "out", Imprint())
    again, first = ((each / f"runs/{run_id}.html").read_text() for each in (tmp_path / "out", folder))
    assert without(again) == without(first)


def test_the_runs_and_notebooks_of_batches_and_what_is_missing(tmp_path):
    class Notebooks:
        def __call__(self, path, parameters, home):
            home.mkdir(parents=True)
            copy, html = home / path.name, home / f"{path.stem}.html"
            copy.write_bytes(notebook(str(parameters["skew"])))
            html.write_text("<p>executed")
            number = {0.25: 0, 0.5: 1}[parameters["skew"]]
            return Executed(copy, html, [], [{"run_id": run(number).run_id, "verdict": "ok"}], None)

    write_notebook(tmp_path / "notebooks" / "load.ipynb")
    bench, batch = Bench(tmp_path), prepared(tmp_path, "grid: {skew: [0.25, 0.5]}")
    bench.run(batch, Notebooks())
    store = result_store(client := MemoryBucket())
    store.put_run(run(0), tables())
    store.put_run(run(7), tables())  # of no batch
    batches = Batches("small", [(batch, ended(batch, bench.records))], bench.records)
    assert pack(store, [], tmp_path / "out", Imprint(), batches=batches) == 1, "the other run was deleted"
    assert len(list((tmp_path / "out" / "notebooks").glob("*.html"))) == 2
    index = (tmp_path / "out" / "index.html").read_text()
    assert "anew, but for the notebooks and the page of the sets:" in index, "records of batches are in no export"
    assert 'href="batches.html">All small sets</a>' in index and "1 of their runs is not stored any more" in index
    assert "2 of 2 executions of 1 batch have ended." in (tmp_path / "out" / "batches.html").read_text()
    client.objects[broken := f"runs/{run(1).run_id}/manifest.json"] = b"{}"
    assert pack(store, [], tmp_path / "broken", Imprint(), batches=batches) == 1
    index = (tmp_path / "broken" / "index.html").read_text()
    assert "of 1 stored run (1 more could not be read)" in index and "not stored any more" not in index
    del client.objects[broken]
    bench.records.remove("small", [f"{batch.executions[1].id}/load.ipynb"])
    pack(store, [], tmp_path / "less", Imprint(), batches=batches)
    assert len(list((tmp_path / "less" / "notebooks").glob("*.html"))) == 1
    gone = "its executed copy is not stored with the batch any more"
    assert (tmp_path / "less" / "batches.html").read_text().count(gone) == 1
    store.delete_run(run(0).run_id)
    with pytest.raises(BadInput, match=r"^no run of a set small is stored: `keyshift batch --all small` makes them$"):
        pack(store, [], tmp_path / "none", Imprint(), batches=batches)


def test_nothing_of_batches_tells_whose_machine_it_was(tmp_path):
    def fails(path, parameters, home):
        raise OSError(f"{parameters['tape']!r} on 10.1.2.3:9092")

    write_notebook(tmp_path / "notebooks" / "load.ipynb", "tape: str = ''\nredis: str = ''")
    tapes = "/home/ada/My Tapes/moby.csv, /home/ada/b.csv, ../../../ada/c.csv"
    where = f"parameters: {{redis: '10.1.2.3:6379'}}\ngrid: {{tape: [{tapes}]}}"
    bench = Bench(tmp_path)
    batch = prepared(tmp_path, where, notebook=tmp_path / "notebooks" / "load.ipynb")
    done = bench.run(batch, fails)
    assert all("/ada" in record.error for record in done.values()), "whoever waits for it needs to know"
    store = result_store()
    store.put_run(run(0), tables())
    pack(store, [run(0).run_id], tmp_path / "out", Imprint(), batches=Batches("small", [(batch, done)], bench.records))
    page = (tmp_path / "out" / "batches.html").read_text()
    for words in ("failed, OSError: &#39;&lt;path&gt;&#39; on &lt;address&gt;", "<th>tape</th><td>&lt;path&gt;</td>"):
        assert words in page
    assert page.count("<th>tape</th><td>&lt;path&gt;</td>") == 3, "one that leads out of the notebook's folder, too"
    assert_anonymous(tmp_path / "out")


def test_how_many_stored_runs_could_not_be_read_is_told(tmp_path):
    store = result_store(client := MemoryBucket())
    client.objects[f"runs/{run(1).run_id}/manifest.json"] = b"{}"
    with pytest.raises(BadInput, match=r"^none of the stored runs \(1\) can be read: `keyshift results list"):
        pack(store, [], tmp_path / "out", Imprint())
    store.put_run(run(0, status="died"), {})
    assert pack(store, [], tmp_path / "out", Imprint(authors=["Ada"])) == 1
    assert "of 1 stored run (1 more could not be read), by Ada. " in (tmp_path / "out" / "index.html").read_text()
    client.rotten.add(f"runs/{store.put_run(run(2, status='died'), {}).run_id}/manifest.json")
    assert pack(store, [], tmp_path / "rotten", Imprint()) == 1
    assert "of 1 stored run (2 more could not be read)" in (tmp_path / "rotten" / "index.html").read_text()


@pytest.mark.parametrize("name", ["latency.parquet", "decisions.parquet", "load.ipynb"])
def test_a_run_of_which_a_file_is_damaged_is_left_out_of_all_stored_ones_and_named_if_it_was(tmp_path, name):
    store = result_store(client := MemoryBucket())
    store.put_run(run(0), tables())
    damaged = store.put_run(run(1, "meces"), tables()).run_id
    store.put_file(damaged, "load.ipynb", LOAD)
    client.rotten.add(f"runs/{damaged}/{name}")
    assert pack(store, [], tmp_path / "out", Imprint()) == 1
    assert "of 1 stored run (1 more could not be read)" in (tmp_path / "out" / "index.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    for named in ([damaged], [damaged, run(0).run_id]):
        with pytest.raises(BadInput, match=f"^runs/{damaged}/{name} cannot be read.* it is damaged$"):
            pack(store, named, tmp_path / "named", Imprint())


def test_what_cannot_be_packed_is_refused_and_leaves_nothing(store, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match=r"^no run is stored yet: `keyshift run` makes one$"):
        pack(result_store(), [], tmp_path / "out", Imprint())
    with pytest.raises(BadInput, match=r"^unknown run '1999': "):
        pack(store, ["1999"], tmp_path / "out", Imprint())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"^folder '.*full' is not empty: name a new one$"):
        pack(store, [], tmp_path / "full", Imprint())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for here in (Path(), Path("..") / "here"):
        with pytest.raises(BadInput, match=r"^folder '.*here' is the one you are in, and would be replaced"):
            pack(store, [run(2, "lazy").run_id], here, Imprint())

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(artifacts, "write_crate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pack(store, [run(2, "lazy").run_id], tmp_path / "out", Imprint())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "here"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_without_authors_they_are_those_of_keyshift_and_a_link_leads_to_the_folder_that_is_written(store, tmp_path):
    (tmp_path / "far").mkdir()  # an empty one will do
    (tmp_path / "link").symlink_to(tmp_path / "far")
    pack(store, [run(2, "lazy").run_id], tmp_path / "link", Imprint())
    assert (tmp_path / "link").is_symlink()
    root = ROCrate(tmp_path / "far").root_dataset
    author = root["author"]
    assert (author.type, author["name"]) == ("Organization", "The keyshift authors")
    assert root["name"] == "keyshift: runs of keycount" and "identifier" not in root
    assert "None: no executed notebook" in (tmp_path / "far" / "index.html").read_text()
