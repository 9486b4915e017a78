"""What journals of earlier studies say about the time that things take."""

from __future__ import annotations

import json

from mlflow_ngraph.devices import probes
from mlflow_ngraph.execute import timing_history
from tests.support.script import Script

ASSUMED = timing_history.Duration.of(99.0)


def recorded(home, name, *, cpu=None, extra=()):
    script = Script([1])
    script.events[0]["fingerprint"]["hardware"]["cpu"] = cpu or probes.as_plain(probes.cpu())
    script.say("workload_prepared", workload="timm:m", seconds=12.0, materials={"batch_sizes": [1]})
    script.ready("fast", 1).slice("fast", 1, 0, [10] * 5)
    script.events.extend(extra)
    return script.write(home / "studies" / name)


def finished(lane, call_s):
    return {
        "event": "cell_finished",
        "at": 0.0,
        "cell": f"{lane}-b1",
        "lane": lane,
        "batch": 1,
        "warm_up": {"call_s": call_s},
    }


def test_journals_of_this_machine_are_learned_from(tmp_path):
    recorded(tmp_path, "one", extra=[finished("fast", 0.25)])
    recorded(tmp_path, "other", cpu={"model": "another"}, extra=[finished("identity", 9.0)])
    found = timing_history.learn(tmp_path)
    assert found.preparing("timm:m", [1], ASSUMED).parts == {"measured": 12.0}
    assert found.preparing("timm:m", [1, 8], ASSUMED) == ASSUMED
    assert found.preparing("timm:n", [1], ASSUMED) == ASSUMED
    assert found.call_s("fast", 1) == (0.25, "measured")
    assert found.call_s("identity", 1) is None


def test_a_journal_that_is_cut_off_or_no_journal_at_all_harms_nothing(tmp_path):
    whole = recorded(tmp_path, "one")
    with (whole / "journal.jsonl").open("a") as file:
        file.write('{"event":"cell_fin')
    broken = tmp_path / "studies" / "broken"
    broken.mkdir()
    (broken / "journal.jsonl").write_text("nothing\n" + json.dumps({"event": "x"}))
    assert timing_history.learn(tmp_path).preparing("timm:m", [1], ASSUMED).seconds == 12
    assert timing_history.learn(tmp_path / "nowhere").preparing("timm:m", [1], ASSUMED) == ASSUMED


def test_a_cell_that_does_not_say_how_long_a_call_takes_is_as_one_that_was_never_timed(tmp_path):
    recorded(tmp_path, "one", extra=[{**finished("fast", 0.25), "warm_up": {"steady": True}}])
    assert timing_history.learn(tmp_path).call_s("fast", 1) is None
