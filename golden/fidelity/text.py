#!/usr/bin/env python3
"""Fetches the text of the measurement by package name and writes it to OUT: python text.py OUT

A public-domain book and a technical manual, from Debian 12's packages dict-devil and debian-policy, 50,000 bytes of each.
Needs apt-get, dpkg-deb.
"""
import gzip, hashlib, os, subprocess, sys, tempfile

PARTS = [  # package, version, file, where the text begins, bytes of it
    ("dict-devil", "1.0-13.1", "usr/share/dictd/devil.dict.dz", "_The Devil's Dictionary_ was begun", 50_000),
    ("debian-policy", "4.6.2.0", "usr/share/doc/debian-policy/policy.txt.gz", "\n1.1. Scope\n", 50_000),
]
SHA256 = "cde7530fa1de0f7d5ce572606fbced29e27ac1a4aa1e51410b78647829a88830"


def part(folder, package, version, path, begin, size):
    subprocess.run(["apt-get", "download", "-qq", f"{package}={version}"], cwd=folder, check=True)
    [deb] = [name for name in os.listdir(folder) if name.startswith(package + "_")]
    subprocess.run(["dpkg-deb", "-x", deb, "x"], cwd=folder, check=True)
    with gzip.open(os.path.join(folder, "x", path)) as file:
        text = file.read()
    return text[text.index(begin.encode()):][:size]


def fetch():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        text = b"\n\n".join(part(folder, *which) for which in PARTS)
    found = hashlib.sha256(text).hexdigest()
    assert found == SHA256, f"another text: SHA-256 {found}, expected {SHA256}"
    return text.decode()


if __name__ == "__main__":
    with open(sys.argv[1], "w") as out:
        out.write(fetch())
