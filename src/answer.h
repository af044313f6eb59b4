/*
 * answer.h
 *		The row that a call answers with.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_ANSWER_H
#define IDEM_ANSWER_H

#include "fmgr.h"

#include "record.h"

typedef enum IdemOutcome
{
	OUTCOME_CLAIMED,
	OUTCOME_EXECUTED,
	OUTCOME_REPLAYED,
	OUTCOME_IN_PROGRESS,
	OUTCOME_MISMATCH,
	OUTCOME_UNKNOWN,
	OUTCOME_RELEASED,
	OUTCOME_ABSENT,
} IdemOutcome;

/* Which row type: of claim, takeover and execute, or of lookup and resolve. */
typedef enum IdemRowType
{
	ROW_CLAIM,
	ROW_LOOKUP,
} IdemRowType;

extern void idem_refuse_row_type(Oid function);
extern Datum idem_answer(FunctionCallInfo fcinfo, IdemRowType type, IdemOutcome outcome,
						 const IdemRecord *rec, const IdemPayload *payload);

#endif							/* IDEM_ANSWER_H */
