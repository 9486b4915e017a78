/** The page: asks the server for what its address says, and shows it. */

import { show as showControls } from "./controls.js";
import { show as showCurves } from "./curves.js";
import { element, fill, titled } from "./dom.js";
import { show as showFindings } from "./findings.js";
import { show as showMap } from "./map.js";
import { ask } from "./server.js";
import { query, read, SETS, SINGLE, write } from "./state.js";
import { show as showTable } from "./table.js";

/** What the server need not be asked again for. */
const OURS = ["facet", "log", "sort"];
const ASKED = [...Object.keys(SINGLE).filter((name) => !OURS.includes(name)), ...SETS];
/** Among so many cells findings are looked for without being asked to. */
const SOON = 600;
/** So many models or devices have their names in the title. */
const MOST_NAMES = 3;
const NARROW = window.matchMedia("(max-width: 900px)");
const at = (id) => document.getElementById(id);

let options = null;
let state = read(location.search);
let told = null;

async function start() {
  problem(null);
  at("results").setAttribute("aria-busy", "true");
  try {
    options = await ask("options");
  } catch (error) {
    problem(error);
    at("summary").textContent = "";
    return;
  }
  if (options === null) return;
  const empty = options.cells === 0;
  at("empty").hidden = !empty;
  at("page").hidden = empty;
  summarise();
  if (empty) {
    const server = new URL("../", location.href).href.replace(/\/$/, "");
    at("first-command").textContent = `export MLFLOW_TRACKING_URI=${server}\nmlflow-ngraph benchmark quick`;
    return;
  }
  showControls(at("controls"), options, state, changed);
  await compare();
  await find();
}

function summarise() {
  if (options.cells) {
    at("about").textContent = `${named(options.workloads.map((one) => one.label), "models")} on ${named(options.devices, "devices")}`;
    document.title = `${at("about").textContent} · mlflow-ngraph`;
  }
  const count = (number, one) => `${number.toLocaleString("en")} ${one}${number === 1 ? "" : "s"}`;
  const newest = options.newest === null ? "" : `; the latest began ${new Date(options.newest * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
  const counted = [count(options.cells, "cell"), count(options.devices.length, "device"), count(options.compilers.length, "compiler")];
  at("summary").textContent = options.cells ? `${counted.join(", ")}: the newest result of each${newest}.` : "No results.";
  const links = options.experiments.map((one) => element("a", { href: one.view }, `Runs of ${one.name}`));
  fill(at("views"), ...links.slice(0, 3));
  fill(at("left-out"), ...options.notes.map((note) => element("p", { class: "faint" }, note)));
}

/** A few names, or how many there are. */
function named(names, many) {
  return names.length > MOST_NAMES ? `${names.length} ${many}` : names.join(", ").replace(/, ([^,]*)$/, " and $1");
}

async function compare() {
  at("results").setAttribute("aria-busy", "true");
  try {
    const answer = await ask("comparison", query(state, ASKED));
    if (answer === null) return;
    told = answer;
    problem(null);
    draw();
  } catch (error) {
    problem(error);
  }
  at("results").setAttribute("aria-busy", "false");
}

async function find(anyway = false) {
  if (!anyway && (told?.cells ?? 0) > SOON) {
    const button = element("button", { type: "button", click: () => find(true) }, "Look for it");
    fill(at("findings"), element("p", { class: "faint" }, `Among ${told.cells.toLocaleString("en")} cells this takes a while.`), button);
    return;
  }
  showFindings(at("findings"), null);
  try {
    const answer = await ask("findings", query(state, SETS));
    if (answer !== null) showFindings(at("findings"), answer);
  } catch (error) {
    // Wrong choices are complained of where the numbers would be.
    fill(at("findings"), element("p", { class: "faint" }, error.message));
  }
}

function draw() {
  at("curves-title").textContent = `${titled(told)}${told.unit === "1" ? "" : ` [${told.unit}]`} over batch size`;
  showCurves(at("curves"), at("legend"), told, options, state, problem);
  showMap(at("map"), at("map-title"), told, options);
  numbers();
  const left = Object.entries(told.left_out).map(([verdict, count]) => `${count} ${verdict}`);
  const parts = [
    `${told.cells.toLocaleString("en")} cells`,
    left.length ? `left out: ${left.join(", ")}` : "",
    told.over_others.length ? `left out: ${told.metric} over ${told.over_others.join(", over ")}, which is another figure` : "",
    told.workloads.fitting > told.workloads.shown ? `${told.workloads.shown} of ${told.workloads.fitting} workloads are shown: choose those that you want to see` : "",
  ];
  at("notes").textContent = `${parts.filter(Boolean).join("; ")}.`;
}

function numbers() {
  showTable(at("table"), told, state, (sort) => {
    changed({ sort });
    at(`sort-${sort.replace(/^-/, "")}`)?.focus();
  });
}

function changed(change) {
  state = { ...state, ...change };
  write(state);
  const names = Object.keys(change);
  if (names.every((name) => name === "sort")) numbers();
  else if (names.every((name) => OURS.includes(name)) && told) draw();
  else compare().then(() => names.some((name) => SETS.includes(name)) && find());
}

function problem(error) {
  at("problem").hidden = error === null;
  at("problem").textContent = error === null ? "" : error.message;
  at("results").classList.toggle("stale", error !== null);
}

window.addEventListener("popstate", () => {
  state = read(location.search);
  if (!options?.cells) return;
  showControls(at("controls"), options, state, changed);
  compare().then(() => find());
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => told && draw());
at("controls").addEventListener("submit", (event) => event.preventDefault());
at("reload").addEventListener("click", start);
// On a phone results come first; where there is room, choices cannot be folded.
const fold = () => (at("choices").open = !NARROW.matches);
NARROW.addEventListener("change", fold);
fold();
start();
