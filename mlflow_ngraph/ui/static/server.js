/** Questions to the server. Whatever goes wrong is an error whose message a person can read. */

const running = new Map();

/**
 * Ask a question; an earlier one of the same kind that is still under way is given up.
 * @returns the answer, or null if a later question took the place of this one
 */
export async function ask(kind, query = "") {
  running.get(kind)?.abort();
  const stop = new AbortController();
  running.set(kind, stop);
  let answer;
  try {
    answer = await fetch(`api/${kind}${query ? `?${query}` : ""}`, { signal: stop.signal });
  } catch (error) {
    if (stop.signal.aborted) return null;
    throw new Error("the server does not answer: check the connection, then read again");
  }
  let told;
  try {
    told = await answer.json();
  } catch (error) {
    if (stop.signal.aborted) return null;
    throw new Error(`the server answered with status ${answer.status}; log in again, or see its log`);
  }
  if (!answer.ok) throw new Error(told.error ?? `the server answered with status ${answer.status}`);
  return told;
}
