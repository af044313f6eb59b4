// So many requests at once, for so long, of each variant in turn.

import { Orders, openPool, quantile } from './orders.mjs';
import { variant } from './variants.mjs';

async function measure(request, orders, { seconds, concurrency }) {
  const latencies = [];
  const counts = { executed: 0, replayed: 0, busy: 0, error: 0 };
  const started = performance.now();
  const end = started + seconds * 1000;
  const loop = async () => {
    while (performance.now() < end) {
      const { key, body } = orders.next();
      const sent = performance.now();
      try {
        counts[(await request(key, body)).how]++;
      } catch (error) {
        counts.error++;
        counts.message = String(error);
      }
      latencies.push(performance.now() - sent);
    }
  };
  await Promise.all(Array.from({ length: concurrency }, loop));
  const elapsed = (performance.now() - started) / 1000;
  return {
    ...counts,
    perSecond: latencies.length / elapsed,
    p50: quantile(latencies, 0.5),
    p99: quantile(latencies, 0.99),
  };
}

export async function throughput(options, print) {
  const open = [];
  for (const name of options.variants) {
    const pool = openPool(options.concurrency);
    open.push([name, await variant(name).open(pool)]);
  }
  for (const [name, request] of open) {
    const orders = new Orders(options.duplicates);
    await measure(request, orders, { ...options, seconds: options.warm });
    print({ name, ...(await measure(request, orders, options)) });
  }
}
