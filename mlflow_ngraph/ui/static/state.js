/** What the page shows, kept in its address: whoever is sent the address sees the same. */

/** What can be chosen several of; none chosen means all. */
export const SETS = ["device", "compiler", "workload", "precision", "experiment"];
/** What has one value, with the value that is not written into the address. */
export const SINGLE = {
  metric: "throughput",
  baseline: "",
  batch: "",
  best: "device",
  facet: "device",
  all: "",
  log: "",
  sort: "",
};

/** The state that an address says. */
export function read(search) {
  const query = new URLSearchParams(search);
  const state = {};
  for (const name of SETS) state[name] = query.getAll(name);
  for (const [name, usual] of Object.entries(SINGLE)) state[name] = query.get(name) ?? usual;
  return state;
}

/** The query of an address that says this state; empty for what the page shows by itself. */
export function query(state, names = [...Object.keys(SINGLE), ...SETS]) {
  const said = new URLSearchParams();
  for (const name of names) {
    if (SETS.includes(name)) for (const value of state[name]) said.append(name, value);
    else if (state[name] !== SINGLE[name]) said.set(name, state[name]);
  }
  return said.toString();
}

/** Put the state into the address; a step back leads to what was shown before. */
export function write(state) {
  const text = query(state);
  history.pushState(null, "", text ? `?${text}` : location.pathname);
}
