/** What stands out among the results, in words. */

import { element, fill } from "./dom.js";

const AT_FIRST = 5;
const KINDS = {
  gain: "gain",
  regression: "regression",
  undecided: "undecided",
  tie: "tie",
  failed: "failed",
  "reversal-compiled": "reversal",
  "reversal-devices": "reversal",
  loss: "slower",
  bsr: "batching",
  friction: "scaling",
  knee: "saturation",
  noise: "noise",
  left_out: "left out",
  unsupported: "unsupported",
  built: "built",
};

/** @param {object|null} told what the server found; null while it is looking */
export function show(target, told) {
  if (told === null) {
    fill(target, element("p", { class: "faint" }, "Looking…"));
    return;
  }
  if (!told.findings.length) {
    fill(target, element("p", { class: "faint" }, "Nothing that is significant."));
    return;
  }
  const items = told.findings.map((one, place) =>
    element(
      "li",
      { "data-kind": one.kind, hidden: place >= AT_FIRST },
      element("span", { class: "kind" }, KINDS[one.kind] ?? one.kind),
      element("strong", {}, one.title),
      element("p", {}, one.text),
      element("details", {}, element("summary", {}, one.command.includes(" benchmark ") ? "Measure again" : "Show more in a terminal"), element("pre", {}, element("code", {}, one.command))),
    ),
  );
  const hidden = items.length - AT_FIRST;
  const more = element(
    "button",
    {
      type: "button",
      click: () => {
        for (const item of items) item.hidden = false;
        more.remove();
        items[AT_FIRST].tabIndex = -1;
        items[AT_FIRST].focus();
      },
    },
    `Show ${hidden} more`,
  );
  fill(
    target,
    element("ol", { class: "findings" }, ...items),
    hidden > 0 ? more : null,
    told.more ? element("p", { class: "faint" }, `${told.more} less important ones are left out: choose fewer devices or workloads.`) : null,
  );
}
