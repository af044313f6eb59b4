/*
 * sweep.h
 *		Deleting expired records.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_SWEEP_H
#define IDEM_SWEEP_H

#include "record.h"

typedef struct IdemSweep
{
	int64		from;			/* where to start; where the last batch ended */
	int64		deleted;
	bool		more;
} IdemSweep;

extern void idem_sweep_batch(IdemStore *s, int max_rows, IdemSweep *sweep);
extern int64 idem_count_unresolved(IdemStore *s);

#endif							/* IDEM_SWEEP_H */
