"""Description of the machine and its software, and the findings of ``mlflow-ngraph doctor``."""

from __future__ import annotations

import time

from mlflow_ngraph.devices.fingerprint import summary
from mlflow_ngraph.tables.sheet import Sheet
from mlflow_ngraph_testing.first_contact.bench import Bench
from mlflow_ngraph_testing.first_contact.finding import Finding


def machine(bench: Bench, seconds: float) -> Finding:
    """Describe the machine for a reader who does not have it. Missing software is not the machine's fault."""
    deadline = time.monotonic() + seconds
    described = bench.ask("info devices", seconds / 2)
    findings = bench.ask("doctor", deadline - time.monotonic())["findings"]
    fitness = bench.profile.fitness()
    facts, hardware, system = described["machine"], described["machine"]["hardware"], described["machine"]["system"]
    rows = {
        "machine": summary(facts),
        "instructions": " ".join(hardware["cpu"]["isa"]),
        "processors that may be used": str(facts["processors"]),
        "system": ", ".join(filter(None, (system["distribution"], system["kernel"], system["jetpack"]))),
        "virtualisation": " ".join(f"{kind} {name}" for kind, name in system["virtualization"].items()) or "none",
        "GPU driver": system["gpu_driver"] or "none",
        "sensors": ", ".join(system["sensors"]),
        "versions": ", ".join(f"{name} {version}" for name, version in described["versions"].items()),
        "digest": facts["digest"],
    }
    lacking = [[f"device {bench.profile.name}", problem, ""] for problem in fitness.problems]
    lacking += [[f"compiler {name}", *why] for name, why in bench.missing.items()]
    # Compilers that the device does not have are nobody's loss; those that it has are there already.
    others = [
        finding for finding in findings if finding["status"] != "ok" and not finding["check"].startswith("compiler ")
    ]
    lacking += [[finding["check"], finding["found"], finding["remedy"]] for finding in others]
    about = Sheet("This machine", ("what", "found"), list(rows.items()))
    tables = [Sheet("What lacks", ("what", "found", "what to do"), lacking), about] if lacking else [about]
    if not fitness.serves:
        said = f"this machine cannot serve as {bench.profile.name}: {'; '.join(fitness.problems)}"
    else:
        said = "; ".join([f"compilers that run here: {', '.join(bench.compilers)}", *fitness.warnings])
    return Finding("right" if fitness.serves else "lacking", said, tables, {**described, "findings": findings})
