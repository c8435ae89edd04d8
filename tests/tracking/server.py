"""A W&B server on the loopback: as much of its GraphQL, file stream and uploads as runs, `wandb sync` and reports ask for."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENTITY = "someone"
PROJECT_ID = "UHJvamVjdA=="
VIEWER = {
    **{"id": "VXNlcg==", "name": ENTITY, "username": ENTITY, "email": "a@b.c", "entity": ENTITY},
    **{"flags": "{}", "admin": False, "teams": {"edges": []}, "defaultEntity": {"name": ENTITY}},
}
SERVER = {"cliVersionInfo": {"max_cli_version": "9.9.9"}, "latestLocalVersionInfo": None, "features": [], "messages": []}


@dataclass
class Received:
    """runs: by id, what they were created with, their steps and whether they are complete. views: reports. asked: GraphQL operations."""

    url: str = ""
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    views: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def run(self, name: str) -> dict[str, Any]:
        return self.runs.setdefault(name, {"history": [], "summary": {}, "complete": False})


def _upsert_bucket(received: Received, v: dict[str, Any]) -> dict[str, Any]:
    run = received.run(v["name"])
    run.update({key: value for key, value in v.items() if value is not None})
    project = {"id": PROJECT_ID, "name": v["project"], "entity": {"id": "RW50aXR5", "name": ENTITY}}
    shown = {"name": v["name"], "displayName": v.get("displayName"), "description": "", "config": "{}", "sweepName": None}
    bucket = {"id": "QnVja2V0", **shown, "historyLineCount": 0, "project": project}
    return {"upsertBucket": {"bucket": bucket, "inserted": True}}


def _create_files(received: Received, v: dict[str, Any]) -> dict[str, Any]:
    files = [{"name": name, "uploadUrl": f"{received.url}/upload/{name}"} for name in v["files"]]
    return {"createRunFiles": {"runID": "QnVja2V0", "uploadHeaders": [], "files": files}}


def _upsert_view(received: Received, v: dict[str, Any]) -> dict[str, Any]:
    name = v["id"] or f"view-{len(received.views)}"
    received.views[name] = {**v, "spec": json.loads(v["spec"])}
    project = {"id": PROJECT_ID, "name": v["projectName"], "entityName": v["entityName"]}
    shown = {key: v[key] for key in ("name", "displayName", "description", "spec", "type")}
    return {"upsertView": {"view": {"id": name, **shown, "project": project, "updatedAt": "2026-01-01T00:00:00Z"}, "inserted": True}}


def _projects(received: Received, v: dict[str, Any]) -> dict[str, Any]:
    named = {"id": PROJECT_ID, "entityName": ENTITY, "createdAt": "2026-01-01T00:00:00Z", "isBenchmark": False, "user": None}
    names = dict.fromkeys(run["project"] for run in received.runs.values())
    edges = [{"node": {"__typename": "Project", "name": name, **named}} for name in names]
    return {"models": {"pageInfo": {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}, "edges": edges}}


ANSWERS: dict[str, Callable[[Received, dict[str, Any]], dict[str, Any]]] = {
    "UpsertBucket": _upsert_bucket,
    "CreateRunFiles": _create_files,
    "upsertView": _upsert_view,
    "GetProjects": _projects,
    "ProjectInternalId": lambda received, v: {"project": {"id": PROJECT_ID, "internalId": PROJECT_ID}},
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    received: Received

    def log_message(self, *args: object) -> None:
        pass

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        if self.path == "/graphql":
            value: Any = {"data": self.graphql(json.loads(body))}
        elif stream := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path):
            value = self.file_stream(stream[1], json.loads(body))
        else:  # uploads and telemetry
            value = {}
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = answer  # noqa: N815 (the names that http.server calls)

    def graphql(self, asked: dict[str, Any]) -> dict[str, Any]:
        named = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
        name = named[1] if named else ""
        self.received.asked.append(name)
        if name in ANSWERS:
            return ANSWERS[name](self.received, asked.get("variables") or {})
        return {"viewer": VIEWER, "serverInfo": SERVER}

    def file_stream(self, run: str, sent: dict[str, Any]) -> dict[str, Any]:
        known = self.received.run(run)
        for name, part in (sent.get("files") or {}).items():
            lines = [json.loads(line) for line in part["content"]]
            if name == "wandb-history.jsonl":
                known["history"] += lines
            elif name == "wandb-summary.json":
                known["summary"] = lines[-1]
        known["complete"] |= bool(sent.get("complete"))
        return {}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients are killed with their connections open."""


@contextlib.contextmanager
def wandb_server() -> Iterator[Received]:
    received = Received()
    handler = type("OurHandler", (Handler,), {"received": received})
    with Server(("127.0.0.1", 0), handler) as server:
        received.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield received
        server.shutdown()
        thread.join()
