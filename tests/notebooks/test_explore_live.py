"""The live notebook as a page uses it, without a browser: widgets are pressed and seen by the kernel's own protocol."""

import os
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from jupyter_client import KernelManager

from keyshift.control.files import Jobs

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "start" / "02_explore.ipynb"
SMALL = "rate, frame_ms, slots_max, key_groups, settings = 500.0, 20.0, 3, 16, {'keys': 1000, 'state_bytes': 64}"


class Page:
    """A kernel, the first cells of the notebook, and the widgets that they show."""

    def __init__(self, home: Path) -> None:
        self._kernel = KernelManager(kernel_name="python3")
        self._kernel.start_kernel(env=os.environ | {"KEYSHIFT_HOME": str(home)}, cwd=str(NOTEBOOK.parent))
        self._client = self._kernel.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)
        self._widgets: dict[str, dict] = {}
        cells = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
        for code in (cells[0], SMALL, cells[1]):  # parameters, and the explorer
            self._client.execute(code)

    def close(self) -> None:
        """As a machine does that is switched off: nobody is told."""
        self._client.stop_channels()
        self._kernel.shutdown_kernel(now=True)

    def press(self, name: str) -> None:
        """The button of this name, when it can be pressed."""
        self.wait(lambda: not self._button(name)["disabled"] if self._button(name) else False, f"{name} to be enabled")
        [comm] = [comm for comm, state in self._widgets.items() if state is self._button(name)]
        click = {"method": "custom", "content": {"event": "click"}}
        message = self._client.session.msg("comm_msg", {"comm_id": comm, "data": click})
        self._client.shell_channel.send(message)

    def said(self) -> str:
        """All text that the page shows."""
        return "\n".join(state["value"] for state in self._widgets.values() if state.get("_model_name") == "HTMLModel")

    def picture(self) -> bytes:
        """The newest."""
        pictures = [state for state in self._widgets.values() if state.get("_model_name") == "ImageModel"]
        return bytes(pictures[0]["value"]) if pictures else b""

    def wait(self, until, what: str, within_s: float = 150.0) -> None:
        """Read what the kernel says ``until`` that is so."""
        end = time.monotonic() + within_s
        while not until():
            assert time.monotonic() < end, f"waited for {what}; the page says {self.said()}"
            if not self._client.iopub_channel.msg_ready():
                time.sleep(0.05)
                continue
            self._hear(self._client.get_iopub_msg(timeout=1))

    def _hear(self, message) -> None:
        kind, content = message["msg_type"], message["content"]
        assert kind != "error", content["evalue"]
        data = content.get("data", {})
        if kind == "comm_open":
            self._widgets[content["comm_id"]] = dict(data["state"])
        if kind in ("comm_open", "comm_msg") and "state" in data and content["comm_id"] in self._widgets:
            state = self._widgets[content["comm_id"]]
            state |= data["state"]
            for path, buffer in zip(data.get("buffer_paths", []), message.get("buffers", []), strict=True):
                state[path[0]] = bytes(buffer)

    def _button(self, name: str) -> dict | None:
        return next((state for state in self._widgets.values() if state.get("description") == name), None)


@pytest.fixture
def home(tmp_path):
    yield tmp_path
    for job in Jobs(tmp_path).running():  # of a test that has failed
        psutil.Process(job.pid).terminate()
        psutil.Process(job.pid).wait(120)


@pytest.mark.nightly("a minute; the same buttons are pressed by a script in test_explore")
def test_buttons_work_and_a_job_is_found_again_after_the_kernel_is_gone(home):
    page = Page(home)
    try:
        page.press("start")
        page.wait(lambda: "counter: 2 slots" in page.said(), "the job to run")
        page.wait(lambda: page.picture().startswith(b"\x89PNG"), "a picture")
    finally:
        page.close()
    assert len(Jobs(home).running()) == 1, "the job is not the kernel's"

    page = Page(home)
    try:
        page.wait(lambda: "job explore runs" in page.said(), "the job to be found again")
        page.press("scale")
        page.wait(lambda: "counter: 3 slots" in page.said(), "a third slot")
        page.press("double")
        page.wait(lambda: "1000 events/s offered" in page.said(), "the rate")
        page.press("stop")
        page.wait(lambda: "has ended, verdict ok" in page.said(), "the verdict")
    finally:
        page.close()
    assert Jobs(home).all() == []
