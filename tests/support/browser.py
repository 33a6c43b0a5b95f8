"""A headless Chromium, controlled by its DevTools protocol over a pipe; standard library only."""
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

import runs

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One page. `problems`: errors and warnings of its console, and exceptions; `requests`: addresses it asked for."""

    def __init__(self, width=1280, height=900, dark=False, within=30):
        self.folder = tempfile.mkdtemp(prefix="convoy-browser-")
        to_browser, self.commands = os.pipe()
        self.answers, from_browser = os.pipe()

        # Chromium reads commands from descriptor 3 and writes answers to 4. Both pipes may have these numbers already.
        def connect():
            ours, theirs = os.dup(to_browser), os.dup(from_browser)
            os.dup2(ours, 3)
            os.dup2(theirs, 4)

        words = [PROGRAM, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.folder}",
                 "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
                 "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
                 "about:blank"]
        if os.getuid() == 0:
            words.insert(1, "--no-sandbox")  # Chromium refuses its sandbox for root; it opens only our own file
        self.process = subprocess.Popen(words, preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.buffer, self.events = 0, b"", []
        self.problems, self.requests, self.session = [], [], None
        self.deadline = time.monotonic() + within
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one for one in targets if one["type"] == "page")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.size(width, height)
        self.theme("dark" if dark else "light")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                runs.check("error" not in answer, f"browser: {method}: {answer.get('error')}")
                return answer["result"]

    def receive(self):
        while b"\0" not in self.buffer:
            left = max(0, self.deadline - time.monotonic())
            runs.check(select.select([self.answers], [], [], left)[0], "the browser does not answer in time")
            read = os.read(self.answers, 1 << 20)
            runs.check(read, "the browser has ended")
            self.buffer += read
        line, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(line)
        self.note(message.get("method"), message.get("params", {}))
        return message

    def note(self, method, event):
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        if method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(one.get("value", one.get("description"))) for one in event["args"]))
        if method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.problems.append(event["entry"]["text"])
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)

    def theme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, where):
        url = where if "://" in str(where) else pathlib.Path(where).resolve().as_uri()
        self.events.clear()
        self.call("Page.navigate", url=url)
        while "Page.loadEventFired" not in self.events:
            self.receive()

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        runs.check("exceptionDetails" not in result, f"browser: {expression}: {result.get('exceptionDetails')}")
        return result["result"].get("value")

    def until(self, expression, seconds=10):
        end = time.monotonic() + seconds
        while not self.value(expression):
            runs.check(time.monotonic() < end, f"browser: not after {seconds} s: {expression}")
            time.sleep(0.05)

    def click(self, selector):
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path, whole=False):
        clip = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1},
                    "captureBeyondViewport": True}
        picture = self.call("Page.captureScreenshot", format="png", **clip)
        pathlib.Path(path).write_bytes(base64.b64decode(picture["data"]))
