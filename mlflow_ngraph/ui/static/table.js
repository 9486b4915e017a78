/** All numbers at one batch size, sorted by any column. */

import { element, engineLink, figure, fill, interval, runLink, threads, titled, unsteady, UNSTEADY } from "./dom.js";

const AT_FIRST = 100;
/** Columns that are left out, and told above the table, where all rows have the same in them. */
const ALIKE = ["device", "precision", "threads"];
const COLUMNS = [
  { key: "label", title: "workload" },
  { key: "device", title: "device" },
  { key: "compiler_label", title: "compiler" },
  { key: "precision", title: "precision" },
  { key: "threads", title: "threads" },
  { key: "value", title: "", number: true },
  { key: "interval", title: "95 % interval", sort: null, number: true },
  { key: "ratio", title: "", number: true },
  { key: "mark", title: "best" },
  { key: "started_at", title: "measured" },
  { key: "links", title: "in MLflow", sort: null },
];

/** @param {(sort: string) => void} sorted gets the column that a person sorts by, with a minus where it falls */
export function show(target, told, state, sorted) {
  const ratios = new Map(told.ratios.map((one) => [place(one), one]));
  const rows = told.table.map((row) => ({ ...row, over: ratios.get(place(row)), ratio: ratios.get(place(row))?.value ?? null, mark: row.best ? 2 : row.tied ? 1 : 0 }));
  if (!rows.length) {
    fill(target, element("p", { class: "faint" }, `No cell of batch size ${told.batch} that fits has ${told.metric}.`));
    return;
  }
  const falling = state.sort.startsWith("-");
  const by = state.sort.replace(/^-/, "");
  if (COLUMNS.some((column) => column.key === by && column.sort !== null)) rows.sort((one, other) => order(one[by], other[by], falling));
  const titles = { value: titled(told) + (told.unit === "1" ? "" : ` [${told.unit}]`), ratio: told.baseline === null ? "" : `÷ ${told.baseline}` };
  const alike = ALIKE.filter((key) => new Set(rows.map((row) => cell(row, { key }, told).textContent)).size === 1);
  const columns = COLUMNS.filter((column) => !alike.includes(column.key) && (column.key !== "ratio" || told.baseline !== null)).map(
    (column) => ({ ...column, title: titles[column.key] ?? column.title }),
  );
  const everywhere = alike.map((key) => `, ${cell(rows[0], { key }, told).textContent}`).join("");
  const heads = columns.map((column) => head(column, by, falling, sorted));
  const body = element("tbody", {}, ...rows.slice(0, AT_FIRST).map((row) => line(row, columns, told)));
  const among = state.best === "device" ? "workload and device" : "workload";
  const table = element(
    "table",
    { class: "numbers" },
    element("caption", {}, `Batch size ${told.batch}${everywhere}. ★ has the best figure of a ${among}; ≈ cannot be told from it.${told.table.some((row) => row.unsteady) ? ` ${UNSTEADY}` : ""}`),
    element("thead", {}, element("tr", {}, ...heads)),
    body,
  );
  fill(target, element("div", { class: "scroll" }, table), more(rows, body, columns, told));
}

function head(column, by, falling, sorted) {
  if (column.sort === null) return element("th", { scope: "col", class: column.number ? "number" : null }, column.title);
  const here = by === column.key;
  const next = here && !falling ? `-${column.key}` : column.key;
  return element(
    "th",
    { scope: "col", class: column.number ? "number" : null, "aria-sort": here ? (falling ? "descending" : "ascending") : null },
    element("button", { type: "button", class: "sort", id: `sort-${column.key}`, click: () => sorted(next) }, column.title, here ? (falling ? " ▾" : " ▴") : ""),
  );
}

function line(row, columns, told) {
  return element("tr", { "data-best": row.best, "data-tied": row.tied }, ...columns.map((column) => cell(row, column, told)));
}

function cell(row, column, told) {
  const shown = element("td", { class: column.number ? "number" : null, "data-title": column.title });
  if (column.key === "value") {
    shown.append(unsteady(row), figure(row.value));
    if (row.verdict !== "ok") shown.append(element("small", { class: "verdict" }, row.verdict));
  } else if (column.key === "interval") shown.append(interval(row.low, row.high));
  else if (column.key === "ratio") shown.append(...(row.ratio === null ? [""] : [unsteady(row.over), `${figure(row.ratio)}×`]));
  else if (column.key === "mark") shown.append(row.best ? "★" : row.tied ? "≈" : "");
  else if (column.key === "precision") shown.append(precision(row));
  else if (column.key === "threads") shown.append(threads(row));
  else if (column.key === "started_at") shown.append(row.started_at === null ? "" : element("span", { title: row.study }, new Date(row.started_at * 1000).toISOString().slice(0, 10)));
  else if (column.key === "links") {
    const links = [runLink(row, "run"), engineLink(row, "engine")].filter(Boolean);
    links.forEach((link, place) => {
      link.setAttribute("aria-label", `${link.textContent} of ${row.compiler_label} for ${row.label} on ${row.device}`);
      shown.append(place ? " " : "", link);
    });
  } else shown.append(row[column.key] ?? "");
  return shown;
}

/** What was asked for, and what took effect where that is something else. */
function precision(row) {
  const asked = row.mode === "sync" ? row.precision : `${row.precision} ${row.mode}`;
  const inForce = row.precision_in_force && row.precision_in_force !== row.precision ? ` → ${row.precision_in_force}` : "";
  return asked + inForce + (row.fallback_nodes ? `, ${row.fallback_nodes} nodes fell back` : "");
}

function more(rows, body, columns, told) {
  if (rows.length <= AT_FIRST) return null;
  const button = element(
    "button",
    {
      type: "button",
      click: () => {
        const first = body.rows.length;
        body.append(...rows.slice(first).map((row) => line(row, columns, told)));
        button.remove();
        body.rows[first].tabIndex = -1;
        body.rows[first].focus();
      },
    },
    `Show the other ${rows.length - AT_FIRST}`,
  );
  return button;
}

function order(one, other, falling) {
  if (one === null || other === null) return (one === null) - (other === null);
  const found = typeof one === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
  return falling ? -found : found;
}

function place(one) {
  return JSON.stringify([one.workload, one.device, one.compiler_label, one.precision, one.mode, one.threads]);
}
