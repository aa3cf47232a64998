#!/usr/bin/env python3
"""Fuzzes every operation of a real cluster's /openapi.json with schemathesis.

    make fuzz                                  five minutes, a random seed
    make fuzz ARGS="--seconds 3600"            an hour
    make fuzz ARGS="--seed 7 --seconds 60"     the requests of seed 7 again

It makes an environment with the versions of requirements.txt under target/, starts three nodes on
free ports of the loopback, makes a few items, and lets schemathesis send what the document allows
and what it forbids. Every answer is held against the document; a 5xx may only be one of those that
mean "not now" (schemathesis.toml). Orders that change the nodes are given in earnest (hooks.py). At
the end every node must be alive, vote and be ready, and every item's books must balance.

Exit codes: 0 nothing found, 1 something was, 2 the command line or the machine, 77 skipped: no
Python environment can be made here (which is said, and is no pass).
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SKIPPED = 77


def skip(why):
    print(f"SKIPPED: the HTTP fuzzer did not run: {why}", flush=True)
    sys.exit(SKIPPED)


def environment(out):
    """Makes the Python environment, or takes the one that is there; returns its folder."""
    wanted = (HERE / "requirements.txt").read_text()
    env, mark = out / "venv", out / "venv" / "requirements"
    if mark.is_file() and mark.read_text() == wanted:
        return env
    shutil.rmtree(env, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", env], capture_output=True, text=True)
    if made.returncode != 0:
        skip(f"python -m venv: {(made.stdout + made.stderr).strip()[-400:]}")
    pip = [env / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pip += ["-r", HERE / "requirements.txt"]
    try:
        made = subprocess.run(pip, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        skip("pip install: no answer from the package index in 300 s")
    if made.returncode != 0:
        skip(f"pip install: {made.stderr.strip()[-400:]}")
    mark.write_text(wanted)
    return env


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def call(url, method="GET", body=None, headers=()):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers=dict(headers))
    if data is not None:
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as problem:
        return problem.code, problem.read().decode()


class Cluster:
    """Three nodes on the loopback. Ends those that it started, and no others."""

    def __init__(self, binary, out, data):
        self.nodes, self.urls = [], []
        ports = free_ports(6)
        for node in range(3):
            http, peer = (f"127.0.0.1:{ports[node * 2 + at]}" for at in (0, 1))
            settings = {
                "node.data_dir": str(data / f"n{node + 1}"),
                "http.listen": http,
                "peer.listen": peer,
                "log.ballast_bytes": "0",
                "log.segment_bytes": "8388608",
            }
            words = [f"--set={key}={value}" for key, value in settings.items()]
            log = open(out / f"n{node + 1}.log", "w")
            # Their standard input ends with this process, however it ends, and they with it.
            words.append("--stop-with-stdin")
            child = subprocess.Popen(
                [binary, "serve", *words], stdin=subprocess.PIPE, stderr=log, stdout=log
            )
            self.nodes.append(child)
            self.urls.append(f"http://{http}")

    def found(self, binary, out):
        deadline = time.monotonic() + 60
        words = [binary, "cluster", "init", "--nodes", ",".join(self.urls), "--shards", "2"]
        while True:
            made = subprocess.run(
                [*words, "--plan", out / "plan.json"], capture_output=True, text=True
            )
            if made.returncode == 0:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"cluster init: {made.stderr}")
            time.sleep(0.2)
        self.wait_ready(60)

    def wait_ready(self, seconds):
        deadline = time.monotonic() + seconds
        for url in self.urls:
            while True:
                try:
                    status, text = call(f"{url}/readyz")
                except OSError as error:
                    status, text = 0, str(error)
                if status == 200:
                    break
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{url} is not ready: {text}")
                time.sleep(0.1)

    def end(self):
        for node in self.nodes:
            if node.poll() is None:
                node.send_signal(signal.SIGTERM)
        for node in self.nodes:
            try:
                node.wait(timeout=15)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()


def make_items(url):
    window = {"opens_at": "2020-01-01T00:00:00Z"}
    items = {
        "plain": {"total": 1_000_000},
        "limited": {"total": 1_000, "limit_per_buyer": 3},
        "spread": {
            "total": 1_000,
            "regions": {"eu": {"quota": 600, "buckets": 2}, "us": {"quota": 400}},
        },
        "seasons": {"total": 50, "sale": window},
        "gone": {"total": 1},
    }
    for name, body in items.items():
        status, text = call(f"{url}/v1/items/{name}", "PUT", body)
        if status not in (200, 201, 202):
            print(f"note: the item {name} could not be made: {status} {text[:200]}")


def books_balance(cluster):
    """Reads every item's audit of every tenant that the fuzzer may have used by default."""
    faults, cursor, seen = [], "", 0
    url = cluster.urls[0]
    while True:
        status, text = call(f"{url}/v1/items?limit=100{cursor}")
        if status != 200:
            return [f"the items cannot be listed: {status} {text[:200]}"], seen
        page = json.loads(text)
        for item in page["items"]:
            name = urllib.parse.quote(item["item"], safe="")
            status, text = call(f"{url}/v1/items/{name}/audit")
            seen += 1
            if status == 404:
                continue
            if status != 200 or not json.loads(text)["conserved"]:
                faults.append(f"{name}: {status} {text[:300]}")
        if not page.get("next_cursor"):
            return faults, seen
        cursor = "&cursor=" + urllib.parse.quote(page["next_cursor"], safe="")


