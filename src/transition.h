/*
 * transition.h
 *		States, rules and the pure decision of the idempotency-key protocol.
 *
 * Plain C on purpose: no PostgreSQL header, no storage, no clock of its own,
 * so that the rules can be compiled, tested and model-checked alone.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_TRANSITION_H
#define IDEM_TRANSITION_H

#include <stdbool.h>
#include <stdint.h>

#define IDEM_FINGERPRINT_LEN	32
#define IDEM_TOKEN_LEN			16

typedef enum IdemState
{
	IDEM_PROCESSING,
	IDEM_SUCCEEDED,
	IDEM_FAILED,
	IDEM_RELEASED,
	IDEM_UNKNOWN,
} IdemState;

/* What a lapsed lease means: nobody may guess, or the next claim may run. */
typedef enum IdemAbandon
{
	IDEM_ABANDON_UNKNOWN,
	IDEM_ABANDON_RETRY,
} IdemAbandon;

/* The part of a record that decides.  Times and durations in microseconds. */
typedef struct IdemRecord
{
	IdemState	state;
	IdemAbandon on_abandon;
	int32_t		attempt;
	bool		recovered;		/* this attempt follows an abandoned one */
	bool		progressed;		/* extended or checkpointed under this claim */
	bool		has_fingerprint;
	bool		has_lease;		/* lease_expires_at is set */
	bool		has_lease_length;	/* lease is set */
	bool		has_finished;	/* finished_at is set */
	uint8_t		fingerprint[IDEM_FINGERPRINT_LEN];
	uint8_t		token[IDEM_TOKEN_LEN];
	int64_t		created_at;
	int64_t		claimed_at;
	int64_t		expires_at;
	int64_t		lease_expires_at;
	int64_t		finished_at;
	int64_t		ttl;
	int64_t		lease;			/* the length last given */
} IdemRecord;

/* What a claim or takeover asks for. */
typedef struct IdemClaim
{
	bool		has_fingerprint;
	bool		has_token;		/* claim_token given */
	uint8_t		fingerprint[IDEM_FINGERPRINT_LEN];
	uint8_t		token[IDEM_TOKEN_LEN];
	int64_t		ttl;
	int64_t		lease;			/* 0: transactional */
	IdemAbandon on_abandon;
	bool		force;			/* takeover only: a live lease may be taken */
} IdemClaim;

/* What a finish asks for. */
typedef struct IdemFinish
{
	bool		has_token;
	uint8_t		token[IDEM_TOKEN_LEN];
	IdemState	state;
	bool		has_ttl;
	int64_t		ttl;
} IdemFinish;

/* What an owner's extend or checkpoint asks for. */
typedef struct IdemRenewal
{
	bool		has_token;
	uint8_t		token[IDEM_TOKEN_LEN];
	bool		has_lease;		/* else the length last given */
	int64_t		lease;
	bool		has_on_abandon;
	IdemAbandon on_abandon;
} IdemRenewal;

/* Verdicts of idem_decide_claim, _takeover and _lookup. */
typedef enum IdemVerdict
{
	/* the caller may run: write the next record */
	IDEM_GRANT_FIRST,			/* absent or expired: attempt 1 */
	IDEM_GRANT_NEXT,			/* released or abandoned: attempt + 1 */
	IDEM_GRANT_REPEAT,			/* the same claim, asked for again */

	/* the caller may not run: nothing is written */
	IDEM_ABSENT,
	IDEM_REPLAY,
	IDEM_BUSY,					/* somebody holds it; waiting can help */
	IDEM_BUSY_SELF,				/* this transaction holds it; it cannot */
	IDEM_MISMATCH,
	IDEM_UNDECIDED,				/* outcome "unknown" */
	IDEM_FREE,					/* outcome "released": the next claim gets it */

	IDEM_TOKEN_REUSED,			/* claim_token of an attempt that is over */
} IdemVerdict;

#define IDEM_IS_GRANT(v) ((v) <= IDEM_GRANT_REPEAT)

/* Verdicts of idem_decide_finish and idem_decide_renewal. */
typedef enum IdemOwnership
{
	IDEM_OWNED,					/* write the next record */
	IDEM_ALREADY,				/* this token has recorded this very state */
	IDEM_NEED_TOKEN,			/* no token, and not written by this transaction */
	IDEM_LOST_GONE,
	IDEM_LOST_TAKEN,
	IDEM_LOST_FINISHED,
	IDEM_NOT_LEASED,
} IdemOwnership;

/* Verdicts of idem_decide_once. */
typedef enum IdemOnce
{
	IDEM_ONCE_FIRST,
	IDEM_ONCE_SEEN,
	IDEM_ONCE_CLAIMED,			/* a claim's record that is not settled */
} IdemOnce;

/*
 * In all of these: rec is the live record or NULL if there is none; own says
 * that the calling transaction itself wrote that version; now is the server's
 * clock, read after any waiting.  *next is filled where something is to be
 * written, but for a fresh random token, which the caller draws when
 * idem_needs_token() says so.
 */
extern IdemVerdict idem_decide_claim(const IdemRecord *rec, const IdemClaim *req,
									 bool own, int64_t now, IdemRecord *next);
extern IdemVerdict idem_decide_takeover(const IdemRecord *rec, const IdemClaim *req,
										bool own, int64_t now, IdemRecord *next);
extern IdemVerdict idem_decide_lookup(const IdemRecord *rec, bool own, int64_t now);
extern IdemOwnership idem_decide_finish(const IdemRecord *rec, const IdemFinish *req,
										bool own, int64_t now, IdemRecord *next);
extern IdemOwnership idem_decide_renewal(const IdemRecord *rec, const IdemRenewal *req,
										 bool own, int64_t now, IdemRecord *next);
extern IdemOnce idem_decide_once(const IdemRecord *rec, int64_t ttl,
								 bool own, int64_t now, IdemRecord *next);
extern bool idem_needs_token(IdemVerdict verdict, const IdemClaim *req);

extern bool idem_is_expired(const IdemRecord *rec, int64_t now);
extern bool idem_needs_reconciling(const IdemRecord *rec, int64_t now);
extern bool idem_sweep_at(const IdemRecord *rec, int64_t *sweep_at);

#endif							/* IDEM_TRANSITION_H */
