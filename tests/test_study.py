import hashlib
import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_ngraph import study
from mlflow_ngraph.errors import StudyError, UnknownNameError, WorkloadError

MINIMAL = {"workloads": ["resnet18"], "compilers": ["openvino"], "batch_sizes": [1]}


def test_short_and_long_forms_are_one():
    short = study.parse({**MINIMAL, "precision": "fp32", "batch_sizes": 1})
    long = study.parse(
        {
            "workloads": [{"ref": "resnet18", "options": {}}],
            "compilers": [{"name": "identity", "flags": {}}, {"name": "openvino"}],
            "batch_sizes": [1],
            "precision": ["fp32"],
        }
    )
    assert short == long


def test_identity_is_always_there_and_first():
    names = [choice.name for choice in study.parse({**MINIMAL, "compilers": ["openvino", "identity"]}).compilers]
    assert names == ["identity", "openvino"]


def test_another_baseline_stands_first_and_identity_is_not_needed():
    found = study.parse({**MINIMAL, "compilers": ["tvm", "openvino"], "baseline": "openvino"})
    assert [choice.name for choice in found.compilers] == ["openvino", "tvm"]
    assert found.baseline_label == "openvino"
    assert study.parse(MINIMAL).baseline_label == "identity"


def test_a_baseline_may_be_named_by_its_flags():
    twice = [{"name": "tvm", "flags": {"opt": 1}}, {"name": "tvm", "flags": {"opt": 2}}]
    found = study.parse({**MINIMAL, "compilers": twice, "baseline": "tvm[opt=2]"})
    assert [choice.label for choice in found.compilers] == ["tvm[opt=2]", "tvm[opt=1]"]
    once = study.parse({**MINIMAL, "compilers": twice[:1], "baseline": "tvm"})
    assert once.baseline_label == "tvm[opt=1]"
    assert study.recorded_baseline(once.model_dump(mode="json")) == "tvm[opt=1]"
    with pytest.raises(
        StudyError, match=r"baseline 'tvm' may be several lanes: write one of tvm\[opt=1\], tvm\[opt=2\]"
    ):
        study.parse({**MINIMAL, "compilers": twice, "baseline": "tvm"})


def test_a_precision_that_is_listed_twice_is_named():
    with pytest.raises(StudyError, match="precision: precision 'fp32' is listed twice"):
        study.parse({**MINIMAL, "precision": ["fp32", "fp32"]})


def test_the_baseline_is_measured_though_it_is_not_listed():
    found = study.parse({**MINIMAL, "baseline": "onnxruntime"})
    assert [choice.label for choice in found.compilers] == ["onnxruntime", "openvino"]
    assert found.baseline_label == "onnxruntime"


def test_a_baseline_with_flags_that_is_no_lane_is_one_line():
    with pytest.raises(StudyError) as caught:
        study.parse({**MINIMAL, "baseline": "tvm[opt=3]"})
    assert str(caught.value) == "study: baseline 'tvm[opt=3]' is no lane of the study: write one of openvino"


def test_a_study_from_before_there_was_a_choice_goes_on_as_the_same_one():
    whole = study.parse(MINIMAL)
    content = whole.model_dump(mode="json")
    del content["baseline"]
    assert study.recorded_baseline(content) == "identity"
    assert study.parse(content) == whole
    besides = {"name", "description", "cache", "metrics", "within", "baseline"}
    text = json.dumps({key: value for key, value in content.items() if key not in besides}, sort_keys=True)
    assert whole.digest() == hashlib.sha256(text.encode()).hexdigest()[:12]
    other = study.parse({**MINIMAL, "compilers": ["identity", "openvino"], "baseline": "openvino"})
    assert other.digest() != whole.digest(), "the baseline is measured as often as others need it"


def test_one_compiler_may_stand_twice_with_different_flags():
    found = study.parse({**MINIMAL, "compilers": ["tvm", {"name": "tvm", "flags": {"opt": 2}}]})
    assert [choice.label for choice in found.compilers] == ["identity", "tvm", "tvm[opt=2]"]


def test_options_come_as_query_or_mapping():
    query = study.parse({**MINIMAL, "workloads": ["block:conv?width=64"]}).workloads[0].parsed()
    mapping = study.parse({**MINIMAL, "workloads": [{"ref": "block:conv", "options": {"width": "64"}}]})
    assert str(query) == str(mapping.workloads[0].parsed()) == "block:conv?width=64"


