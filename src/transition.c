/*
 * transition.c
 *		The decision: record + request + clock -> verdict and next record.
 *
 * The rules of the protocol, and nothing else.  Each function below reads as
 * a table from the first matching line down.  Why they are safe:
 *
 * - Only a claim or takeover grants the right to act, and each grant but a
 *   repeat carries a new token: 128 random bits, or the caller's, which is
 *   refused while the record still knows it.  Finish, extend, checkpoint and
 *   assert go by the token alone, so whoever was replaced is refused, however
 *   late it comes; and an owner whose lease merely ran out is not, because
 *   nobody acted in its place.
 * - A lapsed lease turns into a new attempt only where the record says
 *   "retry".  Otherwise the answer stays "unknown" whatever time does: no
 *   comparison with the clock leads from there to a grant.  An owner that
 *   finishes as unknown thereby takes back a "retry", so that it stays so
 *   through takeovers that are abandoned in turn.
 * - A record is absent once expires_at has passed, swept or not, so the
 *   sweep can be late or early without any caller seeing a difference.  A
 *   live lease and an unknown are never expired.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include <string.h>

#include "transition.h"

static bool
same_token(const uint8_t *a, const uint8_t *b)
{
	return memcmp(a, b, IDEM_TOKEN_LEN) == 0;
}

/* NULL matches only NULL: no request, no check. */
static bool
same_request(const IdemRecord *rec, const IdemClaim *req)
{
	if (rec->has_fingerprint != req->has_fingerprint)
		return false;
	return !rec->has_fingerprint ||
		memcmp(rec->fingerprint, req->fingerprint, IDEM_FINGERPRINT_LEN) == 0;
}

static bool
is_settled(const IdemRecord *rec)
{
	return rec->state == IDEM_SUCCEEDED || rec->state == IDEM_FAILED;
}

/* A processing record whose holder's time is over; false without a lease. */
static bool
is_abandoned(const IdemRecord *rec, int64_t now)
{
	return rec->state == IDEM_PROCESSING && rec->has_lease &&
		rec->lease_expires_at <= now;
}

bool
idem_is_expired(const IdemRecord *rec, int64_t now)
{
	if (rec->expires_at > now)
		return false;
	return is_settled(rec) || rec->state == IDEM_RELEASED ||
		(is_abandoned(rec, now) && rec->on_abandon == IDEM_ABANDON_RETRY);
}

/*
 * Is there no record as far as callers are concerned?  The claim that this
 * very transaction has in hand is there, however long it took.
 */
static bool
is_absent(const IdemRecord *rec, bool own, int64_t now)
{
	if (rec == NULL)
		return true;
	return !(own && rec->state == IDEM_PROCESSING) && idem_is_expired(rec, now);
}

bool
idem_needs_reconciling(const IdemRecord *rec, int64_t now)
{
	return rec->state == IDEM_UNKNOWN ||
		(is_abandoned(rec, now) && rec->on_abandon == IDEM_ABANDON_UNKNOWN);
}

/*
 * From when on idem_is_expired() holds if nobody writes the record again;
 * false if never.  The table repeats this as a generated column, which the
 * sweep's index is on.
 */
bool
idem_sweep_at(const IdemRecord *rec, int64_t *sweep_at)
{
	*sweep_at = rec->expires_at;
	if (rec->state == IDEM_UNKNOWN)
		return false;
	if (rec->state != IDEM_PROCESSING || !rec->has_lease)
		return true;
	if (rec->on_abandon == IDEM_ABANDON_UNKNOWN)
		return false;
	if (*sweep_at < rec->lease_expires_at)
		*sweep_at = rec->lease_expires_at;
	return true;
}

static void
set_lease(IdemRecord *next, int64_t lease, int64_t now)
{
	next->has_lease = next->has_lease_length = lease > 0;
	next->lease = lease;
	next->lease_expires_at = now + lease;
}

/* The part common to every grant of a new attempt. */
static void
start_attempt(IdemRecord *next, const IdemClaim *req, int64_t now)
{
	next->state = IDEM_PROCESSING;
	next->progressed = false;
	next->has_finished = false;
	next->claimed_at = now;
	next->expires_at = now + next->ttl;
	set_lease(next, req->lease, now);
	if (req->has_token)
		memcpy(next->token, req->token, IDEM_TOKEN_LEN);
}

/* Attempt 1 of a new life. */
static IdemVerdict
grant_first(const IdemClaim *req, int64_t now, IdemRecord *next)
{
	memset(next, 0, sizeof(*next));
	next->attempt = 1;
	next->created_at = now;
	next->ttl = req->ttl;
	next->on_abandon = req->on_abandon;
	next->has_fingerprint = req->has_fingerprint;
	memcpy(next->fingerprint, req->fingerprint, IDEM_FINGERPRINT_LEN);
	start_attempt(next, req, now);
	return IDEM_GRANT_FIRST;
}

/* The next attempt of the same life; the caller has set ttl and policy. */
static IdemVerdict
grant_next(const IdemRecord *rec, const IdemClaim *req, int64_t now, IdemRecord *next)
{
	next->attempt = rec->attempt < INT32_MAX ? rec->attempt + 1 : INT32_MAX;
	next->recovered = rec->state != IDEM_RELEASED;
	start_attempt(next, req, now);
	return IDEM_GRANT_NEXT;
}

