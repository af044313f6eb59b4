// The same work by a worker that is killed again and again, at random.
//
// This process is the clients.  It sends each order, with its key, to the
// worker; when the worker dies it sends whatever has no answer yet to the next
// one, and asks again after "busy", as a client should.  At the end it counts
// nothing: the orders are in the database, and the caller counts them by key.

import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { makeOrder, openPool } from './orders.mjs';
import { variant } from './variants.mjs';

const RETRY_MS = 50;

class Clients {
  constructor(name) {
    this.name = name;
    this.open = new Map();
    this.sent = 0;
    this.answered = 0;
    this.errors = 0;
  }

  async startWorker() {
    this.worker = fork(fileURLToPath(import.meta.url), [this.name]);
    const { worker } = this;
    await new Promise((resolve) => worker.once('message', resolve));
    worker.on('message', (answer) => this.hear(worker, answer));
    for (const order of this.open.values()) this.send(order);
  }

  send(order) {
    if (this.open.has(order.key) && this.worker.connected) this.worker.send(order, () => {});
  }

  hear(worker, { key, how }) {
    const order = this.open.get(key);
    if (!order) return;
    if (how === 'error') this.errors++;
    if (how === 'busy' || how === 'error') {
      setTimeout(() => worker === this.worker && this.send(order), RETRY_MS);
      return;
    }
    this.open.delete(key);
    this.answered++;
    if (this.refill) this.add();
  }

  add() {
    const order = makeOrder();
    this.sent++;
    this.open.set(order.key, order);
    this.send(order);
  }

  async kill() {
    const { worker } = this;
    const gone = new Promise((resolve) => worker.once('exit', resolve));
    worker.kill('SIGKILL');
    await gone;
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export async function killed({ variant: name, kills, concurrency, patience }, print) {
  const clients = new Clients(name);
  clients.refill = true;
  await clients.startWorker();
  for (let i = 0; i < concurrency; i++) clients.add();
  for (let i = 0; i < kills; i++) {
    await sleep(50 + Math.random() * 200);
    await clients.kill();
    await clients.startWorker();
  }
  clients.refill = false;
  for (const end = Date.now() + patience * 1000; clients.open.size > 0 && Date.now() < end;) await sleep(20);
  await clients.kill();
  print({
    name, kills, sent: clients.sent, answered: clients.answered, errors: clients.errors,
    unanswered: [...clients.open.keys()],
  });
}

async function work(name) {
  const request = await variant(name).open(openPool(16));
  process.on('message', async ({ key, body }) => {
    let how;
    try {
      ({ how } = await request(key, body));
    } catch {
      how = 'error';
    }
    process.send({ key, how });
  });
  process.send('ready');
}

if (process.send && process.argv[1] === fileURLToPath(import.meta.url)) await work(process.argv[2]);
