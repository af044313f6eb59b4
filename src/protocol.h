/*
 * protocol.h
 *		The calls: probe, decide, change, answer.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_PROTOCOL_H
#define IDEM_PROTOCOL_H

#include "answer.h"
#include "record.h"
#include "wait.h"

/* A claim-like call, from its arguments to what its answer is made of. */
typedef struct IdemRequest
{
	enum
	{
		REQUEST_CLAIM,
		REQUEST_TAKEOVER,
		REQUEST_RESOLVE,
	}			kind;
	IdemClaim	claim;
	IdemFinish	finish;			/* resolve only */
	IdemPayload response;		/* resolve only */
	int64		wait;
	bool		in_target_list; /* not called in FROM */
	MemoryContext statement;	/* that of the calling statement */
} IdemRequest;

typedef struct IdemResult
{
	IdemOutcome outcome;
	bool		known;			/* rec and payload are set */
	IdemRecord	rec;
	IdemPayload payload;		/* may point into the store's slot */
	IdemPlace	place;			/* of a granted claim's record */
} IdemResult;

extern void idem_run_claim(IdemStore *s, const IdemRequest *req, IdemResult *result);
extern void idem_run_lookup(IdemStore *s, IdemResult *result);
extern bool idem_run_finish(IdemStore *s, const IdemFinish *req, const IdemPayload *response,
							const IdemPlace *place, IdemRecord *finished);
extern void idem_require_ownership(const IdemStore *s, IdemOwnership ownership);
extern TimestampTz idem_run_extend(IdemStore *s, const IdemRenewal *req);
extern TimestampTz idem_run_checkpoint(IdemStore *s, const IdemRenewal *req,
									   const IdemPayload *checkpoint);
extern void idem_run_assert(IdemStore *s, const IdemRenewal *req);
extern bool idem_run_forget(IdemStore *s);
extern bool idem_run_once(IdemStore *s, int64 ttl);

#endif							/* IDEM_PROTOCOL_H */
