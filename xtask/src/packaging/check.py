"""Checks of packaging/: check.py BATON PACKAGING. Ends with one line."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import kubernetes_validate
import yaml

BATON, PACKAGING = sys.argv[1], Path(sys.argv[2])
BIN = Path(sys.executable).parent
READY_S = 60
SET_FIELDS = {"replicas", "startupPolicy", "leaderWorkerTemplate"}
TEMPLATE_FIELDS = {"size", "restartPolicy", "leaderTemplate", "workerTemplate"}
said = []


def done(what):
    print(f"ok    {what}", flush=True)
    said.append(what)


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        line = shlex.join(map(str, command))
        raise SystemExit(f"packaging: {line}\n{result.stdout}{result.stderr}")
    return result.stdout + result.stderr


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def ring(what, commands, hosts, folder):
    """Starts `commands`, rank 0 first, with each host of `hosts` as a port of loopback."""
    ports = free_ports(len(hosts) + 1)
    key = folder / f"{what}.key"
    run(BATON, "key", "new", key)
    processes = []
    for rank, words in enumerate(commands):
        line = shlex.join(words)
        for host, port in zip(hosts, ports):
            line = line.replace(f"{host}:7400", f"127.0.0.1:{port}")
        line = re.sub(r"--key \S+", f"--key {key}", line)
        line = line.replace("--host 0.0.0.0", "")
        if rank == 0:
            line += f" --port {ports[-1]}"
        log = (folder / f"{what}-{rank}.log").open("w")
        processes.append(subprocess.Popen([BATON, *shlex.split(line)], stderr=log))
    try:
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            ended = [p.args for p in processes if p.poll() is not None]
            if ended:
                raise SystemExit(f"packaging: {what}: {ended} ended, as its log says: {folder}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{ports[-1]}/ready").read()
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise SystemExit(f"packaging: {what}: not ready within {READY_S} s")
    finally:
        for process in processes:
            process.terminate()
        ends = [process.wait(60) for process in processes]
    if any(ends):
        raise SystemExit(f"packaging: {what}: ended with {ends}")
    done(f"{what}: its {len(commands)} ranks serve and end well, on loopback")


UNITS = ("serve", "stage", "node")


def units(folder):
    commands = []
    keys = folder / "api-keys"
    keys.write_text("sk-for-the-test\n")
    keys.chmod(0o600)
    for name in UNITS:
        text = (PACKAGING / f"systemd/baton-{name}.service").read_text()
        settings = dict(line.split("=", 1) for line in
                        (PACKAGING / f"systemd/{name}.env").read_text().splitlines()
                        if not line.startswith("#"))
        start = re.search(r"ExecStart=\S+ ((?:.*\\\n)*.*)", text)[1].replace("\\\n", " ")
        settings |= {"MODEL": "baton-tiny", "LAYOUT": "0:4,4:8"}
        for key, value in settings.items():
            start = start.replace(f"${{{key}}}", value)
        if name != "node":
            commands.append(shlex.split(start.replace("/etc/baton/api-keys", str(keys))))
        # Its user and path need not exist here.
        text = text.replace("/usr/local/bin/baton", BATON)
        (folder / f"baton-{name}.service").write_text(re.sub("(User|Group)=.*", r"\1=root", text))
    if shutil.which("systemd-analyze"):
        files = [str(folder / f"baton-{name}.service") for name in UNITS]
        complaints = run("systemd-analyze", "verify", "--man=no", *files).strip()
        if any(f"baton-{name}" in complaints for name in UNITS):
            raise SystemExit(f"packaging: {complaints}")
        done("systemd-analyze verify: three units")
    else:
        print("skipped: systemd-analyze is not here")
    ring("systemd", commands, ["10.0.0.1", "10.0.0.2"], folder)


def compose(folder):
    file = PACKAGING / "docker/compose.yaml"
    run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", file)
    done("compose.yaml: the compose specification's schema")
    services = yaml.safe_load(file.read_text())["services"]
    default = lambda text: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    commands = [shlex.split(default(services[f"rank{rank}"]["command"])) for rank in (0, 1)]
    hosts = [services[f"rank{rank}"]["networks"]["ring"]["ipv4_address"] for rank in (0, 1)]
    ring("compose", commands, hosts, folder)
    run(BIN / "hadolint", PACKAGING / "docker/Dockerfile")
    done("Dockerfile: hadolint")


def kubernetes(folder):
    objects = list(yaml.safe_load_all((PACKAGING / "kubernetes/ring.yaml").read_text()))
    sets, service = objects
    kubernetes_validate.validate(service, "1.37", strict=True)
    spec = sets["spec"]
    template = spec["leaderWorkerTemplate"]
    if set(spec) - SET_FIELDS or set(template) - TEMPLATE_FIELDS or template["size"] != 2:
        raise SystemExit("packaging: a field that a LeaderWorkerSet has not")
    commands = []
    for part in ("leaderTemplate", "workerTemplate"):
        pod = {"apiVersion": "v1", "kind": "Pod", **template[part]}
        pod["metadata"] = {"name": "baton", **pod["metadata"]}
        kubernetes_validate.validate(pod, "1.37", strict=True)
        commands.append(pod["spec"]["containers"][0]["args"])
    done("ring.yaml: Kubernetes' schemas for service and pods, a LeaderWorkerSet's fields")
    known = {"$(LWS_LEADER_ADDRESS)": "leader", "$(LWS_WORKER_INDEX)": "1",
             "baton-0-1.baton": "worker"}
    for words, host in zip(commands, ("leader", "worker")):
        for at, word in enumerate(words):
            for name, value in (known | {"$(POD_IP)": host}).items():
                word = word.replace(name, value)
            words[at] = word
    ring("kubernetes", commands, ["leader", "worker"], folder)


def glibc():
    """The newest symbol version of glibc that the binary asks for."""
    if not shutil.which("objdump"):
        print("skipped: objdump is not here")
        return "unknown"
    found = set(re.findall(r"GLIBC_(\d+)\.(\d+)", run("objdump", "-T", BATON)))
    newest = max((tuple(map(int, pair)) for pair in found), default=None)
    needs = "none: static" if newest is None else f"glibc {newest[0]}.{newest[1]} or newer"
    stated = re.search(r"glibc (\d+)\.(\d+)", (PACKAGING / "README.md").read_text())
    if newest and newest > tuple(map(int, stated.groups())):
        raise SystemExit(f"packaging: the binary needs {needs}, README.md says {stated[0]}")
    done(f"the binary needs {needs}")
    return needs


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        os.environ["BATON_CACHE"] = str(folder / "cache")
        units(folder)
        compose(folder)
        kubernetes(folder)
    needs = glibc()
    print(f"packaging: {len(said)} checks passed; {needs}")


main()
