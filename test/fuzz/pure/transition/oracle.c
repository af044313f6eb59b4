/*
 * oracle.c
 *		The protocol as the manual tells it, to compare transition.c with.
 *
 * Written from the reference and the design notes of the README, not from the
 * code: a record is first put into one of a few situations, and tables say
 * what each call answers in each of them.  Nothing is shared with the code
 * under test but the types of its header.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include <stdio.h>
#include <string.h>

#include "oracle.h"

/* ----------------------------------------------------------------
 * Situations and what is answered in them
 * ---------------------------------------------------------------- */

typedef enum Situation
{
	ABSENT,						/* no record, or an expired one */
	IN_HAND,					/* processing, claimed by this transaction */
	LEASED,						/* processing, the lease still runs */
	UNLEASED,					/* processing, without a lease */
	LAPSED_RETRY,
	LAPSED_UNKNOWN,
	SETTLED,					/* succeeded or failed */
	RELEASED,
	UNKNOWN,
	N_SITUATIONS
} Situation;

static const IdemVerdict claim_answers[N_SITUATIONS] = {
	[ABSENT] = IDEM_GRANT_FIRST,
	[IN_HAND] = IDEM_BUSY_SELF,
	[LEASED] = IDEM_BUSY,
	[UNLEASED] = IDEM_BUSY,
	[LAPSED_RETRY] = IDEM_GRANT_NEXT,
	[LAPSED_UNKNOWN] = IDEM_UNDECIDED,
	[SETTLED] = IDEM_REPLAY,
	[RELEASED] = IDEM_GRANT_NEXT,
	[UNKNOWN] = IDEM_UNDECIDED,
};

static const IdemVerdict lookup_answers[N_SITUATIONS] = {
	[ABSENT] = IDEM_ABSENT,
	[IN_HAND] = IDEM_BUSY_SELF,
	[LEASED] = IDEM_BUSY,
	[UNLEASED] = IDEM_BUSY,
	[LAPSED_RETRY] = IDEM_FREE,
	[LAPSED_UNKNOWN] = IDEM_UNDECIDED,
	[SETTLED] = IDEM_REPLAY,
	[RELEASED] = IDEM_FREE,
	[UNKNOWN] = IDEM_UNDECIDED,
};

static const IdemVerdict takeover_answers[N_SITUATIONS] = {
	[ABSENT] = IDEM_ABSENT,
	[IN_HAND] = IDEM_BUSY_SELF,
	[LEASED] = IDEM_BUSY,		/* unless forced */
	[UNLEASED] = IDEM_BUSY,		/* unless forced */
	[LAPSED_RETRY] = IDEM_GRANT_NEXT,
	[LAPSED_UNKNOWN] = IDEM_GRANT_NEXT,
	[SETTLED] = IDEM_REPLAY,
	[RELEASED] = IDEM_GRANT_NEXT,
	[UNKNOWN] = IDEM_GRANT_NEXT,
};

static const IdemOnce once_answers[N_SITUATIONS] = {
	[ABSENT] = IDEM_ONCE_FIRST,
	[IN_HAND] = IDEM_ONCE_CLAIMED,
	[LEASED] = IDEM_ONCE_CLAIMED,
	[UNLEASED] = IDEM_ONCE_CLAIMED,
	[LAPSED_RETRY] = IDEM_ONCE_CLAIMED,
	[LAPSED_UNKNOWN] = IDEM_ONCE_CLAIMED,
	[SETTLED] = IDEM_ONCE_SEEN,
	[RELEASED] = IDEM_ONCE_CLAIMED,
	[UNKNOWN] = IDEM_ONCE_CLAIMED,
};

