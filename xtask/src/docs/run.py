"""Runs the documents' commands: run.py BATON ROOT SMOLLM2 [DOCUMENT..]. Ends with one line.

Each document is followed in a folder of its own, block by block of `sh`. A line that serves (`baton
serve`, `baton stage`, `baton probe --answer`) goes on in the background until the document ends or
begins another ring. A block of `text` after one of `sh`, before the next heading, states its
output: each of its lines must be there, whatever its numbers and hashes. Every step, its seconds
and its output go into `target/docs/`, one transcript a document. `sh fails` must fail, `sh on A` is
a test's of its own, `sh not run` is not run here, nor is what builds.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

BATON, ROOT, SMOLLM2 = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
DOCUMENTS = sys.argv[4:] or ["README.md", *sorted(
    str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")), "packaging/README.md"]
PATIENCE_S = 300
# What takes minutes, as it is run here.
SHORTER = {
    r"^baton check (model\.gguf|\$M) .*":
        " --tokens 2 --prompt 24 --threads 1 --chunks 64 --streams 1",
    r"^baton bench \$M .*": " --runs 1 --prompt 16 --decode 4",
}
STAYS = r"baton (serve|stage|node) |baton probe .*--answer"
BUILDS = ("cargo ", "rustup ", "alias ")
counts = {"run": 0, "shortened": 0, "lines": 0, "builds": 0, "elsewhere": 0}


def blocks(text):
    """Kind and lines of each fenced block; a heading ends what may state an output."""
    kind, found = None, []
    for line in text.splitlines():
        bare = line.strip()
        if kind is None and bare.startswith("```"):
            kind, inside, indent = bare[3:], [], len(line) - len(line.lstrip())
        elif kind is not None and bare == "```":
            found.append((kind, inside))
            kind = None
        elif kind is not None:
            inside.append(line[indent:])
        elif line.startswith("#"):
            found.append(("heading", [line]))
    return found


def commands(lines):
    """Lines joined where they go on: after a backslash, inside quotes, up to a `<<'END'`'s end."""
    whole, found, end = "", [], None
    for line in lines:
        whole += line + "\n"
        begun = re.search(r"<<'(\w+)'$", line)
        end = begun.group(1) if begun else None if line == end else end
        if end or line.endswith("\\") or whole.count("'") % 2 or whole.count('"') % 2:
            continue
        if whole.strip() and not whole.lstrip().startswith("#"):
            found.append(whole.strip())
        whole = ""
    return found


def plain(line):
    """A line without what differs between runs."""
    line = re.sub(r"\b[0-9a-f]{12,}\b", "HASH", line)
    return re.sub(r"\s+", " ", re.sub(r"\d[\d.,]*", "N", line)).strip()


