/** How many times as fast, as small, ... as the baseline: a coloured table of workloads and compilers per device. */

import { element, figure, fill, interval, threads, unsteady } from "./dom.js";

const STRONGEST = 2;
const PARTS = ["compiler_label", "precision", "mode", "threads"];

export function show(target, title, told, options) {
  const speed = told.metric === "throughput";
  title.textContent = told.baseline === null ? "Against the baseline" : `${speed ? "Speed-up over" : `${told.metric} relative to`} ${told.baseline}, batch size ${told.batch}`;
  if (told.baseline === null) {
    fill(target, element("p", { class: "faint" }, "Nothing that fits was measured with identity: choose another baseline."));
    return;
  }
  if (!told.ratios.length) {
    fill(target, element("p", { class: "faint" }, "Nothing here has a number and a baseline of the same workload, precision and device."));
    return;
  }
  const devices = [...new Set(told.ratios.map((one) => one.device))].sort();
  const key = `Blue is better than ${told.baseline}, orange is worse; ≈ cannot be told from it.`;
  fill(target, element("p", { class: "faint" }, key), element("div", { class: "maps" }, ...devices.map((device) => map(device, told, options))));
}

function map(device, told, options) {
  const here = told.ratios.filter((one) => one.device === device);
  const missing = told.missing.filter((one) => one.device === device);
  const several = PARTS.filter((name) => name === "compiler_label" || new Set(told.ratios.map((one) => one[name])).size > 1);
  const column = (one) => JSON.stringify(several.map((name) => (name === "threads" ? threads(one) : one[name])));
  const rank = (text) => options.compilers.indexOf(JSON.parse(text)[0]);
  const columns = [...new Set([...here, ...missing].map(column))].sort((one, other) => rank(one) - rank(other) || (one < other ? -1 : 1));
  const cells = new Map([...missing, ...here].map((one) => [column(one) + one.workload, one]));
  const present = new Set([...here, ...missing].map((one) => one.workload));
  const rows = options.workloads.filter((workload) => present.has(workload.ref));
  return element(
    "div",
    { class: "scroll" },
    element(
      "table",
      { class: "map", "data-device": device },
      element("caption", {}, device),
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "workload"), ...columns.map((text) => element("th", { scope: "col" }, JSON.parse(text).join(" "))))),
      element(
        "tbody",
        {},
        ...rows.map((workload) =>
          element("tr", {}, element("th", { scope: "row" }, workload.label), ...columns.map((text) => {
            const shown = cell(cells.get(text + workload.ref), told);
            shown.dataset.title = JSON.parse(text).join(" ");
            return shown;
          })),
        ),
      ),
    ),
  );
}

function cell(one, told) {
  if (one === undefined) return element("td", { class: "none" }, "");
  if (one.value === undefined) return element("td", { class: "none", title: one.reason }, one.verdict);
  const shown = element("td", { title: interval(one.low, one.high) || null }, unsteady(one), `${figure(one.value)}×`);
  if (one.tied && one.compiler_label !== told.baseline) shown.append(element("span", { class: "tied", title: "cannot be told from 1" }, " ≈"));
  if (one.verdict !== "ok") shown.append(element("small", {}, ` ${one.verdict}`));
  const better = told.better === "lower" ? 1 / one.value : one.value;
  if (told.better !== "neither") {
    const strength = Math.min(1, Math.abs(Math.log2(better)) / STRONGEST);
    shown.style.backgroundColor = `color-mix(in srgb, var(${better >= 1 ? "--better" : "--worse"}) ${(100 * strength).toFixed(1)}%, transparent)`;
  }
  return shown;
}
