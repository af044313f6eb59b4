// Whole workflows, from the request to its answer, through one Node.js process.
//
//   node driver.mjs throughput '{"seconds":..,"warm":..,"concurrency":..,"duplicates":..,"variants":[..]}'
//   node driver.mjs killed     '{"variant":..,"kills":..,"concurrency":..}'
//   node driver.mjs storm      '{"how":..,"waiters":..,"hold":..}'
//
// Each prints one JSON value per result.  The database is that of the PG*
// variables, and the tables are those of variants.mjs.

import { throughput } from './throughput.mjs';
import { killed } from './killed.mjs';
import { storm } from './storm.mjs';

const [, , what, argument] = process.argv;
await { throughput, killed, storm }[what](JSON.parse(argument), (result) => {
  process.stdout.write(`${JSON.stringify(result)}\n`);
});
process.exit(0);
