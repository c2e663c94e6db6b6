"""The page in a browser: drive.py BATON CHROMIUM FOLDER. Screenshots go into FOLDER.

Beside the page `baton top` is at a terminal, whose screen is drawn by the browser."""

import fcntl
import html
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from pathlib import Path

import pyte
from playwright.sync_api import expect, sync_playwright

BATON, CHROMIUM, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
ASK = "Tell me a story about a brave rabbit named Tom."
PATIENCE_MS = 60_000
TERMINAL = (100, 16)
TOP_S = 4
checks = 0


def check(holds, what):
    global checks
    checks += 1
    if not holds:
        raise SystemExit(f"page: {what}")


def serve():
    """A ring of three; its process and address."""
    command = [BATON, "serve", "baton-tiny", "--world", "3", "--port", "0",
               "--drafter", "none", "--threads", "1"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    address = None
    for line in server.stderr:
        if found := re.search(r"on (http://[^/]+)/v1", line):
            address = found[1]
        if "rank 0: ready" in line:
            break
    check(address, "the server did not start")
    threading.Thread(target=lambda: [None for _ in server.stderr], daemon=True).start()
    return server, address


def endless(route):
    """The page's own request, to a reply that does not end by itself."""
    body = json.loads(route.request.post_data) | {"ignore_eos": True, "max_tokens": 4000}
    route.continue_(post_data=json.dumps(body))


def top(browser, address):
    """What `baton top` has on its screen while replies are under way, photographed."""
    body = json.dumps({"prompt": ASK, "n": 8, "max_tokens": 1900, "ignore_eos": True,
                       "temperature": 1, "stream": True}).encode()
    replies = urllib.request.urlopen(urllib.request.Request(
        f"{address}/v1/completions", body, {"Content-Type": "application/json"}))
    columns, lines = TERMINAL
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen([BATON, "top", "--url", address, "--every", "0.5"], stdin=theirs,
                               stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"})
    os.close(theirs)
    screen = pyte.Screen(columns, lines)
    stream, until = pyte.ByteStream(screen), time.monotonic() + TOP_S
    while time.monotonic() < until:
        if select.select([ours], [], [], 0.1)[0]:
            stream.feed(os.read(ours, 1 << 16))
    process.terminate()
    process.wait(10)
    os.close(ours)
    replies.close()
    said = "\n".join(line.rstrip() for line in screen.display)
    page = browser.new_page(viewport={"width": 980, "height": 360})
    style = "font: 16px/1.3 monospace; background: #111; color: #ddd; margin: 0; padding: 8px"
    page.set_content(f"<body style='margin: 0; background: #111'><pre style='{style}'>"
                     f"{html.escape(said)}</pre>")
    page.screenshot(path=FOLDER / "top.png")
    page.close()
    return said


def check_top(said, proof):
    """Replies run on three ranks, and the one before has the hash that the page showed."""
    check(re.search(r"[1-9]\d* running", said), f"top: replies are under way:\n{said}")
    for layers in ("0..2", "2..5", "5..8"):
        check(said.count(layers) == 1, f"top: a line of the layers {layers}:\n{said}")
    check(len(re.findall(r"[1-9]\d* MiB +\d+\.\d+ ms", said)) == 3, f"top: each works:\n{said}")
    check(proof in said, f"top: the last reply's hash is the page's, {proof}:\n{said}")


class Visit:
    def __init__(self, browser, address, size, scheme):
        width, height = SIZES[size]
        self.name, self.size = f"{size}-{scheme}", size
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme,
            has_touch=size == "phone", device_scale_factor=2 if size == "phone" else 1)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        self.said, self.asked = [], []
        self.page.on("console", lambda m: self.said.append(m.text) if m.type != "log" else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.address = address

    def shot(self, what):
        self.page.screenshot(path=FOLDER / f"{self.name}-{what}.png")

    def press(self, key, times=1):
        for _ in range(times):
            self.page.keyboard.press(key)

    def open(self):
        page = self.page
        page.goto(self.address)
        expect(page.locator("#model")).to_have_text("baton-tiny")
        expect(page.locator("#state")).to_have_text("ready")
        check(page.locator("#ranks li").count() == 3, "three ranks")
        wide = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        check(wide, f"{self.name}: nothing is wider than the screen")
        page.route("**/v1/chat/completions", endless)

    def ask(self, text):
        """By keyboard; the reply does not end by itself."""
        self.page.locator("#text").focus()
        self.page.keyboard.type(text)
        self.press("Enter")
        return self.page.locator("#turns li.assistant").last

    def under_way(self):
        """A reply under way, photographed."""
        page = self.page
        reply = self.ask(ASK)
        expect(reply).to_contain_text("Tom")
        at = set()
        here = "[...document.querySelectorAll('#ranks li')].findIndex(r => r.className === 'here')"
        for _ in range(12):
            at.add(page.evaluate(here))
            page.wait_for_timeout(50)
        check(reply.get_attribute("aria-busy") == "true", "the reply is under way")
        self.shot("reply")
        if self.size == "phone":
            page.locator("#ring summary").click()
            self.shot("ring")
        check({0, 1, 2} <= at, f"{self.name}: the token passes every rank: {at}")
        for seen in (r"round \d+\.\d+ ms", r"memory [1-9]\d* MiB", r": [1-9][\d.]* [KMi]*B/s"):
            ranks = page.locator("#ranks li", has_text=re.compile(seen))
            expect(ranks).to_have_count(3)
        if reply.get_attribute("aria-busy") == "true":
            self.shot("ring" if self.size == "phone" else "reply")
        if self.size == "phone":
            page.locator("#ring summary").click()

    def stop(self):
        """A reply stopped by keyboard."""
        page = self.page
        self.press("Escape")
        expect(page.locator("#stop")).to_be_disabled()
        page.locator("#fresh").click()
        expect(page.locator("#turns li")).to_have_count(0)
        reply = self.ask(ASK)
        expect(reply).to_contain_text(re.compile(r"\w"))
        self.press("Escape")
        expect(reply).to_have_class(re.compile("stopped"))
        expect(page.locator("#stop")).to_be_disabled()
        page.unroute("**/v1/chat/completions", endless)

    def again(self):
        """Another reply, to its end; its proof as saved."""
        page = self.page
        before = page.locator("#turns li.assistant").inner_text()
        # Send, then Regenerate: Stop is disabled.
        page.locator("#text").focus()
        self.press("Tab", 2)
        focused = page.evaluate("document.activeElement.id")
        check(focused == "again", f"{self.name}: two tabs lead to Regenerate, not {focused}")
        self.press("Enter")
        # The key has set the page to work; the reply may be short.
        expect(page.locator("#stop")).to_be_disabled()
        replies = page.locator("#turns li.assistant")
        check(replies.count() == 1, f"{self.name}: one reply took the other's place")
        check(replies.inner_text() != before, f"{self.name}: another reply")
        if self.size == "phone":
            page.locator("#ring summary").click()
        expect(page.locator("#proof")).to_contain_text(re.compile(r"[0-9a-f]{64}"))
        page.locator("#save").scroll_into_view_if_needed()
        self.shot("proof")
        with page.expect_download() as download:
            page.locator("#save").click()
        file = FOLDER / f"{self.name}-reply.txt"
        download.value.save_as(file)
        if self.size == "phone":
            page.locator("#ring summary").click()
        return file, re.search(r"[0-9a-f]{64}", page.locator("#proof").text_content())[0]

    def settings(self):
        """Kept over a reload; refused ones are said."""
        page = self.page
        page.locator("#options summary").click()
        page.locator("#temperature").fill("3")
        self.shot("settings")
        page.locator("#text").fill("Hello")
        page.locator("#send").click()
        expect(page.locator("#turns li.error")).to_contain_text("temperature")
        self.said = [line for line in self.said if "400 (Bad Request)" not in line]
        page.reload()
        expect(page.locator("#temperature")).to_have_value("3")
        page.evaluate("localStorage.clear()")

    def close(self):
        check(not self.said, f"{self.name}: console: {self.said}")
        ours = (self.address, "data:", "blob:")
        foreign = [url for url in self.asked if not url.startswith(ours)]
        check(not foreign, f"{self.name}: asks elsewhere: {foreign}")
        self.context.close()


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    server, address = serve()
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for size in SIZES:
                for scheme in ("light", "dark"):
                    visit = Visit(browser, address, size, scheme)
                    visit.open()
                    visit.under_way()
                    visit.stop()
                    proof, shown = visit.again()
                    if (size, scheme) == ("desktop", "dark"):
                        check_top(top(browser, address), shown)
                    visit.settings()
                    visit.close()
            browser.close()
    finally:
        server.terminate()
        check(server.wait(60) == 0, "the server ended well")
    held = subprocess.run([BATON, "check", "baton-tiny", "--proof", proof],
                          capture_output=True, text=True)
    check(held.returncode == 0, f"the saved proof: {held.stdout}{held.stderr}")
    shots = len(list(FOLDER.glob("*.png")))
    print(f"page: desktop and phone, light and dark, and top, on 3 ranks: {checks} checks passed, "
          f"console quiet, {shots} screenshots in {FOLDER}")


main()