class Follower:
    def __init__(self, document, folder):
        self.document, self.folder = document, folder
        self.variables, self.servers = [], []
        self.env = os.environ | {
            "PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder), "NO_COLOR": "1",
            "BATON_CACHE": os.environ["BATON_CACHE"], "PIP_NO_INPUT": "1",
        }
        transcript = ROOT / "target/docs" / document.replace("/", "-").replace(".md", ".txt")
        transcript.parent.mkdir(parents=True, exist_ok=True)
        self.transcript = transcript.open("w")
        (folder / "bin").mkdir()
        (folder / "bin/baton").symlink_to(BATON)
        (folder / "golden").symlink_to(ROOT / "golden")
        for name in ("model.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"):
            (folder / name).symlink_to(SMOLLM2)

    def fail(self, why):
        logs = "".join(f"\n== {log}\n{log.read_text()[-2000:]}" for _, log, _ in self.servers)
        raise SystemExit(f"docs: {self.document}: {why}{logs}")

    def shell(self, line):
        return ["bash", "-e", "-o", "pipefail", "-c", "\n".join([*self.variables, line])]

    def serve(self, line):
        """In the background; rank 0 is waited for."""
        words = shlex.split(line.replace("\\\n", " "))
        leads = words[1] == "serve"
        if any(leads for _, _, leads in self.servers):
            self.stop()
        log = self.folder / f"{len(self.servers)}.log"
        with log.open("w") as out:
            process = subprocess.Popen(self.shell(f"exec {line}"), cwd=self.folder, env=self.env,
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                       start_new_session=True)
        self.servers.append((process, log, leads))
        if not leads:
            return
        if "--next" in words and not any(not leads for _, _, leads in self.servers):
            return
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if process.poll() is not None:
                self.fail(f"`{line}` ended with {process.returncode}")
            try:
                urllib.request.urlopen("http://127.0.0.1:8080/ready").read()
                return
            except OSError:
                time.sleep(0.05)
        self.fail(f"`{line}` is not ready")

    def stop(self):
        for process, _, _ in reversed(self.servers):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process, _, _ in self.servers:
            if process.wait(60) not in (0, -signal.SIGTERM):
                self.fail(f"a server ended with {process.returncode}")
        self.servers.clear()

    def run(self, line, fails):
        """A command to its end; what it printed."""
        for pattern, more in SHORTER.items():
            if re.match(pattern, line, re.DOTALL):
                line += more
                counts["shortened"] += 1
        result = subprocess.run(self.shell(line), cwd=self.folder, env=self.env, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, timeout=PATIENCE_S)
        if (result.returncode != 0) != fails:
            self.fail(f"`{line}` ended with {result.returncode}:\n{result.stdout}")
        return result.stdout

    def block(self, lines, fails):
        said = ""
        for line in commands(lines):
            line = re.sub(r"^cargo run --release --locked -- ", "baton ", line)
            if line.startswith(BUILDS):
                counts["builds"] += 1
                continue
            counts["run"] += 1
            since, output = time.monotonic(), ""
            if re.fullmatch(r"\w+=\S+", line):
                self.variables.append(line)
            elif re.match(STAYS, line, re.S) and not fails:
                self.serve(line)
            else:
                output = self.run(line, fails)
            said += output
            self.transcript.write(f"$ {line}\n{output}[{time.monotonic() - since:.1f} s]\n")
        return said

    def follow(self):
        said = None
        for kind, lines in blocks((ROOT / self.document).read_text()):
            if kind == "heading":
                said = None
            elif kind in ("sh", "sh fails"):
                said = self.block(lines, kind == "sh fails")
            elif kind == "sh not run" or kind.startswith("sh on "):
                counts["elsewhere"] += len(commands(lines))
                said = None
            elif kind == "python" and said is not None:
                self.python("\n".join(lines))
            elif kind == "text" and said is not None:
                self.states(lines, said)
        self.stop()
        self.transcript.close()

    def states(self, lines, said):
        there = [plain(line) for line in said.splitlines()]
        for line in lines:
            if not line.strip() or line.strip().startswith("("):
                continue
            counts["lines"] += 1
            # What is drawn by a model is its own; so is a path before what is stated.
            if not any(plain(line) in found for found in there):
                self.fail(f"states `{line}`, where this came:\n{said}")

    def python(self, script):
        """A client's, where one that the tests installed is there."""
        found = [*ROOT.glob("target/*/bin/python"), *ROOT.glob("target/*/venv/bin/python")]
        pythons = [python for python in found if has_openai(python)]
        if not pythons:
            print("skipped: no Python with openai under target/")
            return
        counts["run"] += 1
        result = subprocess.run([pythons[0], "-c", script], capture_output=True, text=True)
        self.transcript.write(f"$ python\n{result.stdout}")
        if result.returncode or not result.stdout.strip():
            self.fail(f"the script: {result.stdout}{result.stderr}")


def has_openai(python):
    return subprocess.run([python, "-c", "import openai"], capture_output=True).returncode == 0


def main():
    os.environ.setdefault("BATON_CACHE", str(Path.home() / ".cache/baton"))
    for document in DOCUMENTS:
        since = time.monotonic()
        before = counts["run"]
        with tempfile.TemporaryDirectory() as folder:
            follower = Follower(document, Path(folder))
            try:
                follower.follow()
            finally:
                for process, _, _ in follower.servers:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
        if counts["run"] > before:
            took = time.monotonic() - since
            print(f"ok    {document}: {counts['run'] - before} commands, {took:.1f} s", flush=True)
    print(f"docs: {counts['run']} commands of {len(DOCUMENTS)} documents run, "
          f"{counts['shortened']} of them shortened, {counts['lines']} stated lines found; "
          f"{counts['builds']} only build, {counts['elsewhere']} are other tests' or not for here")


main()