/* Of a record that nobody has in hand. */
static Situation
situation_of(const IdemRecord *rec, int64_t now)
{
	bool		past = now >= rec->expires_at;

	switch (rec->state)
	{
		case IDEM_SUCCEEDED:
		case IDEM_FAILED:
			return past ? ABSENT : SETTLED;
		case IDEM_RELEASED:
			return past ? ABSENT : RELEASED;
		case IDEM_UNKNOWN:
			return UNKNOWN;
		case IDEM_PROCESSING:
			break;
	}
	if (!rec->has_lease)
		return UNLEASED;
	if (now < rec->lease_expires_at)
		return LEASED;
	if (rec->on_abandon == IDEM_ABANDON_UNKNOWN)
		return LAPSED_UNKNOWN;
	return past ? ABSENT : LAPSED_RETRY;
}

static Situation
situation(const IdemRecord *rec, bool own, int64_t now)
{
	if (rec == NULL)
		return ABSENT;
	if (own && rec->state == IDEM_PROCESSING)
		return IN_HAND;
	return situation_of(rec, now);
}

/* ----------------------------------------------------------------
 * Comparing records
 * ---------------------------------------------------------------- */

static bool
same_bytes(const uint8_t *a, const uint8_t *b, int n)
{
	for (int i = 0; i < n; i++)
		if (a[i] != b[i])
			return false;
	return true;
}

/* NULL, or the field in which they differ. */
static const char *
difference(const IdemRecord *have, const IdemRecord *want, bool compare_token)
{
	if (have->state != want->state)
		return "state";
	if (have->on_abandon != want->on_abandon)
		return "on_abandon";
	if (have->attempt != want->attempt)
		return "attempt";
	if (have->recovered != want->recovered)
		return "recovered";
	if (have->progressed != want->progressed)
		return "progressed";
	if (have->has_fingerprint != want->has_fingerprint ||
		(want->has_fingerprint &&
		 !same_bytes(have->fingerprint, want->fingerprint, IDEM_FINGERPRINT_LEN)))
		return "fingerprint";
	if (compare_token && !same_bytes(have->token, want->token, IDEM_TOKEN_LEN))
		return "token";
	if (have->created_at != want->created_at)
		return "created_at";
	if (have->claimed_at != want->claimed_at)
		return "claimed_at";
	if (have->expires_at != want->expires_at)
		return "expires_at";
	if (have->ttl != want->ttl)
		return "ttl";
	if (have->has_lease_length != want->has_lease_length ||
		(want->has_lease_length && have->lease != want->lease))
		return "lease";
	if (have->has_lease != want->has_lease ||
		(want->has_lease && have->lease_expires_at != want->lease_expires_at))
		return "lease_expires_at";
	if (have->has_finished != want->has_finished ||
		(want->has_finished && have->finished_at != want->finished_at))
		return "finished_at";
	return is_possible(have) ? NULL : "what the table would refuse";
}

/* The constraints of the table, where they are about what decides. */
bool
is_possible(const IdemRecord *rec)
{
	if (rec->attempt < 1 || (rec->state == IDEM_PROCESSING) == rec->has_finished)
		return false;
	switch (rec->state)
	{
		case IDEM_PROCESSING:
			return rec->has_lease == rec->has_lease_length;
		case IDEM_UNKNOWN:
			return rec->has_lease;
		default:
			return !rec->has_lease;
	}
}

/* ----------------------------------------------------------------
 * Claims and takeovers
 * ---------------------------------------------------------------- */

static void
expect_lease(IdemRecord *want, int64_t lease, int64_t now)
{
	want->has_lease = want->has_lease_length = lease != 0;
	want->lease = lease;
	want->lease_expires_at = now + lease;
}

static void
expect_attempt(IdemRecord *want, const IdemClaim *req, int64_t now)
{
	want->state = IDEM_PROCESSING;
	want->progressed = want->has_finished = false;
	want->claimed_at = now;
	want->expires_at = now + want->ttl;
	expect_lease(want, req->lease, now);
	if (req->has_token)
		memcpy(want->token, req->token, IDEM_TOKEN_LEN);
}

