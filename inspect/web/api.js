// Requests to the inspector. An answer that is an error is thrown with its message.

export class ApiError extends Error {
  constructor(status, { parameter, message } = {}) {
    super(message || `the server answered ${status}`);
    this.status = status;
    this.parameter = parameter;
  }
}

/** A path with a query. Values that are null are left out; an empty one may be the id of the empty key. */
export function addressOf(path, query) {
  const pairs = Object.entries(query).filter(([, value]) => value != null);
  const search = pairs.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  return search ? `${path}?${search}` : path;
}

/** GET, JSON. */
export async function get(path, query = {}, signal) {
  return answer(await fetch(addressOf(path, query), { signal, headers: { Accept: "application/json" } }));
}

/** POST, JSON, with a bearer token. */
export async function post(path, body, token) {
  return answer(await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
    body: JSON.stringify(body),
  }));
}

async function answer(response) {
  let body = null;
  try {
    body = await response.json();
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error; // the connection broke in the middle
    if (response.ok) throw new ApiError(response.status, { message: "the answer is not JSON" }); // something in between has answered
  }
  if (!response.ok) throw new ApiError(response.status, body?.error);
  return body;
}
