// The server, as any client sees it.

let key = "";

/** A refusal or a failure, in the server's own words. */
export class ServerError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
  }
}

/** Remember the key of this visit. */
export function useKey(given) {
  key = given;
}

/** Get a document. */
export async function getJson(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: headers() });
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

/**
 * Post a request and yield its events.
 *
 * Ends at `[DONE]`. A stream that ends without it was cut, and says so.
 */
export async function* stream(path, body, signal) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!answer.ok) throw await refusal(answer);
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const document = JSON.parse(data);
    if (document.error) throw new ServerError(answer.status, document.error);
    yield document;
  }
  throw new ServerError(answer.status, { message: "the stream ended early", code: "cut" });
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    for (let end = held.indexOf("\n\n"); end >= 0; end = held.indexOf("\n\n")) {
      const event = held.slice(0, end);
      held = held.slice(end + 2);
      if (event.startsWith("data: ")) yield event.slice(6);
    }
  }
}

function headers() {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function refusal(answer) {
  try {
    return new ServerError(answer.status, (await answer.json()).error);
  } catch {
    return new ServerError(answer.status, { message: `status ${answer.status}`, code: null });
  }
}
