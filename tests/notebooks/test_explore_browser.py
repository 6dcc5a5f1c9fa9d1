"""The live notebook in JupyterLab, in a real browser that is driven by its debugging protocol (Chromium's, over a
websocket). Skipped where there is no Chromium; ``test_explore_live`` presses the same buttons without one.
"""

import base64
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import nbformat
import psutil
import pytest
import websocket

from keyshift.control.files import Jobs
from keyshift.waiting import wait_until

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "start" / "02_explore.ipynb"
SMALL = "rate, frame_ms, slots_max, key_groups, settings = 500.0, 20.0, 3, 16, {'keys': 1000, 'state_bytes': 64}"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f"no browser: none of {', '.join(NAMES)} is on the PATH")

# The notebook is there, with a kernel, and is what commands are for: nobody clicks on it here.
READY = """(() => {
  const shell = window.jupyterapp?.shell;
  const page = shell && [...shell.widgets('main')].find(widget => widget.sessionContext);
  if (page?.sessionContext.session?.kernel?.status !== 'idle') return false;
  shell.activateById(page.id);
  return shell.currentWidget === page;
})()"""
# Dark pixels in the row of the third slot, the lowest one of the map; -1: there is no picture yet.
THIRD_ROW = """(() => {
  const picture = document.querySelector('img.widget-image');
  if (!picture || !picture.naturalWidth) return -1;
  const canvas = document.createElement('canvas');
  const [width, height] = [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
  const context = canvas.getContext('2d');
  context.drawImage(picture, 0, 0);
  const pixels = context.getImageData(0.1 * width, 0.78 * height, 0.85 * width, 0.08 * height).data;
  let dark = 0;
  for (let at = 0; at < pixels.length; at += 4) dark += pixels[at] < 60 && pixels[at + 2] > 80;
  return dark;
})()"""


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, folder: Path) -> None:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--window-size=1400,1400", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
        self._process = subprocess.Popen(
            [str(CHROMIUM), *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        told = folder / "DevToolsActivePort"
        assert wait_until(lambda: told.exists() and told.read_text().count("\n"), 60), "Chromium did not start"
        port = told.read_text().splitlines()[0]
        pages = httpx.get(f"http://127.0.0.1:{port}/json/list", trust_env=False).json()
        [page] = [each for each in pages if each["type"] == "page"]
        self._socket = websocket.create_connection(page["webSocketDebuggerUrl"], suppress_origin=True, timeout=60)
        self._asked = 0

    def ask(self, method: str, **parameters: object) -> dict:
        """What a method of the debugging protocol gives."""
        self._asked += 1
        self._socket.send(json.dumps({"id": self._asked, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv())).get("id") != self._asked:
            pass  # an event
        assert "error" not in answer, answer
        return answer["result"]

    def value(self, script: str) -> object:
        """Of an expression in the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str, within_s: float = 150.0) -> None:
        """Until the expression is true; the text of the page is told if it never is."""
        end = time.monotonic() + within_s
        while not self.value(script):
            assert time.monotonic() < end, f"{script}: never; {self.value('document.body.innerText')}"
            time.sleep(0.2)

    def press(self, name: str) -> None:
        """The button of the notebook, when it can be pressed."""
        button = f"document.querySelector('button.keyshift-{name}')"
        self.wait(f"{button} && !{button}.disabled")
        self.value(f"{button}.click()")

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(60)


@pytest.fixture
def lab(tmp_path):
    """JupyterLab with a small copy of the notebook; its address."""
    home, root, settings = (tmp_path / name for name in ("home", "root", "settings"))
    tracker = settings / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    for folder in (home, root, tracker.parent):
        folder.mkdir(parents=True)
    tracker.write_text('{"windowingMode": "none"}')  # cells that are out of sight are there as well
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])).source += f"\n{SMALL}"
    nbformat.write(notebook, root / NOTEBOOK.name)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    command += [f"--ServerApp.port={port}", f"--ServerApp.root_dir={root}", f"--IdentityProvider.token={token}"]
    command += [f"--LabApp.user_settings_dir={settings}", "--LabApp.expose_app_in_browser=True"]
    command += [f"--LabApp.workspaces_dir={tmp_path / 'workspaces'}", "--LabApp.news_url=None"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    with open(tmp_path / "lab.log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"KEYSHIFT_HOME": str(home)})
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return httpx.get(f"{address}/api", trust_env=False).is_success
        except httpx.TransportError:
            return False

    try:
        assert wait_until(answers, 60), (tmp_path / "lab.log").read_text()[-2000:]
        yield f"{address}/lab/tree/{NOTEBOOK.name}?token={token}"
    finally:
        server.terminate()
        server.wait(60)
        for job in Jobs(home).running():  # of a test that has failed
            psutil.Process(job.pid).terminate()
            psutil.Process(job.pid).wait(120)


def test_the_map_changes_when_scale_is_pressed_and_stop_tells_the_verdict(lab, tmp_path):
    browser = Browser(tmp_path / "browser")
    try:
        browser.ask("Emulation.setFocusEmulationEnabled", enabled=True)
        browser.ask("Page.navigate", url=lab)
        browser.wait(READY)
        browser.value("jupyterapp.commands.execute('notebook:run-all-cells')")
        browser.press("start")
        browser.wait(f"{THIRD_ROW} === 0")
        browser.press("scale")
        browser.wait(f"{THIRD_ROW} > 100")
        browser.press("stop")
        browser.wait("document.body.innerText.includes('has ended, verdict ok')")
    finally:
        shot = browser.ask("Page.captureScreenshot")["data"]
        (tmp_path / "page.png").write_bytes(base64.b64decode(shot))
        browser.close()
