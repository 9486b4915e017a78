/** Making elements. Text is only ever set as text, so that nothing that was recorded can become markup. */

/**
 * @param {string} name of the element
 * @param {object} attributes null and false leave one out; functions are listeners, by the name of their event
 * @param {...(Node|string|null)} children
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== null && value !== false && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Put children in the place of those that an element has. */
export function fill(target, ...children) {
  target.replaceChildren(...children.filter((child) => child !== null));
}

/** A number with four significant digits, without an exponent where that reads well. */
export function figure(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2);
  return Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
}

/** The ends of an interval; empty where there is none. */
export function interval(low, high) {
  return low === null || high === null ? "" : `[${figure(low)}, ${figure(high)}]`;
}

/** How many threads something ran with. */
export function threads(row) {
  return `${row.threads ?? "default"} threads`;
}

/** The metric with the lane that it refers to, where it does. */
export function titled(told) {
  return told.over === null ? told.metric : `${told.metric} over ${told.over}`;
}

/** A unit, as it stands after a number. */
export function unit(name) {
  return name === "1" ? "" : ` ${name}`;
}

/**
 * Where MLflow shows a run or an engine. Addresses are relative: nobody knows what stands before this server. Without
 * workflowType MLflow shows what it has for language models.
 */
function inMlflow(row, what, id) {
  const place = `${encodeURIComponent(row.experiment_id)}/${what}/${encodeURIComponent(id)}`;
  return `../#/experiments/${place}?workflowType=machine_learning`;
}

export function runLink(row, text) {
  if (!row.lane_run_id || !row.experiment_id) return null;
  return element("a", { href: inMlflow(row, "runs", row.lane_run_id) }, text);
}

export function engineLink(row, text) {
  if (!row.model_id || !row.experiment_id) return null;
  return element("a", { href: inMlflow(row, "models", row.model_id) }, text);
}

export const UNSTEADY = "~ is unsteady: the machine was not quiet.";

/** The mark of a number that noise touches, with what disturbed the machine; nothing else. */
export function unsteady(one) {
  return one.unsteady ? element("span", { class: "unsteady", title: one.noise ?? UNSTEADY }, "~") : "";
}
