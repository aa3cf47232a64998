"""Lets valid requests meet what exists: items made before, and holds that answers have shown.

A random name finds nothing, and nine of ten requests would test the 404. Requests that are wrong on
purpose stay as they are.
"""

import collections
import re

import schemathesis

ITEMS = ["plain", "limited", "spread", "seasons", "gone"]
HOLDS = collections.deque(maxlen=64)
KEYS = collections.deque(maxlen=64)
HOLD_ID = re.compile(r"hld_[0-9a-z]+")


def _number(text):
    return sum(str(text).encode("utf-8", "surrogatepass"))


def _is_negative(case):
    generation = getattr(case.meta, "generation", None)
    return generation is None or generation.mode.is_negative


@schemathesis.hook
def before_call(context, case, kwargs):
    if _is_negative(case):
        return
    path = case.path_parameters or {}
    for name, pool in (("item", ITEMS), ("id", HOLDS), ("key", KEYS)):
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
