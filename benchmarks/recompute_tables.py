"""Tables 6 to 8 from raw samples: ``python benchmarks/recompute_tables.py DIRECTORY...`` (artifacts of study runs)."""
# Uses nothing of the package that it checks; docs/reference/mlflow.md describes the files. Only samples are numbers here.

import json
import re
import sys

import numpy as np
import pandas as pd
from scipy.stats import trim_mean

cells, tables, speedups = [], {}, {}
for directory in sys.argv[1:]:
    names = pd.read_parquet(f"{directory}/results.parquet").set_index("cell").loc[:, "study_id":"verdict"]
    processors = pd.read_json(f"{directory}/fingerprint.json", typ="series")["hardware"]["cpu"]["threads"]
    for cell, rows in pd.read_parquet(f"{directory}/samples.parquet").groupby("cell"):
        rounds, rate = rows.groupby(["session", "round"]), (rows["batch"] * rows["requests"] * 1e9).astype(float)
        spent, medians = rounds[["cpu_s", "watched_s"]].first(), rate.iloc[0] / rounds["duration_ns"].median()
        found = {**names.loc[cell], "batch": rows["batch"].iloc[0], "medians": medians}
        typical = np.exp(trim_mean(np.log(medians.astype(float)), 0.2 if len(medians) >= 8 else 0))
        found |= {"rate": float(typical), "rate_std": (rate / rows["duration_ns"]).std()}
        found["cpu"] = 100 * spent["cpu_s"].sum() / spent["watched_s"].sum() / processors
        cells.append(found | {"cpu_std": 100 * (spent["cpu_s"] / spent["watched_s"]).std() / processors})
eager = {(c["study_id"], c["workload"], c["batch"]): c["medians"] for c in cells if c["compiler"] == "identity"}
for cell in (cell for cell in cells if cell["verdict"] == "ok"):
    ratios = (cell["medians"] / eager[cell["study_id"], cell["workload"], cell["batch"]]).dropna().astype(float)
    if block := re.match(r"block:(\w+)\?depth=(\d+).*width=(\d+)", cell["workload"]):
        row = f"{block[1]} {cell['device']} {cell['compiler_label']} {block[3]} b{cell['batch']}"
        speedup = np.exp(trim_mean(np.log(ratios), 0.2 if len(ratios) >= 8 else 0))
        speedups.setdefault(row, []).append((int(block[2]), float(speedup)))
    elif 2 <= cell["batch"] <= 16:
        row = f"t6 {cell['device']} {cell['compiler_label']} {cell['family']} b{'2_4' if cell['batch'] < 8 else '8_16'}"
        tables.setdefault(row, []).append([cell[name] for name in ("rate", "rate_std", "cpu", "cpu_std")])
for row, values in tables.items():
    rate, rate_std, cpu, cpu_std = np.array(values).T
    tables[row] = [rate.mean(), np.sqrt(np.mean(rate_std**2)), cpu.mean(), np.sqrt(np.mean(cpu_std**2))]
for row, values in speedups.items():
    depth, speedup = np.array(sorted(values)).T
    tables[row] = [np.polyfit(depth, speedup, 1)[0], speedup[-1] / speedup[0]] if len(depth) > 1 else []
print(json.dumps(tables, indent=1))
