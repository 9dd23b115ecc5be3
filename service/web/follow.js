// A job's events as they come. EventSource cannot send a token, so the stream is read by hand; it
// resumes where it broke off.

import { call, get } from "./common.js";

export const ENDED = new Set(["succeeded", "failed", "cancelled", "timed_out"]);

function entryOf(text) {
  const entry = {};
  for (const line of text.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    if (colon > 0) entry[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
  }
  return entry;
}

/** Call hear(event, data) for each event until the job has ended, or the signal says stop. */
export async function follow(id, signal, hear) {
  let last = "";
  for (let failures = 0; !signal.aborted; ) {
    try {
      const answer = await call(`/v1/jobs/${id}/events`, {
        signal,
        headers: last ? { "Last-Event-ID": last } : {},
      });
      if (answer.status === 204) return;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        failures = 0;
        const parts = (rest + value).split(/\r?\n\r?\n/);
        rest = parts.pop();
        for (const entry of parts.map(entryOf)) {
          if (entry.id) last = entry.id;
          if (entry.data) hear(entry.event, JSON.parse(entry.data));
        }
      }
      if (ENDED.has((await get(`/v1/jobs/${id}`, { signal })).state)) return;
    } catch (error) {
      if (error.name === "AbortError" || [403, 404].includes(error.status)) throw error;
      failures += 1;
    }
    await new Promise((wake) => setTimeout(wake, Math.min(15000, 500 * 2 ** failures)));
  }
}
