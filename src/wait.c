/*
 * wait.c
 *		Bounded waiting for a claim that is in flight.
 *
 * PostgreSQL's own lock waits have no bound that does not raise an error, and
 * an error would abort the caller's transaction.  So this polls: naps that
 * double from 1 ms to 8 ms, which keeps a waiter within a round trip's
 * distance of the holder's commit and costs a waiting backend next to no CPU.
 * While a transaction holds the row only the transaction's state is asked
 * for, not the index.
 *
 * The bound is measured on the monotonic clock, so that a step of the wall
 * clock neither stretches nor cuts it.  Every nap can be interrupted; nothing
 * is raised here but what CHECK_FOR_INTERRUPTS raises.  The caller holds no
 * buffer pin and no scan while it naps.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/procarray.h"
#include "utils/wait_event.h"

#include "fault.h"
#include "wait.h"

#define FIRST_NAP	INT64CONST(1000)
#define LONGEST_NAP	INT64CONST(8000)

/* Extensions name their wait events from PostgreSQL 17 on. */
static uint32
wait_event(void)
{
#if PG_VERSION_NUM >= 170000
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("IdempotencyClaim");
	return event;
#else
	return PG_WAIT_EXTENSION;
#endif
}

/* Start a wait of at most bound microseconds; 0 means not at all. */
void
idem_wait_begin(IdemWait *w, int64 bound)
{
	w->bound = bound;
	w->nap = FIRST_NAP;
	if (bound > 0)
		INSTR_TIME_SET_CURRENT(w->start);
}

static int64
time_left(const IdemWait *w)
{
	instr_time	now;

	if (w->bound <= 0)
		return 0;
	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, w->start);
	return w->bound - (int64) INSTR_TIME_GET_MICROSEC(now);
}

bool
idem_wait_is_over(const IdemWait *w)
{
	return time_left(w) <= 0;
}

/* Nap once.  False, without a nap, when the bound has been reached. */
bool
idem_wait_nap(IdemWait *w)
{
	int64		left = time_left(w);
	int64		nap = Min(w->nap, left);

	if (left <= 0)
		return false;

	/* latches count in milliseconds; the rest of the bound is less than one */
	if (nap < 1000)
		pg_usleep(nap);
	else
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) (nap / 1000), wait_event());
		ResetLatch(MyLatch);
	}
	CHECK_FOR_INTERRUPTS();
	FAULT_POINT("in wait");

	w->nap = Min(w->nap * 2, LONGEST_NAP);
	return true;
}

/*
 * Nap until the transaction has ended.  False when the bound was reached
 * first.  The next wait starts with short naps again: whoever takes the place
 * of a holder that rolled back may be just as quick.
 */
bool
idem_wait_transaction(IdemWait *w, TransactionId xid)
{
	do
	{
		if (!idem_wait_nap(w))
			return false;
	} while (TransactionIdIsInProgress(xid));

	w->nap = FIRST_NAP;
	return true;
}
