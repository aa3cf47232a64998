"""Lets valid requests meet what exists: items made before, holds that answers have shown, nodes.

A random name finds nothing, and nine of ten requests would test the 404. Requests that are wrong on
purpose stay as they are. Orders that change the nodes are given in earnest, but for the word that
takes a vote all the same (`allow_fewer`): with three voters the preflight refuses the rest, and a
cluster of three is left to be fuzzed.
"""

import collections
import re

import schemathesis

ITEMS = ["plain", "limited", "spread", "seasons", "gone"]
HOLDS = collections.deque(maxlen=64)
KEYS = collections.deque(maxlen=64)
# The three that there are, one that may be awaited, and one that never was.
NODES = ["1", "2", "3", "4", "4000"]
OPERATIONS = [str(number) for number in range(1, 9)]
SHARDS = ["0", "1", "7"]
HOLD_ID = re.compile(r"hld_[0-9a-z]+")


def _number(text):
    return sum(str(text).encode("utf-8", "surrogatepass"))


def _is_negative(case):
    generation = getattr(case.meta, "generation", None)
    return generation is None or generation.mode.is_negative


def _ids(path):
    """What an `id` in this path names."""
    if path.startswith("/admin/v1/nodes"):
        return NODES
    return OPERATIONS if path.startswith("/admin/v1/operations") else HOLDS


def _spare_the_cluster(case):
    """Takes no vote all the same, whatever else is wrong with the request."""
    query = case.query or {}
    if not case.path.startswith("/admin/v1/nodes") or "allow_fewer" not in query:
        return
    if query.get("dry_run") not in (True, "true"):
        del query["allow_fewer"]


@schemathesis.hook
def before_call(context, case, kwargs):
    _spare_the_cluster(case)
    if _is_negative(case):
        return
    path = case.path_parameters or {}
    pools = (("item", ITEMS), ("id", _ids(case.path)), ("key", KEYS), ("shard", SHARDS))
    for name, pool in pools:
        if name not in path or not pool:
            continue
        number = _number(path[name])
        # One of five keeps its own name.
        if number % 5:
            path[name] = pool[number % len(pool)]
    query = case.query or {}
    if "item" in query and _number(query["item"]) % 5:
        query["item"] = ITEMS[_number(query["item"]) % len(ITEMS)]
    body = case.body
    if isinstance(body, dict) and isinstance(body.get("item"), str) and _number(body["item"]) % 5:
        body["item"] = ITEMS[_number(body["item"]) % len(ITEMS)]


@schemathesis.hook
def after_call(context, case, response):
    for found in HOLD_ID.findall(response.text or ""):
        if found not in HOLDS:
            HOLDS.append(found)
    key = (case.headers or {}).get("Idempotency-Key")
    if key and response.status_code in (200, 201) and case.path.endswith("/holds"):
        KEYS.append(key)
