"""Debian's Chromium, headless and driven over its DevTools protocol: opens pages, notes what they say and ask for."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
from websockets.sync.client import ClientConnection, connect

from tests.missing import require

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60.0
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--disable-sync"),
    *("--no-first-run", "--no-default-browser-check", "--disable-background-networking", "--disable-extensions"),
    *("--disable-component-update", "--disable-default-apps", "--hide-scrollbars", "--mute-audio"),
    # A page behind another one would be given time once a second only.
    *("--disable-background-timer-throttling", "--disable-renderer-backgrounding"),
    *("--disable-backgrounding-occluded-windows",),
    *("--force-color-profile=srgb", "--remote-debugging-port=0", "--remote-allow-origins=*"),
)


def require_browser() -> str:
    """Return where the system's browser is. Skip the test, or fail it where ``CI`` is set, if there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
    require(None if found is not None else "chromium is missing: no browser to look at the report")
    assert found is not None
    return found


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser that keeps its files in ``profile``, and stop it at the end."""
    with subprocess.Popen(
        [require_browser(), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            with connect(_address(profile, process), max_size=None, open_timeout=PATIENCE, compression=None) as socket:
                with Browser(socket) as one:
                    yield one
                with contextlib.suppress(TimeoutError):
                    process.wait(PATIENCE)
        finally:
            process.kill()


def _address(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait for the file in which the browser says its port and path."""
    file = profile / "DevToolsActivePort"
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.02)
    raise AssertionError(f"the browser said no address: it ended with {process.poll()}")


@attrs.define(eq=False)
class Browser:
    """A browser that answers one question after the other."""

    socket: ClientConnection
    tabs: dict[str, Tab] = attrs.field(factory=dict)
    _numbers: Iterator[int] = attrs.field(factory=itertools.count)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ask("Browser.close")

    def ask(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        """Return the answer; what the browser reports meanwhile is given to its tabs."""
        number = next(self._numbers)
        message: dict[str, object] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self.socket.send(json.dumps(message))
        while True:
            heard = json.loads(self.socket.recv(PATIENCE))
            if heard.get("id") == number:
                assert "error" not in heard, f"{method}: {heard['error']}"
                result: dict[str, Any] = heard["result"]
                return result
            if (tab := self.tabs.get(heard.get("sessionId", ""))) is not None:
                tab.hear(heard["method"], heard["params"])

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> Tab:
        """Open a page in a tab of its own, and wait until all its charts are drawn."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self.tabs[session] = Tab(self, session, width)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.ask(f"{domain}.enable")
        tab.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.ask("Emulation.setEmulatedMedia", features=[scheme])
        tab.ask("Page.navigate", url=page.absolute().as_uri())
        tab.wait("document.readyState === 'complete'")
        return tab


@attrs.define(eq=False)
class Tab:
    """An open page: ``said`` has what its console had, ``asked`` the addresses that it asked for."""

    browser: Browser
    session: str
    width: int
    said: list[str] = attrs.field(factory=list)
    asked: list[str] = attrs.field(factory=list)

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """Return the browser's answer about this page."""
        return self.browser.ask(method, self.session, **parameters)

    def hear(self, method: str, parameters: Mapping[str, Any]) -> None:
        """Note what the page did meanwhile."""
        match method:
            case "Runtime.consoleAPICalled":
                words = " ".join(str(one.get("value", one.get("description"))) for one in parameters["args"])
                self.said.append(f"{parameters['type']}: {words}")
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.said.append(f"error: {details.get('exception', {}).get('description', details['text'])}")
            case "Log.entryAdded":
                self.said.append(f"{parameters['entry']['level']}: {parameters['entry']['text']}")
            case "Network.requestWillBeSent":
                self.asked.append(parameters["request"]["url"])
            case "Page.javascriptDialogOpening":
                self.said.append(f"dialog: {parameters['message']}")

    def run(self, code: str) -> Any:
        """Return the value of an expression, which may be a promise."""
        answer = self.ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + PATIENCE
        while not self.run(f"!!({condition})"):
            assert time.monotonic() < until, f"waited {PATIENCE} s for {condition}: {self.said}"
            time.sleep(0.02)

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        height = self.run("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": self.width, "height": height, "scale": 1}
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))
