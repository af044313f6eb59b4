// Orders to create, and the keys they are created under.

import { randomUUID } from 'node:crypto';
import pg from 'pg';

export function makeOrder() {
  const key = randomUUID();
  return { key, body: { ref: key, customer: 1 + (Math.random() * 1000 | 0), total: '149.90' } };
}

// So many of the orders are sent again while they are fresh in the caller's
// memory: some of them while the first attempt is still running.
export class Orders {
  constructor(duplicates) {
    this.duplicates = duplicates;
    this.recent = [];
    this.sent = 0;
  }

  next() {
    if (this.recent.length > 0 && Math.random() < this.duplicates) {
      return this.recent[(Math.random() * this.recent.length) | 0];
    }
    const order = makeOrder();
    this.recent[this.sent++ % 64] = order;
    return order;
  }
}

export function openPool(max) {
  const pool = new pg.Pool({ max, application_name: 'bench' });
  pool.on('error', () => {});
  return pool;
}

export function quantile(values, q) {
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
}