static void
expect_first(IdemRecord *want, const IdemClaim *req, int64_t now)
{
	memset(want, 0, sizeof(*want));
	want->attempt = 1;
	want->created_at = now;
	want->ttl = req->ttl;
	want->on_abandon = req->on_abandon;
	want->has_fingerprint = req->has_fingerprint;
	memcpy(want->fingerprint, req->fingerprint, IDEM_FINGERPRINT_LEN);
	expect_attempt(want, req, now);
}

static void
expect_next(IdemRecord *want, const IdemRecord *rec, const IdemClaim *req, int64_t now)
{
	*want = *rec;
	if (rec->attempt != INT32_MAX)
		want->attempt++;
	want->recovered = rec->state != IDEM_RELEASED;
	expect_attempt(want, req, now);
}

static bool
knows_token(const IdemRecord *rec, const IdemClaim *req)
{
	return rec != NULL && req->has_token && same_bytes(rec->token, req->token, IDEM_TOKEN_LEN);
}

static bool
mismatches(const IdemRecord *rec, const IdemClaim *req)
{
	return rec->has_fingerprint != req->has_fingerprint ||
		(rec->has_fingerprint &&
		 !same_bytes(rec->fingerprint, req->fingerprint, IDEM_FINGERPRINT_LEN));
}

static IdemVerdict
expected_claim(const IdemRecord *rec, const IdemClaim *req, bool own, int64_t now)
{
	Situation	found = situation(rec, own, now);
	IdemVerdict answer = claim_answers[found];

	if (found != ABSENT && mismatches(rec, req))
		return IDEM_MISMATCH;
	if (!knows_token(rec, req))
		return answer;
	if (answer == IDEM_GRANT_FIRST || answer == IDEM_GRANT_NEXT)
		return IDEM_TOKEN_REUSED;
	if (rec->state == IDEM_PROCESSING && situation_of(rec, now) == LEASED && !rec->progressed)
		return IDEM_GRANT_REPEAT;
	return answer;
}

const char *
check_claim(const IdemRecord *rec, const Request *req, bool own, int64_t now)
{
	const IdemClaim *claim = &req->claim;
	IdemVerdict want = expected_claim(rec, claim, own, now);
	IdemRecord	have,
				next;
	IdemVerdict verdict = idem_decide_claim(rec, claim, own, now, &have);

	if (verdict != want)
		return "verdict";
	if (idem_needs_token(verdict, claim) !=
		((want == IDEM_GRANT_FIRST || want == IDEM_GRANT_NEXT) && !claim->has_token))
		return "whether a token is to be drawn";
	switch (want)
	{
		case IDEM_GRANT_FIRST:
			expect_first(&next, claim, now);
			break;
		case IDEM_GRANT_NEXT:
			expect_next(&next, rec, claim, now);
			next.ttl = claim->ttl;
			next.on_abandon = claim->on_abandon;
			next.expires_at = now + claim->ttl;
			break;
		case IDEM_GRANT_REPEAT:
			next = *rec;
			expect_lease(&next, claim->lease, now);
			break;
		default:
			return NULL;
	}
	return difference(&have, &next, claim->has_token);
}

const char *
check_takeover(const IdemRecord *rec, const Request *req, bool own, int64_t now)
{
	IdemClaim	claim = req->claim;
	Situation	found = situation(rec, own, now);
	IdemVerdict want = takeover_answers[found];
	IdemRecord	have,
				next;

	claim.has_token = false;	/* a takeover takes no token, */
	claim.has_fingerprint = false;	/* needs no request, */
	claim.ttl = -1;				/* and keeps ttl and policy */
	if (claim.force && (found == LEASED || found == UNLEASED))
		want = IDEM_GRANT_NEXT;
	if (idem_decide_takeover(rec, &claim, own, now, &have) != want)
		return "verdict";
	if (want != IDEM_GRANT_NEXT)
		return NULL;
	expect_next(&next, rec, &claim, now);
	return difference(&have, &next, false);
}

