/*
 * What a client is told, in the words of
 * draft-ietf-httpapi-idempotency-key-header: its key read from the header,
 * replays, and problem documents (RFC 9457).
 */

import { STATUS_CODES } from 'node:http';

const PROBLEMS = 'https://api.example.com/problems/'; // the base of your documentation of them

const KINDS = { // status, title, and Retry-After only where waiting is known to help
  'idempotency-key-missing': [400, 'This operation requires an Idempotency-Key'],
  'idempotency-key-invalid': [400, 'This Idempotency-Key cannot be used'],
  'not-json': [400, 'The body is not JSON that can be stored'],
  'not-authenticated': [401, 'Keys belong to a user: say who you are'],
  'request-in-flight': [409, 'A request with this key is being processed', 1],
  'outcome-unknown': [409, 'Whether this took effect is being found out; do not use a new key'],
  'request-too-large': [413, 'The request is too large'],
  'idempotency-key-reused': [422, 'This key was used for a different request'],
  unavailable: [503, 'Send the same again, with the same key', 1],
  'not-done': [503, 'Nothing was done; send the same again, with the same key', 1],
};

// A string of RFC 9651, with parameters that we ignore; or the bare value that many send.
const TEXT = '"((?:[ !#-\\[\\]-~]|\\\\["\\\\])*)"';
const QUOTED = new RegExp(`^${TEXT}(?:; *[a-z*][a-z0-9_.*-]*(?:=%?${TEXT}|=[^\\s;",]+)?)*$`);
const BARE = /^[!#-+\--:<-[\]-~]+$/;

/** Answer this; nothing is stored, and what was begun rolls back. */
export class Refused extends Error {
  constructor(answer) {
    super(`answered with ${answer.status}`);
    this.answer = answer;
  }
}

/** Nothing was sent or done, for certain: the same key may run again. */
export class NotDone extends Refused {
  constructor(answer = problem('not-done')) {
    super(answer);
  }
}

export function keyOf(header) {
  if (header === undefined) {
    throw new Refused(problem('idempotency-key-missing'));
  }
  const quoted = QUOTED.exec(header);
  if (quoted) {
    return quoted[1].replace(/\\(.)/g, '$1');
  }
  if (!BARE.test(header)) { // two headers, joined by a comma, are not one key
    throw new Refused(problem('idempotency-key-invalid'));
  }
  return header;
}

/** The answer to a request that must not run. */
export function answerFor(record) {
  switch (record.outcome) {
    case 'replayed':
      return {
        status: record.response_code ?? (record.state === 'succeeded' ? 200 : 422),
        headers: { ...record.response_headers, 'Idempotency-Replayed': 'true' },
        body: record.response_bytes ?? record.response_body,
      };
    case 'in_progress':
      return problem('request-in-flight');
    case 'unknown':
      return problem('outcome-unknown');
    case 'mismatch':
      return problem('idempotency-key-reused', {
        new_key_is_safe: !['processing', 'unknown'].includes(record.state),
      });
    default: // by a lookup: released, or gone
      return problem('not-done');
  }
}

/**
 * The answer that an error stands for by the convention of http-errors, or
 * undefined.  Not by its status alone: HTTP clients put the status of somebody
 * else's answer there, and "expose" only if the message is meant for our client.
 */
export function answerThrown(error) {
  if (error?.expose !== true || !(error.status >= 400 && error.status < 500)) {
    return undefined;
  }
  const { status, message, headers } = error;
  return {
    status,
    headers: { ...headers, 'Content-Type': 'application/problem+json' },
    body: JSON.stringify({ title: STATUS_CODES[status], status, detail: message }),
  };
}

export function problem(kind, more) {
  const [status, title, retryAfter] = KINDS[kind];
  const document = { type: PROBLEMS + kind, title, status, ...more };
  return {
    status: document.status,
    headers: {
      'Content-Type': 'application/problem+json',
      ...(retryAfter && { 'Retry-After': String(retryAfter) }),
      ...(status === 401 && { 'WWW-Authenticate': 'Bearer' }),
    },
    body: JSON.stringify(document),
  };
}
