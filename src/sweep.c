/*
 * sweep.c
 *		Deleting expired records.
 *
 * The index on sweep_at holds exactly the records that time makes deletable,
 * in order of that time, so a sweep costs what it deletes, whatever the size
 * of the table: live leases, and records that need somebody to reconcile
 * them, are not in the way.
 *
 * Each record is locked, skipping what somebody else has locked, and judged
 * again under the lock by the clock of that moment, before it is deleted.  So
 * a sweep waits for nobody, two sweeps share the work, and a record that was
 * claimed anew or extended in the meantime stays.
 *
 * The scans use a dirty snapshot like everything else (see record.c), so a
 * sweep inside a REPEATABLE READ or SERIALIZABLE transaction neither misses
 * what expired since nor conflicts with claims.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "fault.h"
#include "sweep.h"

/* Of the version at hand: is it ours to delete? */
static bool
is_deletable(const IdemStore *s, TimestampTz now)
{
	if (s->changing || (s->own && s->rec.state == IDEM_PROCESSING))
		return false;
	return idem_is_expired(&s->rec, now);
}

/* Delete the version at hand unless it is locked or no longer expired. */
static bool
delete_expired(IdemStore *s)
{
	if (idem_store_lock(s, LockTupleExclusive, LockWaitSkip) != CHANGE_DONE)
		return false;
	return is_deletable(s, GetCurrentTimestamp()) && idem_store_delete(s) == CHANGE_DONE;
}

/*
 * Delete up to max_rows expired records, oldest first, from sweep->from on.
 * sweep->more: at least one more that can be deleted is left.
 */
void
idem_sweep_batch(IdemStore *s, int max_rows, IdemSweep *sweep)
{
	TimestampTz now = GetCurrentTimestamp();

	sweep->deleted = 0;
	sweep->more = false;
	idem_store_scan_begin(s, COL_SWEEP_AT, sweep->from, now);
	while (!sweep->more && idem_store_scan_next(s))
	{
		if (!is_deletable(s, now))
			continue;
		if (sweep->deleted < max_rows)
		{
			FAULT_POINT("in sweep");
			(void) idem_sweep_at(&s->rec, &sweep->from);
			if (delete_expired(s))
				sweep->deleted++;
		}
		else
			sweep->more = idem_store_looks_unlocked(s);
	}
	idem_store_scan_end(s);
}

/* How many records need reconciling now: O(leased and unresolved). */
int64
idem_count_unresolved(IdemStore *s)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		n = 0;

	idem_store_scan_begin(s, COL_LEASE_EXPIRES_AT, DT_NOBEGIN, now);
	while (idem_store_scan_next(s))
		n += idem_needs_reconciling(&s->rec, now);
	idem_store_scan_end(s);
	return n;
}