IdemVerdict
idem_decide_claim(const IdemRecord *rec, const IdemClaim *req,
				  bool own, int64_t now, IdemRecord *next)
{
	bool		absent = is_absent(rec, own, now);
	bool		holds_token = rec != NULL && req->has_token &&
		same_token(rec->token, req->token);

	if (absent && holds_token)
		return IDEM_TOKEN_REUSED;
	if (absent)
		return grant_first(req, now, next);

	if (!same_request(rec, req))
		return IDEM_MISMATCH;

	if (holds_token && rec->state == IDEM_PROCESSING && !rec->progressed &&
		rec->has_lease && rec->lease_expires_at > now)
	{
		*next = *rec;
		set_lease(next, req->lease, now);
		return IDEM_GRANT_REPEAT;
	}

	if (rec->state == IDEM_PROCESSING && own)
		return IDEM_BUSY_SELF;
	if (is_settled(rec))
		return IDEM_REPLAY;
	if (idem_needs_reconciling(rec, now))
		return IDEM_UNDECIDED;
	if (rec->state == IDEM_PROCESSING && !is_abandoned(rec, now))
		return IDEM_BUSY;

	/* released, or abandoned with retry */
	if (holds_token)
		return IDEM_TOKEN_REUSED;
	*next = *rec;
	next->ttl = req->ttl;
	next->on_abandon = req->on_abandon;
	return grant_next(rec, req, now, next);
}

/* The record keeps its ttl, policy, fingerprint and checkpoint. */
IdemVerdict
idem_decide_takeover(const IdemRecord *rec, const IdemClaim *req,
					 bool own, int64_t now, IdemRecord *next)
{
	if (is_absent(rec, own, now))
		return IDEM_ABSENT;
	if (rec->state == IDEM_PROCESSING && own)
		return IDEM_BUSY_SELF;
	if (is_settled(rec))
		return IDEM_REPLAY;
	if (rec->state == IDEM_PROCESSING && !is_abandoned(rec, now) && !req->force)
		return IDEM_BUSY;

	*next = *rec;
	return grant_next(rec, req, now, next);
}

IdemVerdict
idem_decide_lookup(const IdemRecord *rec, bool own, int64_t now)
{
	if (is_absent(rec, own, now))
		return IDEM_ABSENT;
	if (rec->state == IDEM_PROCESSING && own)
		return IDEM_BUSY_SELF;
	if (is_settled(rec))
		return IDEM_REPLAY;
	if (idem_needs_reconciling(rec, now))
		return IDEM_UNDECIDED;
	if (rec->state == IDEM_RELEASED || is_abandoned(rec, now))
		return IDEM_FREE;
	return IDEM_BUSY;
}

/*
 * Does the caller own the record?  The token is the authority; it may be left
 * out only by the transaction that wrote the version at hand.
 */
static IdemOwnership
check_owner(const IdemRecord *rec, bool has_token, const uint8_t *token, bool own)
{
	if (!has_token)
		return rec != NULL && own ? IDEM_OWNED : IDEM_NEED_TOKEN;
	if (rec == NULL)
		return IDEM_LOST_GONE;
	return same_token(rec->token, token) ? IDEM_OWNED : IDEM_LOST_TAKEN;
}

IdemOwnership
idem_decide_finish(const IdemRecord *rec, const IdemFinish *req,
				   bool own, int64_t now, IdemRecord *next)
{
	IdemOwnership owner = check_owner(rec, req->has_token, req->token, own);
	int64_t		ttl = req->has_ttl ? req->ttl : rec != NULL ? rec->ttl : 0;

	if (owner != IDEM_OWNED)
		return owner;
	if (rec->state == req->state)
		return IDEM_ALREADY;
	if (rec->state != IDEM_PROCESSING && rec->state != IDEM_UNKNOWN)
		return IDEM_LOST_FINISHED;

	*next = *rec;
	next->state = req->state;
	next->has_finished = true;
	next->finished_at = now;
	if (req->state == IDEM_UNKNOWN)
	{
		/* over now at the latest, and the lease index keeps it in sight */
		if (!next->has_lease || next->lease_expires_at > now)
			next->lease_expires_at = now;
		next->has_lease = true;
		/* nor may a takeover that is abandoned in turn give it away */
		next->on_abandon = IDEM_ABANDON_UNKNOWN;
	}
	else
		next->has_lease = false;

	/* what is settled late must still replay for a ttl */
	if (req->has_ttl || rec->expires_at - now < ttl / 2)
		next->expires_at = now + ttl;
	return IDEM_OWNED;
}

IdemOwnership
idem_decide_renewal(const IdemRecord *rec, const IdemRenewal *req,
					bool own, int64_t now, IdemRecord *next)
{
	IdemOwnership owner = check_owner(rec, req->has_token, req->token, own);

	if (owner != IDEM_OWNED)
		return owner;
	if (rec->state != IDEM_PROCESSING)
		return IDEM_LOST_FINISHED;
	if (!rec->has_lease)
		return IDEM_NOT_LEASED;

	*next = *rec;
	next->progressed = true;
	set_lease(next, req->has_lease ? req->lease : rec->lease, now);
	if (req->has_on_abandon)
		next->on_abandon = req->on_abandon;
	return IDEM_OWNED;
}

IdemOnce
idem_decide_once(const IdemRecord *rec, int64_t ttl, bool own, int64_t now,
				 IdemRecord *next)
{
	if (!is_absent(rec, own, now))
		return is_settled(rec) ? IDEM_ONCE_SEEN : IDEM_ONCE_CLAIMED;

	memset(next, 0, sizeof(*next));
	next->state = IDEM_SUCCEEDED;
	next->attempt = 1;
	next->created_at = next->claimed_at = next->finished_at = now;
	next->has_finished = true;
	next->ttl = ttl;
	next->expires_at = now + ttl;
	return IDEM_ONCE_FIRST;
}

/* Must the caller draw a random token for *next? */
bool
idem_needs_token(IdemVerdict verdict, const IdemClaim *req)
{
	return (verdict == IDEM_GRANT_FIRST || verdict == IDEM_GRANT_NEXT) &&
		!req->has_token;
}
