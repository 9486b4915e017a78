/** The form on the side: what is compared, and how it is shown. It keeps itself up to date while it is used. */

import { element, fill } from "./dom.js";

const FACETS = { device: "workload and device", compiler: "workload and compiler", workload: "workload" };
const BEST = { device: "workload on each device", workload: "workload on any device" };
const FILTER_FROM = 10;

/**
 * @param {HTMLFormElement} form
 * @param {object} options what the server has
 * @param {object} state
 * @param {(change: object) => void} changed gets what a person changed
 */
export function show(form, options, state, changed) {
  const metrics = options.metrics.map((one) => [one.name, one.unit === "1" ? one.name : `${one.name} [${one.unit}]`]);
  const meanings = Object.fromEntries(options.metrics.map((one) => [one.name, one.meaning]));
  const same = (names) => names.map((name) => [String(name), String(name)]);
  fill(
    form,
    select("metric", "Metric", metrics, state, changed, meanings),
    select("facet", "A chart for each", Object.entries(FACETS), state, changed),
    check("log", "Logarithmic scale", state, changed),
    select("batch", "Batch size of map and table", [["", "that of the answer"], ...same(options.batches)], state, changed),
    select("baseline", "Baseline", [["", "identity"], ...same(options.compilers)], state, changed),
    select("best", "Mark the best of each", Object.entries(BEST), state, changed),
    check("all", "Also what is not ok", state, changed),
    set("device", "Devices", same(options.devices), state, changed),
    set("compiler", "Compilers", same(options.compilers), state, changed),
    set("workload", "Workloads", options.workloads.map((one) => [one.ref, one.label, one.family]), state, changed),
    wanted(options.precisions, state.precision) && set("precision", "Precisions", same(options.precisions), state, changed),
    wanted(options.experiments, state.experiment) &&
      set("experiment", "Experiments", options.experiments.map((one) => [one.id, one.name]), state, changed),
  );
}

/** Whether there is anything to choose; null leaves a part of the form out. */
function wanted(values, chosen) {
  return values.length > 1 || chosen.length ? true : null;
}

/** One of several values, as pairs of value and text. */
function select(name, title, values, state, changed, meanings = null) {
  const known = values.some(([value]) => value === state[name]) ? values : [...values, [state[name], state[name]]];
  const help = meanings && element("small", { id: `help-${name}` }, meanings[state[name]] ?? "");
  const input = element(
    "select",
    {
      id: `choose-${name}`,
      "aria-describedby": help ? help.id : null,
      change: () => {
        if (help) help.textContent = meanings[input.value] ?? "";
        changed({ [name]: input.value });
      },
    },
    ...known.map(([value, text]) => element("option", { value, selected: value === state[name] }, text)),
  );
  return element("div", { class: "field" }, element("label", { for: input.id }, title), input, help);
}

function check(name, title, state, changed) {
  const input = element("input", {
    type: "checkbox",
    id: `choose-${name}`,
    checked: state[name] === "1",
    change: () => changed({ [name]: input.checked ? "1" : "" }),
  });
  return element("div", { class: "field check" }, input, element("label", { for: input.id }, title));
}

/** Boxes of which any number can be ticked; none means all. Values come as value, text and perhaps a group. */
function set(name, title, values, state, changed) {
  const known = new Set(values.map(([value]) => value));
  const gone = state[name].filter((value) => !known.has(value)).map((value) => [value, `${value} (not there)`]);
  const list = element("div", { class: "boxes" }, ...boxes(name, [...values, ...gone], new Set(state[name])));
  const ticked = () => [...list.querySelectorAll("input:checked")].map((input) => input.value);
  const count = element("small");
  const clear = element("button", { type: "button", class: "plain" }, "all again", element("span", { class: "unseen" }, `: ${title}`));
  const tell = () => {
    const chosen = ticked().length;
    count.textContent = chosen ? `${chosen} of ${values.length}` : "all";
    clear.hidden = chosen === 0;
  };
  const told = () => {
    tell();
    changed({ [name]: ticked() });
  };
  list.addEventListener("change", told);
  clear.addEventListener("click", () => {
    for (const input of list.querySelectorAll("input:checked")) input.checked = false;
    told();
    list.querySelector("input").focus();
  });
  tell();
  const search = values.length >= FILTER_FROM ? filter(title, list) : null;
  return element("fieldset", { "data-set": name }, element("legend", {}, `${title} `, count), search, list, clear);
}

function boxes(name, values, chosen) {
  const made = [];
  let group = "";
  values.forEach(([value, text, family = ""], place) => {
    if (family !== group) made.push(element("div", { class: "family" }, family));
    group = family;
    const id = `choose-${name}-${place}`;
    const input = element("input", { type: "checkbox", id, value, checked: chosen.has(value) });
    const found = `${text} ${family}`.toLowerCase();
    made.push(element("div", { class: "check", "data-text": found }, input, element("label", { for: id }, text)));
  });
  return made;
}

/** A field that hides the boxes of a long list that do not contain what is typed. */
function filter(title, list) {
  const narrow = (event) => {
    const typed = event.target.value.toLowerCase();
    for (const box of list.querySelectorAll("[data-text]")) box.hidden = !box.dataset.text.includes(typed);
  };
  return element("input", { type: "search", "aria-label": `Find in ${title.toLowerCase()}`, placeholder: "Find…", input: narrow });
}