def test_name_and_description_do_not_change_the_digest():
    one = study.parse({**MINIMAL, "name": "one", "description": "first"})
    assert one.digest() == study.parse({**MINIMAL, "name": "two"}).digest()
    assert one.digest() != study.parse({**MINIMAL, "repetitions": 7}).digest()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1h30m", 5400), ("1.5 m", 90), (42, 42), ("42", 42), ("1.5", 1.5), ("2M", 120)],
)
def test_a_time_is_a_number_of_seconds_or_text(text, seconds):
    found = study.parse({**MINIMAL, "within": text})
    assert found.within == seconds
    assert found.digest() == study.parse(MINIMAL).digest(), "with more time the same study goes on"


def test_a_decision_is_about_throughput_unless_it_says_otherwise():
    found = study.parse({**MINIMAL, "purpose": "decide", "bounds": {"max_latency_ms": 20}})
    assert (found.objective, found.raced) == ("throughput", "throughput")
    assert [str(limit) for limit in found.kept_limits] == ["latency_p99_ms ≤ 20"]
    assert found == study.parse({**found.model_dump(mode="json")})
    assert found.digest() != study.parse(MINIMAL).digest()
    assert study.parse({**MINIMAL, "purpose": "decide", "objective": "memory"}).raced is None
    assert study.parse(MINIMAL).raced is None


@pytest.mark.parametrize("name", sorted(study.ready_made()))
def test_ready_made_studies_survive_a_round_trip(name, tmp_path):
    found = study.load(name)
    path = tmp_path / "again.yaml"
    path.write_text(found.to_yaml())
    assert study.load(str(path)) == found


@given(st.lists(st.integers(1, 512), min_size=1, unique=True))
@settings(max_examples=30)
def test_batch_sizes_are_ascending(batch_sizes):
    assert study.parse({**MINIMAL, "batch_sizes": batch_sizes}).batch_sizes == sorted(batch_sizes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batchsizes": [1]}, "batchsizes: unknown key: did you mean 'batch_sizes'?"),
        ({"compilers": [{"name": "tvm", "flag": {}}]}, "compilers.0.flag: unknown key: did you mean 'flags'?"),
        ({"limits": {"cell_second": 1}}, "limits.cell_second: unknown key: did you mean 'cell_seconds'?"),
        ({"batch_sizes": [0]}, "batch_sizes.0: expected at least 1, found 0"),
        ({"batch_sizes": [True]}, "batch_sizes: expected numbers from 1 on, found true or false"),
        ({"repetitions": 10**400}, "repetitions: expected at most"),
        ({"batch_sizes": []}, "batch_sizes: expected at least 1 of them, found []"),
        ({"batch_sizes": [2, 2]}, "batch_sizes: batch size '2' is listed twice"),
        ({"batch_sizes": ["many"]}, "batch_sizes.0: expected a whole number"),
        ({"precision": ["fp64"]}, "precision.0: expected 'fp32', 'tf32', 'bf16' or 'fp16', found 'fp64'"),
        ({"mode": "burst"}, "mode: expected 'sync' or 'async', found 'burst'"),
        ({"repetitions": -3}, "repetitions: expected a number of repetitions from 1 on or 'auto', found -3"),
        ({"repetitions": "many"}, "repetitions: expected a number of repetitions from 1 on or 'auto', found 'many'"),
        ({"adaptive": {"within": 2}}, "adaptive.within: expected less than 1, found 2"),
        ({"threads": "many"}, "threads: expected a number of threads from 1 on, 'all' or 'default', found 'many'"),
        ({"threads": 0}, "threads: expected a number of threads from 1 on"),
        ({"name": "a/b"}, "name: expected a text of the form ^"),
        ({"workloads": []}, "workloads: expected at least 1 of them, found []"),
        ({"workloads": ["resnet18", "resnet18"]}, "workloads: workload 'paper:resnet18' is listed twice"),
        ({"compilers": ["tvm", "tvm"]}, "compilers: compiler 'tvm' is listed twice"),
        ({"warmup": {"window": 1}}, "warmup.window: expected at least 2"),
        ({"init": {"sed": 1}}, "init"),
        ({"purpose": "guess"}, "purpose: expected 'characterise' or 'decide'"),
        (
            {"purpose": "decide", "objective": "thruput"},
            "objective: unknown objective 'thruput': did you mean 'throughput'?",
        ),
        (
            {"objective": "latency"},
            "objective needs 'purpose: decide' (--purpose decide): write that as well",
        ),
        (
            {"bounds": {"max_memory_mb": 9}},
            "bounds needs 'purpose: decide' (--purpose decide): write that as well",
        ),
        ({"purpose": "decide", "bounds": {"max_latency": 9}}, "bounds: unknown bound 'max_latency': did you mean"),
        ({"purpose": "decide", "objective": "latency", "mode": "async"}, "mode async has none"),
        ({"within": "soon"}, "within: expected a duration such as 90s, 5m or 1h30m, found 'soon'"),
        ({"within": 0}, "within: expected a duration such as 90s, 5m or 1h30m, found 0"),
    ],
)
def test_what_is_wrong_is_said_with_place_and_remedy(change, message, tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, **change}))
    with pytest.raises(StudyError) as caught:
        study.load(str(path))
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert message in text
    assert "\n" not in text


