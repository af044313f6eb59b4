/*
 * fault.c
 *		Points where a test can make a step fail or stop.
 *
 * Only in a build with -DIDEM_FAULT_POINTS, never in one that is shipped.
 * There a session sets idempotency.fault to "point:action" and the next pass
 * through that point acts, once:
 *
 *		error		raise an error
 *		cancel		as if the query had been cancelled just here
 *		exit		end the backend, as pg_terminate_backend would
 *		crash		end the process, as SIGKILL from outside would, once the log is
 *					flushed so that recovery meets all that was written
 *		stall		wait for advisory lock (7321, 0), which the test holds, so
 *					that the isolation tester sees the session blocked
 *
 * "point:action:N" lets N passes go by first.  "any:note" tells of every pass
 * by a notice, so that a test knows which points lie on a call's way.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include "fault.h"

#ifdef IDEM_FAULT_POINTS

#include <signal.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/guc.h"

#define STALL_KEY	7321

static char *fault_setting;
static int	passes;				/* since the setting was made */

static void
assign_fault(const char *newval, void *extra)
{
	passes = 0;
}

void
idem_fault_init(void)
{
	DefineCustomStringVariable("idempotency.fault",
							   "Test only: point:action[:passes to let go by].",
							   NULL, &fault_setting, "",
							   PGC_USERSET, 0, NULL, assign_fault, NULL);
}

static void
stall(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, STALL_KEY, 0, 2);
	(void) LockAcquire(&tag, ShareLock, false, false);
	LockRelease(&tag, ShareLock, false);
}

static void
act(const char *action, const char *name)
{
	if (strcmp(action, "stall") == 0)
		stall();
	else if (strcmp(action, "error") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("fault injected at %s", name)));
	else if (strcmp(action, "cancel") == 0)
	{
		InterruptPending = QueryCancelPending = true;
		CHECK_FOR_INTERRUPTS();
	}
	else if (strcmp(action, "exit") == 0)
	{
		InterruptPending = ProcDiePending = true;
		CHECK_FOR_INTERRUPTS();
	}
	else if (strcmp(action, "crash") == 0)
	{
		XLogFlush(XactLastRecEnd);
		(void) kill(MyProcPid, SIGKILL);
	}
}

void
idem_fault_point(const char *name)
{
	char		point[64];
	char		action[16];
	int			skip = 0;

	if (fault_setting == NULL ||
		sscanf(fault_setting, "%63[^:]:%15[^:]:%d", point, action, &skip) < 2)
		return;
	if (strcmp(point, "any") == 0)
		ereport(NOTICE, (errmsg("passing %s", name)));
	else if (strcmp(point, name) == 0 && passes++ == skip)
		act(action, name);
}

#endif							/* IDEM_FAULT_POINTS */