def members_are_left(cluster):
    """Undoes what was ordered: drained nodes may lead again, machines are awaited no more, and one
    that the fuzzer let in with a token is taken out. Tells when the three do not vote as they did.
    """
    url, seen = cluster.urls[0], []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status, text = call(f"{url}/admin/v1/nodes")
        if status != 200:
            time.sleep(0.3)
            continue
        told = json.loads(text)
        left_out = ("invited", "removed")
        seen = [(node["id"], node["state"]) for node in told["nodes"]]
        seen = [(node, state) for node, state in seen if state not in left_out]
        waiting = [one for one in told["operations"] if one["state"] not in ("done", "cancelled")]
        for one in waiting:
            call(f"{url}/admin/v1/operations/{one['id']}/cancel", "POST")
        for node, state in seen:
            if node > 3:
                call(f"{url}/admin/v1/nodes/{node}", "DELETE")
            if state in ("drained", "draining"):
                call(f"{url}/admin/v1/nodes/{node}/undrain", "POST")
        if not waiting and seen == [(1, "voter"), (2, "voter"), (3, "voter")]:
            return []
        time.sleep(0.3)
    return [f"the nodes 1, 2 and 3 do not vote as they did: {seen}"]


def invariants(cluster):
    """Tells of a law that a node found broken."""
    faults = []
    for url in cluster.urls:
        _, text = call(f"{url}/metrics")
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("holdfast_invariant_failures") and float(value) != 0:
                faults.append(f"{url}: {line}")
    return faults


def main():
    parser = argparse.ArgumentParser(description="Fuzzes the HTTP interface of a real cluster.")
    parser.add_argument("--seconds", type=int, default=300, help="how long; 300 when absent")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--binary", type=pathlib.Path, help="target/debug/holdfast when absent")
    parser.add_argument("--out", type=pathlib.Path, help="target/http-fuzz when absent")
    options = parser.parse_args()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    out = options.out or target / "http-fuzz"
    binary = options.binary or target / "debug" / "holdfast"
    if not binary.is_file():
        print(f"{binary} is not there: build it first (cargo build)", file=sys.stderr)
        sys.exit(2)
    out.mkdir(parents=True, exist_ok=True)
    env = environment(out)
    print(f"seed {options.seed}, {options.seconds} s, {binary}", flush=True)
    data = pathlib.Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
    cluster = Cluster(binary, out, data)
    try:
        cluster.found(binary, out)
        make_items(cluster.urls[0])
        words = [
            env / "bin/schemathesis", "--config-file", HERE / "schemathesis.toml", "run",
            f"{cluster.urls[0]}/openapi.json",
            "--max-time", str(options.seconds), "--seed", str(options.seed),
            "--workers", "1", "--request-timeout", "35",
            "--warnings", "off", "--no-color",
            "--report", "junit", "--report-dir", out / "reports",
        ]
        known = dict(os.environ, SCHEMATHESIS_HOOKS="hooks", PYTHONPATH=str(HERE))
        found = subprocess.run(words, env=known, cwd=out).returncode
        ended = [at for at, node in enumerate(cluster.nodes, 1) if node.poll() is not None]
        faults = [f"node {at} ended" for at in ended]
        faults += members_are_left(cluster)
        cluster.wait_ready(60)
        unbalanced, items = books_balance(cluster)
        faults += unbalanced + invariants(cluster)
        for fault in faults:
            print(f"FAULT: {fault}")
        print(f"{items} items audited; schemathesis ended with {found}")
        if found != 0 or faults:
            again = f"--seed {options.seed} --seconds {options.seconds}"
            print(f"again: tests/http_fuzz/run.py {again}")
            sys.exit(1)
    finally:
        cluster.end()
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    main()