const char *
check_lookup(const IdemRecord *rec, bool own, int64_t now)
{
	return idem_decide_lookup(rec, own, now) == lookup_answers[situation(rec, own, now)] ?
		NULL : "verdict";
}

/* ----------------------------------------------------------------
 * The owner's calls
 * ---------------------------------------------------------------- */

static IdemOwnership
authority(const IdemRecord *rec, bool has_token, const uint8_t *token, bool own)
{
	if (has_token && rec == NULL)
		return IDEM_LOST_GONE;
	if (has_token)
		return same_bytes(rec->token, token, IDEM_TOKEN_LEN) ? IDEM_OWNED : IDEM_LOST_TAKEN;
	return rec != NULL && own ? IDEM_OWNED : IDEM_NEED_TOKEN;
}

static int64_t
earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static void
expect_finished(IdemRecord *want, const IdemRecord *rec, const IdemFinish *req, int64_t now)
{
	int64_t		left = rec->expires_at - now;

	*want = *rec;
	want->state = req->state;
	want->has_finished = true;
	want->finished_at = now;
	want->has_lease = req->state == IDEM_UNKNOWN;
	if (req->state == IDEM_UNKNOWN)
		want->on_abandon = IDEM_ABANDON_UNKNOWN;
	want->lease_expires_at = rec->has_lease ? earlier(rec->lease_expires_at, now) : now;
	if (req->has_ttl)
		want->expires_at = now + req->ttl;
	else if (left < 0 || left + left < rec->ttl)
		want->expires_at = now + rec->ttl;
}

const char *
check_finish(const IdemRecord *rec, const Request *req, bool own, int64_t now)
{
	const IdemFinish *finish = &req->finish;
	IdemOwnership want = authority(rec, finish->has_token, finish->token, own);
	IdemRecord	have,
				next;

	if (want == IDEM_OWNED && rec->state == finish->state)
		want = IDEM_ALREADY;
	else if (want == IDEM_OWNED && rec->state != IDEM_PROCESSING && rec->state != IDEM_UNKNOWN)
		want = IDEM_LOST_FINISHED;
	if (idem_decide_finish(rec, finish, own, now, &have) != want)
		return "verdict";
	if (want != IDEM_OWNED)
		return NULL;
	expect_finished(&next, rec, finish, now);
	return difference(&have, &next, true);
}

const char *
check_renewal(const IdemRecord *rec, const Request *req, bool own, int64_t now)
{
	const IdemRenewal *renewal = &req->renewal;
	IdemOwnership want = authority(rec, renewal->has_token, renewal->token, own);
	IdemRecord	have,
				next;

	if (want == IDEM_OWNED && rec->state != IDEM_PROCESSING)
		want = IDEM_LOST_FINISHED;
	else if (want == IDEM_OWNED && !rec->has_lease)
		want = IDEM_NOT_LEASED;
	if (idem_decide_renewal(rec, renewal, own, now, &have) != want)
		return "verdict";
	if (want != IDEM_OWNED)
		return NULL;
	next = *rec;
	next.progressed = true;
	expect_lease(&next, renewal->has_lease ? renewal->lease : rec->lease, now);
	if (renewal->has_on_abandon)
		next.on_abandon = renewal->on_abandon;
	return difference(&have, &next, true);
}

/* ----------------------------------------------------------------
 * Once, and what the sweep and its report go by
 * ---------------------------------------------------------------- */

const char *
check_once(const IdemRecord *rec, const Request *req, bool own, int64_t now)
{
	IdemOnce	want = once_answers[situation(rec, own, now)];
	IdemRecord	have,
				next = {.state = IDEM_SUCCEEDED,.attempt = 1,.has_finished = true};

	if (idem_decide_once(rec, req->once_ttl, own, now, &have) != want)
		return "verdict";
	if (want != IDEM_ONCE_FIRST)
		return NULL;
	next.created_at = next.claimed_at = next.finished_at = now;
	next.ttl = req->once_ttl;
	next.expires_at = now + req->once_ttl;
	return difference(&have, &next, false);
}

