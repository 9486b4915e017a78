/** Curves over batch size with their 95 % intervals: a chart for each workload and device, or as is chosen. */

import { element, figure, fill, interval, threads, titled, unit } from "./dom.js";

const HUES = 8;
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star"];
const GLYPHS = ["●", "■", "◆", "▲", "▼", "✚", "✖", "★"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const LINES = {
  device: { chart: ["workload", "device"], line: ["compiler_label"], colour: "compiler_label", dash: null },
  compiler: { chart: ["workload", "compiler_label"], line: ["device"], colour: "device", dash: null },
  workload: { chart: ["workload"], line: ["device", "compiler_label"], colour: "compiler_label", dash: "device" },
};
/** Of the height of a chart: an interval that takes up more is a line. */
const MOST_BAND = 0.4;
const VARIANTS = ["precision", "mode", "threads"];

/** Resolved once Plotly is there; it is large, and the rest of the page does not wait for it. */
const plotly = new Promise((resolve, reject) => {
  const script = document.getElementById("plotly");
  if (window.Plotly) resolve(window.Plotly);
  script.addEventListener("load", () => resolve(window.Plotly));
  script.addEventListener("error", () => reject(new Error("the charts cannot be drawn: Plotly did not load from this server")));
});

let observer = null;

/**
 * @param {object} told the answer of the server
 * @param {object} options what the server has: colours belong to its lists, whatever is chosen
 * @param {(error: Error) => void} failed
 */
export function show(target, legend, told, options, state, failed) {
  observer?.disconnect();
  for (const drawn of target.querySelectorAll(".js-plotly-plot")) window.Plotly.purge(drawn);
  const lines = LINES[state.facet] ?? LINES.device;
  const named = naming(told.series, lines, options);
  showLegend(legend, told.series, named);
  const charts = grouped(told.series, (series) => JSON.stringify(lines.chart.map((name) => series[name])));
  const waiting = new Map();
  const figures = [...charts.values()].map((series) => {
    const place = element("div", { class: "chart", role: "img", "aria-label": described(series, named, told) });
    waiting.set(place, series);
    const title = lines.chart.map((name) => (name === "workload" ? series[0].label : series[0][name])).join(" · ");
    return element("figure", {}, element("figcaption", {}, title), place);
  });
  fill(target, ...(figures.length ? figures : [element("p", { class: "faint" }, `No cell that fits has ${told.metric}.`)]));
  observer = new IntersectionObserver(
    (entries) => {
      for (const { target: place } of entries.filter((entry) => entry.isIntersecting)) {
        observer.unobserve(place);
        plotly.then((library) => place.isConnected && draw(library, place, waiting.get(place), named, told, state)).catch(failed);
      }
    },
    { rootMargin: "400px" },
  );
  for (const place of waiting.keys()) observer.observe(place);
}

function grouped(values, key) {
  const groups = new Map();
  for (const value of values) groups.set(key(value), [...(groups.get(key(value)) ?? []), value]);
  return groups;
}

/** The name and the look of a curve: colour and symbol by what the lines are, dashes by what else differs. */
function naming(all, lines, options) {
  const several = VARIANTS.filter((name) => new Set(all.map((series) => series[name])).size > 1);
  const known = { compiler_label: options.compilers, device: options.devices };
  const variant = (series) => several.map((name) => series[name]).join(" ");
  const variants = [...new Set(all.map(variant))];
  const dashed = (series) => (lines.dash ? known[lines.dash].indexOf(series[lines.dash]) : variants.indexOf(variant(series)));
  return (series) => {
    const place = Math.max(0, known[lines.colour].indexOf(series[lines.colour]));
    const words = several.map((name) => (name === "threads" ? threads(series) : series[name]));
    return {
      name: [...lines.line.map((name) => series[name]), ...words].join(" · "),
      colour: colour(`--line-${place % HUES}`),
      symbol: (place + Math.floor(place / HUES)) % SYMBOLS.length,
      dash: DASHES[Math.max(0, dashed(series)) % DASHES.length],
    };
  };
}

function showLegend(legend, all, named) {
  const looks = new Map(all.map((series) => [named(series).name, named(series)]));
  const items = [...looks.values()].map((look) => {
    const mark = element("span", { class: `mark ${look.dash}` }, GLYPHS[look.symbol]);
    mark.style.color = look.colour;
    return element("span", { class: "item" }, mark, look.name);
  });
  fill(legend, ...items);
}

function draw(library, place, all, named, told, state) {
  const batches = [...new Set(all.flatMap((series) => series.batch))].sort((one, other) => one - other);
  const range = shown(all, state);
  const traces = all.flatMap((series) => [band(series, named(series), range, state.log === "1"), line(series, named(series), told)]).filter(Boolean);
  const ends = [batches[0], batches[batches.length - 1]].map(Math.log10);
  const room = Math.max(0.06, (ends[1] - ends[0]) * 0.05);
  const axis = { gridcolor: colour("--grid"), linecolor: colour("--grid"), zeroline: false, automargin: true, fixedrange: true };
  const layout = {
    height: 240,
    margin: { l: 8, r: 8, t: 8, b: 8 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: colour("--text") },
    showlegend: false,
    hovermode: "closest",
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--grid"), font: { color: colour("--text") }, align: "left" },
    xaxis: {
      ...axis,
      type: "log",
      tickvals: batches,
      ticktext: batches.map(String),
      range: [ends[0] - room, ends[1] + room],
      title: { text: "batch size", standoff: 4 },
    },
    yaxis: {
      ...axis,
      type: state.log === "1" ? "log" : "linear",
      range,
      title: { text: told.unit === "1" ? "" : safe(told.unit), standoff: 6 },
    },
  };
  return library.newPlot(place, traces, layout, { displayModeBar: false, responsive: true });
}

/** What the axis shows, in its own units: the points say how far it goes, whatever intervals reach. */
function shown(all, state) {
  const log = state.log === "1";
  const values = all.flatMap((series) => series.value).filter((value) => value !== null && (value > 0 || !log));
  if (!values.length) return undefined;
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (!log) return [Math.min(0, 1.1 * least), Math.max(0, 1.1 * most)];
  const room = Math.max(0.03, 0.1 * Math.log10(most / least));
  return [Math.log10(least) - room, Math.log10(most) + room];
}

/** How much of the height of a chart the intervals of a curve take up where they take up most. */
function share(series, places, range, log) {
  const at = (value) => {
    const [bottom, top] = range;
    const scaled = log ? Math.log10(Math.max(value, Number.MIN_VALUE)) : value;
    return (Math.min(top, Math.max(bottom, scaled)) - bottom) / (top - bottom);
  };
  return Math.max(...places.map((place) => at(series.high[place]) - at(series.low[place])));
}

function line(series, look, told) {
  return {
    type: "scatter",
    mode: "lines+markers",
    name: safe(look.name),
    x: series.batch,
    y: series.value,
    line: { color: look.colour, width: 2, dash: look.dash },
    // What is not ok, or not steady, is hollow.
    marker: {
      color: look.colour,
      size: 8,
      symbol: series.verdict.map((verdict, place) => SYMBOLS[look.symbol] + (verdict === "ok" && !series.unsteady[place] ? "" : "-open")),
    },
    text: series.value.map((value, place) => {
      const known = interval(series.low[place], series.high[place]);
      const verdict = series.verdict[place] === "ok" ? "" : `<br>${safe(series.verdict[place])}`;
      return `${figure(value)}${safe(unit(told.unit))}${known && `<br>95 %: ${known}`}${verdict}${series.unsteady[place] ? "<br>unsteady: the machine was not quiet" : ""}`;
    }),
    hovertemplate: `<b>${safe(look.name)}</b>, batch %{x}<br>%{text}<extra></extra>`,
  };
}

/** The intervals as an area, or where that would hide other curves as a line at each point; null where there are none. */
function band(series, look, range, log) {
  const places = series.batch.map((_, place) => place).filter((place) => series.low[place] !== null && series.high[place] !== null);
  if (!places.length) return null;
  if (places.length < 2 || share(series, places, range, log) > MOST_BAND) return reaches(series, look, places);
  const back = [...places].reverse();
  return {
    type: "scatter",
    mode: "lines",
    name: `${safe(look.name)}: 95 % interval`,
    x: [...places, ...back].map((place) => series.batch[place]),
    y: [...places.map((place) => series.high[place]), ...back.map((place) => series.low[place])],
    fill: "toself",
    fillcolor: see(look.colour),
    line: { width: 0 },
    hoverinfo: "skip",
    showlegend: false,
  };
}

function reaches(series, look, places) {
  return {
    type: "scatter",
    mode: "lines",
    name: `${safe(look.name)}: 95 % interval`,
    x: places.flatMap((place) => [series.batch[place], series.batch[place], null]),
    y: places.flatMap((place) => [series.low[place], series.high[place], null]),
    line: { color: look.colour, width: 1 },
    hoverinfo: "skip",
    showlegend: false,
  };
}

/** What a chart shows, for those who do not see it. The table has all numbers of one batch size. */
function described(all, named, told) {
  const lines = all.map((series) => {
    const last = series.batch.length - 1;
    const end = last ? `, ${figure(series.value[last])} at ${series.batch[last]}` : "";
    return `${named(series).name}: ${figure(series.value[0])} at batch size ${series.batch[0]}${end}`;
  });
  return `${titled(told)}${unit(told.unit)}. ${lines.join("; ")}`;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function see(hex) {
  const part = (start) => parseInt(hex.slice(start, start + 2), 16);
  return `rgba(${part(1)}, ${part(3)}, ${part(5)}, 0.2)`;
}

/** Plotly reads a few tags in texts; names have none. */
function safe(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
