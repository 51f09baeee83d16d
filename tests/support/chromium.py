"""A headless Chromium, driven through its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.waiting import deadline

# On a machine with two cores that does other things as well.
_PROGRAM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
# Keeps hold of the page's terminal, which textual.js tells nobody of: its fit add-on is set on what
# owns both.
_WATCH_TERMINAL = """
Object.defineProperty(Object.prototype, "fitAddon", {configurable: true, set(addon) {
  window.shown = this;
  Object.defineProperty(this, "fitAddon", {value: addon, writable: true, configurable: true, enumerable: true});
}});
"""
_READ_TERMINAL = """(() => {
  if (!window.shown) return document.body ? document.body.innerText : "";
  const lines = [], buffer = window.shown.terminal.buffer.active;
  for (let row = 0; row < window.shown.terminal.rows; row++)
    lines.push(buffer.getLine(buffer.baseY + row).translateToString(true, 0, window.shown.terminal.cols));
  return lines.join("\\n");
})()"""

_COUNT_COLOURS = """(async () => {
  const image = new Image();
  image.src = "data:image/png;base64,%s";
  await image.decode();
  const drawn = new OffscreenCanvas(image.width, image.height).getContext("2d");
  drawn.drawImage(image, 0, 0);
  return new Set(new Uint32Array(drawn.getImageData(0, 0, image.width, image.height).data.buffer)).size;
})()"""


def why_no_chromium() -> str:
    """'' where it is there."""
    return "" if _PROGRAM else "Debian's package chromium is not installed"


class Tab:
    """A page, what it asked for (`requests`), and what the browser complained of (`complaints`)."""

    def __init__(self, devtools: aiohttp.ClientWebSocketResponse) -> None:
        self._devtools = devtools
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.requests: list[str] = []
        self.complaints: list[str] = []

    async def listen(self) -> None:
        """Until the browser ends."""
        async for message in self._devtools:
            said = message.json()
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
                continue
            match said["method"], said["params"]:
                case "Network.requestWillBeSent", {"request": {"url": url}}:
                    self.requests.append(url)
                case "Network.webSocketCreated", {"url": url}:
                    self.requests.append(url)
                case "Log.entryAdded", {"entry": {"level": "error", **entry}}:
                    self.complaints.append(str(entry))
                case "Runtime.exceptionThrown", {"exceptionDetails": details}:
                    self.complaints.append(str(details))

    async def send(self, method: str, **parameters: object) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._devtools.send_json({"id": number, "method": method, "params": parameters})
        said = await answer
        assert "error" not in said, (method, said)
        result: dict[str, Any] = said["result"]
        return result

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        said = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    async def open(self, url: str) -> None:
        await self.send("Page.navigate", url=url)

    async def until(self, wanted: str | Callable[[str], bool], *, around: bool = False) -> str:
        """What its terminal shows once that holds `wanted`, or `wanted` says so; of a page without
        one its words.

        `around`: what the page says beside its terminal.
        """
        over = deadline()
        while True:
            text = str(await self.evaluate("document.body.innerText" if around else _READ_TERMINAL))
            if wanted in text if isinstance(wanted, str) else wanted(text):
                return text
            assert time.monotonic() < over, (
                f"{text}\nrequests: {self.requests}\ncomplaints: {self.complaints}"
            )
            await asyncio.sleep(0.1)

    async def press(self, key: str) -> None:
        """One key: a character, or the name of another as browsers have it."""
        code = {"Enter": 13, "Escape": 27}.get(key, 0)
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        pressed = {"key": key, "windowsVirtualKeyCode": code or ord(key[0].upper())}
        await self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **pressed)

    async def resize(self, width: int, height: int) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def history(self) -> list[str]:
        """The addresses that its back key leads to, and its own."""
        return [
            str(entry["url"]) for entry in (await self.send("Page.getNavigationHistory"))["entries"]
        ]

    async def screenshot(self, file: Path) -> bytes:
        """The page as a PNG, which is written to `file` too."""
        taken = await self.send("Page.captureScreenshot", format="png")
        picture = base64.b64decode(taken["data"])
        _write(file, picture)
        return picture

    async def colours(self, picture: bytes) -> int:
        """How many a PNG has."""
        encoded = base64.b64encode(picture).decode()
        return int(await self.evaluate(_COUNT_COLOURS % encoded))


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Tab]:
    """An empty tab of a browser whose profile is in `folder`."""
    profile = folder / "profile"
    process = _start(folder, profile)
    try:
        async with aiohttp.ClientSession() as session:
            port = await _devtools_port(process, profile / "DevToolsActivePort")
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                page = next(one for one in await answer.json() if one["type"] == "page")
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as devtools:
                tab = Tab(devtools)
                listening = asyncio.create_task(tab.listen())
                for domain in ("Page", "Network", "Log", "Runtime"):
                    await tab.send(f"{domain}.enable")
                await tab.send("Page.addScriptToEvaluateOnNewDocument", source=_WATCH_TERMINAL)
                try:
                    yield tab
                finally:
                    listening.cancel()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _start(home: Path, profile: Path) -> subprocess.Popen[bytes]:
    assert _PROGRAM is not None
    return subprocess.Popen(
        [
            _PROGRAM,
            *(
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ),
            *(
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--mute-audio",
            ),
            *(
                "--remote-debugging-port=0",
                f"--user-data-dir={profile}",
                "--window-size=1200,800",
                "about:blank",
            ),
        ],
        env={**os.environ, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def _first_line(file: Path) -> str:
    """'' until it is written."""
    try:
        return file.read_text().partition("\n")[0]
    except FileNotFoundError:
        return ""


async def _devtools_port(process: subprocess.Popen[bytes], file: Path) -> int:
    over = deadline()
    while True:
        if line := _first_line(file):
            return int(line)
        assert process.poll() is None, f"chromium ended with {process.returncode}"
        assert time.monotonic() < over
        await asyncio.sleep(0.05)