const char *
check_times(const IdemRecord *rec, int64_t now)
{
	Situation	found;
	int64_t		sweep_at;
	bool		swept;

	if (rec == NULL)
		return NULL;
	found = situation_of(rec, now);
	if (idem_is_expired(rec, now) != (found == ABSENT))
		return "expiry";
	if (idem_needs_reconciling(rec, now) != (found == UNKNOWN || found == LAPSED_UNKNOWN))
		return "need of reconciling";

	/* what is expired is what the sweep's index has reached, and stays so */
	swept = idem_sweep_at(rec, &sweep_at);
	if (found == UNLEASED)
		return swept && sweep_at == rec->expires_at ? NULL : "time of the sweep";
	if (swept ? (sweep_at <= now) != (found == ABSENT) : found == ABSENT)
		return "time of the sweep";
	if (swept && (situation_of(rec, sweep_at) != ABSENT ||
				  situation_of(rec, sweep_at - 1) == ABSENT))
		return "the first moment of the sweep";
	return NULL;
}

/* ----------------------------------------------------------------
 * Running and reporting
 * ---------------------------------------------------------------- */

const char *
check_all(const IdemRecord *rec, const Request *req, bool own, int64_t now, const char **which)
{
	const char *wrong;

	if ((wrong = check_claim(rec, req, own, now)) != NULL)
		*which = "claim";
	else if ((wrong = check_takeover(rec, req, own, now)) != NULL)
		*which = "takeover";
	else if ((wrong = check_lookup(rec, own, now)) != NULL)
		*which = "lookup";
	else if ((wrong = check_finish(rec, req, own, now)) != NULL)
		*which = "finish";
	else if ((wrong = check_renewal(rec, req, own, now)) != NULL)
		*which = "renewal";
	else if ((wrong = check_once(rec, req, own, now)) != NULL)
		*which = "once";
	else if ((wrong = check_times(rec, now)) != NULL)
		*which = "times";
	return wrong;
}

static void
show_token(const char *name, bool present, const uint8_t *token)
{
	printf(" %s=", name);
	for (int i = 0; present && i < IDEM_TOKEN_LEN; i++)
		printf("%02x", token[i]);
}

void
show(const IdemRecord *rec, const Request *req, bool own, int64_t now)
{
	printf("now=%lld own=%d\nrecord:", (long long) now, own);
	if (rec == NULL)
		printf(" none");
	else
	{
		printf(" state=%d on_abandon=%d attempt=%d recovered=%d progressed=%d fingerprint=%d"
			   " expires_at=%lld ttl=%lld lease=%d:%lld lease_expires_at=%d:%lld",
			   rec->state, rec->on_abandon, rec->attempt, rec->recovered, rec->progressed,
			   rec->has_fingerprint, (long long) rec->expires_at, (long long) rec->ttl,
			   rec->has_lease_length, (long long) rec->lease,
			   rec->has_lease, (long long) rec->lease_expires_at);
		show_token("token", true, rec->token);
	}
	printf("\nclaim: fingerprint=%d ttl=%lld lease=%lld on_abandon=%d force=%d",
		   req->claim.has_fingerprint, (long long) req->claim.ttl,
		   (long long) req->claim.lease, req->claim.on_abandon, req->claim.force);
	show_token("token", req->claim.has_token, req->claim.token);
	printf("\nfinish: state=%d ttl=%d:%lld", req->finish.state, req->finish.has_ttl,
		   (long long) req->finish.ttl);
	show_token("token", req->finish.has_token, req->finish.token);
	printf("\nrenewal: lease=%d:%lld on_abandon=%d:%d", req->renewal.has_lease,
		   (long long) req->renewal.lease, req->renewal.has_on_abandon, req->renewal.on_abandon);
	show_token("token", req->renewal.has_token, req->renewal.token);
	printf("\n");
}
