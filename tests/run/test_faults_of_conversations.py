"""Runs in which all goes wrong that can between a model's turns: each has its ending, its count and its message, and
the run goes on. The table in docs/environments.md names these tests."""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.run.answering import SETTINGS

from proa import MakerCallback
from proa.recipes import grpo
from proa.record.journal import Journal
from proa.tasks.builtin.characters import tokenizer

pytestmark = pytest.mark.prove
PATIENCE = 20.0
"""Seconds for a call that hangs; others take milliseconds, on a machine as busy as it may be."""
PER_STEP = 4
"""Prompts."""


class Gone:
    """A server of environments that answers the first request and is gone after that."""

    def __init__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"ready")
                threading.Thread(target=outer.close).start()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Hears(MakerCallback):
    """Of each trajectory its ending, its turns, and what it began with."""

    def __init__(self):
        self.heard, self.prompts = {}, {}

    def on_trajectory_end(self, uid, trajectory):
        self.heard[uid] = (trajectory.ending, trajectory.turns)
        if trajectory.messages and trajectory.messages[0]["role"] == "user":
            self.prompts[uid] = trajectory.messages[0]["content"]

    def learn_prompts(self, folder):
        """Of those that were trained, from the record: text that an agent had continued is no message."""
        for file in (folder / "rollouts").iterdir():
            for row in map(json.loads, file.read_text().splitlines()):
                self.prompts.setdefault(row["uid"], row["prompt"])

    def of(self, order):
        """How trajectories ended whose row has this order, and after how many turns."""
        own = {prompt for prompt, one in self.orders.items() if one == order}
        return [heard for uid, heard in self.heard.items() if self.prompts.get(uid) in own]


def made(tmp_path, orders, changes, **settings):
    """A run over rows with these orders: its header, what a callback heard, and the message of each failure."""
    rows = [
        {"prompt": f"{place}>", "order": order, "folder": str(tmp_path), "url": settings.get("url", "")}
        for place, order in enumerate(orders)
    ]
    settings.pop("url", None)
    hears = Hears()
    hears.orders = {row["prompt"]: row["order"] for row in rows}
    steps = len(rows) // PER_STEP
    section = {**SETTINGS["environment"], **changes}
    given = {**SETTINGS, "environment": section, "tokenizer": tokenizer(), "task": rows, "total_steps": steps}
    given |= {"record": {"rollouts_every": 1, "rollouts": 1_000}, **settings}
    grpo(**given, output_dir=tmp_path, name="run", callbacks=[hears])
    hears.learn_prompts(tmp_path / "run")
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    failures = [entry for entry in Journal(tmp_path / "run").read() if entry["kind"] == "reward"]
    assert header["steps_run"] == steps
    ledger = header["ledger"]
    assert ledger["leased"] == ledger["trained"] + sum(ledger["dropped"].values())
    counted = Counter(entry.get("failure", "reward_failed") for entry in failures)
    assert counted == {name: count for name, count in ledger["dropped"].items() if name in counted}
    assert set(counted) <= set(ledger["dropped"])
    return ledger, hears, failures


def endings(heard):
    return {ending for ending, _ in heard}


OWN = {"finished", "max_turns", "token_limit"}


def test_whatever_tools_and_environments_do_the_run_goes_on(tmp_path):
    # Twice, for a turn that does not end by itself has no call.
    orders = [
        "raise",
        "long",
        "bytes",
        "nothing",
        "hang",
        "exit",
        "server",
        "bytes",
        "nothing",
        "raise",
        "long",
        "bytes",
    ]
    gone = Gone()
    changes = {"path": "tests.run.faulty:CallsForTheModel", "call_timeout": PATIENCE}
    ledger, hears, failures = made(tmp_path, orders, changes, url=gone.url)
    for order in ("raise", "long", "bytes", "nothing"):
        assert endings(hears.of(order)) <= OWN, order
    for order in ("hang", "exit", "server"):
        # a turn that reached the limit of its tokens had no call
        assert endings(hears.of(order)) <= {"tool_failed", "token_limit"}, order
    said = Counter(entry["error"] for entry in failures)
    assert said["tool 'obey' did not answer within 20 s (call_timeout)"]
    assert any(
        "the worker of these environments died (exit code 3), with no other trajectory in it" in one for one in said
    ), said
    assert any("raised urllib.error.URLError" in one or "raised http.client." in one for one in said), said
    assert len(failures) == ledger["dropped"]["tool_failed"] == sum(said.values())
    assert (tmp_path / "raise.txt").read_text().startswith("Error: ValueError: no such page (faulty.py, line ")
    assert (tmp_path / "bytes.txt").read_text() == "ok ��"
    assert (tmp_path / "long.txt").read_text().endswith("x [9,934,464 more characters are cut off]")
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(step["trajectory.tool_error_fraction"] > 0 for step in steps)
    assert any("trajectory.ending.tool_failed" in step for step in steps)


def test_a_grader_that_raises_costs_what_it_graded(tmp_path):
    changes = {"path": "tests.run.faulty:CallsForTheModel"}
    reward = {"functions": "tests.run.faulty:strict", "workers": 0}
    orders = ["nothing", "grader", "nothing", "nothing"] * 2
    ledger, hears, failures = made(tmp_path, orders, changes, reward=reward)
    assert endings(hears.of("grader")) == {"grader_failed"}
    assert endings(hears.of("nothing")) <= OWN
    assert len(failures) == ledger["dropped"]["grader_failed"] == len(hears.of("grader"))
    assert all("raised KeyError: 'answer'" in entry["error"] for entry in failures)


def test_whatever_agents_do_the_run_goes_on(tmp_path):
    orders = ["nothing", "never", "raise", "nothing", "nothing", "hang", "exit", "leaves"]
    changes = {"path": None, "max_turns": 4, "trajectory_timeout": PATIENCE}
    ledger, hears, failures = made(tmp_path, orders, changes, agent="tests.run.faulty:agent")
    said = {(entry.get("failure"), entry["error"].partition(" (")[0]) for entry in failures}
    assert said == {
        ("no_reward", "the agent never asked the model for anything"),
        ("tool_failed", "agent raised RuntimeError: lost my way"),
        ("tool_failed", "agent: the worker of these environments died"),
        ("timed_out", "agent did not answer within 20 s"),
    }
    assert ledger["trained"]
    # It asked once more; what it left in the middle of may have been complete by then.
    assert set(hears.of("leaves")) <= {("finished", 1), ("finished", 2)} != set()
    assert endings(hears.of("nothing")) == {"finished"}


def test_an_agent_that_goes_on_after_its_end_is_refused_and_its_trajectory_is_what_it_was(tmp_path):
    changes = {"path": None, "max_turns": 4}
    orders = ["late", "waits", "nothing", "nothing"]
    ledger, hears, failures = made(tmp_path, orders, changes, agent="tests.run.faulty:agent")
    assert hears.of("late") == [("finished", 1)] * 2
    assert (failures, ledger["trained"]) == ([], 8)
    assert (tmp_path / "late.txt").read_text() == "this session is over: its key is not valid any more"
