"""Journals of studies that nobody ran."""

from mlflow_ngraph.execute.journal import FILE_NAME, line_of
from mlflow_ngraph.execute.replay import fold

MS = 1_000_000


def machine(seconds):
    """Two of four processors were busy with the lane, and another one for four tenths of the time with something else."""
    counted = {"machine_busy_s": 2.4 * seconds}
    return {"seconds": seconds, "cpu_s": 2 * seconds, "counted": counted, "busy_s": {}, "values": {}}


def lines(*events):
    """The lines of a journal with these events."""
    written, check = b"", ""
    for event in events:
        line, check = line_of(event, check)
        written += line
    return written


class Script:
    """Writes the events of a study by hand.

    Lanes are called by their compiler, those of another workload than the first ``workload:compiler``.
    """

    def __init__(self, batch_sizes=(1, 4), lanes=("identity", "fast"), study_id="s-1", name="s", at=100.0, label="M"):
        self.batch_sizes = list(batch_sizes)
        self.at = at
        self.label = label
        self.events = [
            {
                "event": "study_started",
                "at": at,
                "study_id": study_id,
                "device": "host",
                "study": {"name": name},
                "fingerprint": {"hardware": {"cpu": {"threads": 4}}},
                "versions": {},
                "lanes": [self.lane(lane) for lane in lanes],
            }
        ]
        self.session()

    def lane(self, lane, **changed):
        workload, _, compiler = lane.rpartition(":")
        return {
            "id": lane,
            "workload": f"timm:{workload or 'm'}",
            "label": workload or self.label,
            "family": "Ms",
            "compiler": compiler,
            "compiler_label": compiler,
            "flags": {},
            "precision": "fp32",
            "mode": "sync",
            "threads": 2,
            "device": "host",
            "batch_sizes": self.batch_sizes,
            **changed,
        }

    def write(self, directory):
        """The journal as a file, and the directory that it is in."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FILE_NAME).write_bytes(lines(*self.events))
        return directory

    def say(self, event, **fields):
        self.events.append({"event": event, "at": self.at + len(self.events), **fields})
        return self

    def session(self, lanes=None, variables=None):
        number = sum(event["event"] == "session_started" for event in self.events) + 1
        self.number = number
        lanes = lanes or self.events[0]["lanes"]
        return self.say("session_started", session=number, lanes=lanes, variables=variables or {})

    def built(self, lane, batch_sizes, directory="engines/x"):
        return self.say(
            "engine_built",
            id=f"{lane}-e",
            lane=lane,
            batch_sizes=batch_sizes,
            directory=directory,
            files={"model": "0" * 64},
            size_bytes=2_000_000,
            stages={"export": 1.0, "compile": 2.0, "save": 0.5},
            built_beside=0,
            flags={},
            requires={},
            key="k" * 64,
            reused=None,
        )

    def ready(self, lane, batch, requests=1):
        return self.say(
            "cell_ready",
            cell=f"{lane}-b{batch}",
            lane=lane,
            batch=batch,
            engine=f"{lane}-e",
            load_s=0.25,
            first_inference_s=0.1,
            verify_s=0.0,
            precision="fp32",
            flags={"threads": 2},
            requests=requests,
            parity={"max_abs": 1e-6, "max_rel": 1e-6, "cosine": 1.0, "top1": 1.0},
        )

    def slice(self, lane, batch, round_, durations_ms, companion=False):
        wall = sum(durations_ms) / 1e3
        return self.say(
            "slice",
            cell=f"{lane}-b{batch}",
            lane=lane,
            session=self.number,
            round=round_,
            position=0,
            companion=companion,
            durations_ns=[int(value * MS) for value in durations_ms],
            started_ns=0,
            wall_s=wall,
            machine=machine(wall + 0.1),
            peak_bytes=50_000_000,
            settle_s=0.0,
        )

    def finished(self, lane, batch, verdict="ok", reason="", noise=""):
        return self.say(
            "cell_finished",
            cell=f"{lane}-b{batch}",
            lane=lane,
            batch=batch,
            verdict=verdict,
            reason=reason,
            noise=noise,
            stderr_tail="",
            warm_up={"repetitions": 10, "seconds": 0.1, "steady": True, "call_s": 0.01},
        )

    def measured(self, lane, batch, milliseconds, rounds=3):
        self.ready(lane, batch)
        for round_ in range(rounds):
            self.slice(lane, batch, round_, [milliseconds] * 5)
        return self.finished(lane, batch)

    def cell(self, lane, batch):
        return fold(self.events).lanes[lane].cells[batch]
