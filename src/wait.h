/*
 * wait.h
 *		Bounded waiting for a claim that is in flight.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_WAIT_H
#define IDEM_WAIT_H

#include "portability/instr_time.h"

typedef struct IdemWait
{
	instr_time	start;
	int64		bound;			/* microseconds */
	int64		nap;			/* the next nap's length, microseconds */
} IdemWait;

extern void idem_wait_begin(IdemWait *w, int64 bound);
extern bool idem_wait_is_over(const IdemWait *w);
extern bool idem_wait_nap(IdemWait *w);
extern bool idem_wait_transaction(IdemWait *w, TransactionId xid);

#endif							/* IDEM_WAIT_H */