def test_a_study_without_a_name_has_that_of_its_file(tmp_path):
    path = tmp_path / "m\u00efne two.yaml"
    path.write_text("workloads: [resnet-18]\ncompilers: [identity]\nbatch_sizes: [1]\n")
    assert study.load(str(path)).name == "m-ne-two"


def test_files_that_are_no_studies_are_named(tmp_path):
    with pytest.raises(StudyError, match="did you mean 'quick'"):
        study.load("quikc")
    broken = tmp_path / "broken.yaml"
    broken.write_text("workloads: [unclosed")
    with pytest.raises(StudyError, match="not readable as YAML"):
        study.load(str(broken))
    broken.write_text("- just\n- a list\n")
    with pytest.raises(StudyError, match="expected a mapping of keys, found list"):
        study.load(str(broken))
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StudyError, match="not readable as YAML"):
        study.load(str(broken))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threads": 10_000_000}, "threads: expected at most 4096 threads, found 10000000"),
        ({"threads": 10**5000}, "threads: expected at most 4096 threads, found a int that is too long to be shown"),
        ({"seed": -1}, "seed: expected at least 0, found -1"),
        ({"batch_sizes": [10**26]}, "batch_sizes.0: "),
        ({"name": "n" * 400}, "name: expected a text of at most 100 characters"),
        ({"repetitions": 10**12}, "repetitions: expected at most"),
    ],
)
def test_what_nobody_means_is_refused_before_anything_begins(change, said):
    with pytest.raises(StudyError) as caught:
        study.parse({**MINIMAL, **change})
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_workload_is_one_line():
    with pytest.raises(
        WorkloadError, match=r"workload 'torch:a\\nb:c' has line breaks or other control characters in it"
    ):
        study.parse({**MINIMAL, "workloads": ["torch:a\nb:c"]})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{dtype: int, 64}", "the key 64 is read as int"),
        ("2026-01-01", "2026-01-01 is read as timestamp"),
        ("!!binary aGVsbG8=", "is read as binary"),
        ("!!set {a, b}", "is read as set"),
    ],
)
def test_what_yaml_has_and_json_has_not_is_refused_with_what_to_do(tmp_path, value, said):
    path = tmp_path / "study.yaml"
    path.write_text(f"workloads: [{{ref: resnet18, options: {{of: [{value}]}}}}]")
    with pytest.raises(StudyError, match=f"{said}: if it is a text, write it in quotes"):
        study.load(str(path))


@pytest.mark.parametrize("content", ["a: " + "[" * 20_000, f"seed: {'9' * 6000}"])
def test_yaml_that_nobody_can_read_is_refused(tmp_path, content):
    path = tmp_path / "study.yaml"
    path.write_text(content)
    with pytest.raises(StudyError, match="not readable as YAML"):
        study.load(str(path))


def test_a_workload_of_the_file_is_taken_with_its_options(tmp_path):
    def inputs(size):
        return {"inputs": [{"shape": ["batch", size]}]}

    mine = [{"ref": "torch:nets:mlp", "options": inputs(size)} for size in (3, 5)]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, "workloads": ["resnet18", *mine]}))
    of_file = study.load(str(path)).workloads
    named = str(of_file[2].parsed())
    assert named.startswith("torch:nets:mlp#")
    assert study.load(str(path), {"workloads": [named]}).workloads == [of_file[2]]
    assert study.load(str(path), {"workloads": ["paper:resnet18"]}).workloads == [of_file[0]]
    assert study.load(str(path), {"workloads": ["timm:resnet50"]}).workloads[0].ref == "timm:resnet50"
    with pytest.raises(
        UnknownNameError, match=r"unknown workload in .*mine.yaml 'torch:nets:mlp#01234567': did you mean"
    ):
        study.load(str(path), {"workloads": ["torch:nets:mlp#01234567"]})


def test_workloads_with_options_replace_those_of_a_ready_made_study() -> None:
    ref = {"ref": "torch:mine:net", "options": {"inputs": [{"name": "x", "shape": ["batch", 3], "dtype": "float32"}]}}
    found = study.load("smoke", {"workloads": [ref, "resnet-18"]})
    assert [choice.ref for choice in found.workloads] == ["torch:mine:net", "resnet-18"]
