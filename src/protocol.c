/*
 * protocol.c
 *		The calls: probe, decide, change, answer.
 *
 * Each call is a loop around one probe of the record.  The rules are in
 * transition.c and what makes a probe or a change atomic is in record.c; here
 * is only who waits for whom:
 *
 * - Claim, takeover and resolve never block.  Whatever stands in their way,
 *   another session's uncommitted change, a live lease or a mere row lock, is
 *   waited for by napping within the caller's bound, and is in_progress after.
 * - Finish, checkpoint, extend, assert and forget wait as an UPDATE does,
 *   with PostgreSQL's deadlock detection and lock_timeout, but extend does
 *   not wait for a mere lock.
 * - Once waits as a unique index would.
 *
 * The clock is read after any waiting, right before each decision, and the
 * change that follows is made only if the version decided on is still the
 * live one; else the loop starts again.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "args.h"
#include "protocol.h"
#include "unfinished.h"

/*
 * A speculative insert is confirmed or withdrawn within microseconds, so a
 * claim naps for it even if it may not wait; if its session is stopped just
 * there, in_progress is the answer after this many microseconds.
 */
#define SPECULATIVE_PATIENCE	INT64CONST(200000)

/*
 * The statement, by its memory, that made this session's latest grant.  Only
 * ever compared, and only for a record that this very transaction wrote.
 */
static MemoryContext last_granted_by = NULL;

static const IdemPayload no_payload = {
	.isnull = {true, true, true, true, true, true},
};

/*
 * A new token: random bits that nobody can guess.  They are drawn from the
 * operating system's or OpenSSL's generator for many tokens at once, since a
 * call of it costs a tenth of a claim; what is handed out is wiped.
 */
static void
draw_token(uint8 *token)
{
	static uint8 drawn[32 * IDEM_TOKEN_LEN];
	static Size left = 0;

	if (left == 0)
	{
		if (!pg_strong_random(drawn, sizeof(drawn)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		left = sizeof(drawn);
	}
	left -= IDEM_TOKEN_LEN;
	memcpy(token, drawn + left, IDEM_TOKEN_LEN);
	memset(drawn + left, 0, IDEM_TOKEN_LEN);
}

static void
flush_at_commit(void)
{
	if (idem_setting_durable_claims)
		ForceSyncCommit();
}

/*
 * An outside effect must not outlive the memory of its claim, nor may a crash
 * undo a finish as unknown, which takes back a retry.
 */
static void
flush_leased(const IdemRecord *rec)
{
	if (rec->has_lease)
		flush_at_commit();
}

static const char *
part(const IdemStore *s, int i)
{
	return TextDatumGetCString(s->key.part[i]);
}

/* Put the fields from first to last of what a call brings into *payload. */
static void
put_fields(IdemPayload *payload, const IdemPayload *brought, IdemField first, IdemField last)
{
	for (IdemField f = first; f <= last; f++)
		idem_set_field(payload, f, brought->value[f], brought->isnull[f]);
}

/* ----------------------------------------------------------------
 * Claim, takeover, resolve
 * ---------------------------------------------------------------- */

static IdemVerdict
decide(const IdemRequest *req, const IdemRecord *rec, bool own, IdemRecord *next)
{
	TimestampTz now = GetCurrentTimestamp();
	IdemVerdict verdict;

	if (req->kind == REQUEST_CLAIM)
		return idem_decide_claim(rec, &req->claim, own, now, next);

	verdict = idem_decide_takeover(rec, &req->claim, own, now, next);
	if (verdict == IDEM_GRANT_NEXT && req->kind == REQUEST_RESOLVE)
	{
		/* the new attempt and its end are one change */
		IdemRecord	taken = *next;

		(void) idem_decide_finish(&taken, &req->finish, true, now, next);
	}
	return verdict;
}

/* What goes with the next record: the checkpoint outlives attempts, not lives. */
static void
next_payload(IdemStore *s, const IdemRequest *req, IdemVerdict verdict, IdemPayload *payload)
{
	if (verdict == IDEM_GRANT_FIRST)
	{
		*payload = no_payload;
		return;
	}
	idem_store_payload(s, payload);
	if (req->kind == REQUEST_RESOLVE)
		put_fields(payload, &req->response, FIELD_RESPONSE_CODE, FIELD_RESPONSE_BYTES);
}

static IdemOutcome
granted(const IdemRequest *req, const IdemRecord *next)
{
	if (req->kind != REQUEST_RESOLVE)
		return OUTCOME_CLAIMED;
	return next->state == IDEM_RELEASED ? OUTCOME_RELEASED : OUTCOME_REPLAYED;
}

/* The grant stands: what has to be known until the transaction ends. */
static void
after_grant(IdemStore *s, const IdemRequest *req, const IdemRecord *next)
{
	/* a takeover or resolution takes the key from an owner who acts outside */
	if (req->kind == REQUEST_CLAIM)
		flush_leased(next);
	else
		flush_at_commit();
	if (req->kind != REQUEST_RESOLVE)
		idem_unfinished_add(s, next);
}

/*
 * Write what the verdict granted.  live says that the probe found a version
 * to replace.
 */
static IdemChange
take(IdemStore *s, const IdemRequest *req, IdemVerdict verdict, bool live,
	 IdemRecord *next, IdemResult *result)
{
	if (idem_needs_token(verdict, &req->claim))
		draw_token(next->token);

	next_payload(s, req, verdict, &result->payload);
	if (live)
	{
		IdemChange	change = idem_store_update(s, next, &result->payload);

		if (change != CHANGE_DONE)
			return change;
	}
	else if (!idem_store_insert(s, next, &result->payload))
		return CHANGE_MOVED;

	last_granted_by = req->statement;
	if (verdict == IDEM_GRANT_REPEAT)
		flush_leased(next);
	else
		after_grant(s, req, next);
	result->outcome = granted(req, next);
	result->rec = *next;
	result->known = true;
	result->place = idem_store_place(s);
	return CHANGE_DONE;
}

static void
refuse_reused_token(void)
{
	idem_bad_argument("claim_token", "was already used for an earlier attempt",
					  "Make a new random token for each attempt, outside the retry loop; never derive it from the key.");
}

/*
 * (f(...)).* is expanded into one call per column: the first claims, and the
 * others would answer in_progress and lose the token.
 */
static void
refuse_expanded_call(const IdemRequest *req, IdemStore *s)
{
	if (!req->in_target_list || req->statement != last_granted_by ||
		!idem_store_made_by_statement(s))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("idempotency key \"%s\" was already claimed by the same statement",
					part(s, 1)),
			 errhint("Call the function in FROM: SELECT * FROM idem_claim(...). In a select list, (idem_claim(...)).* calls it once for each column.")));
}

static void
answer(IdemStore *s, IdemOutcome outcome, IdemResult *result)
{
	result->outcome = outcome;
	result->rec = s->rec;
	result->known = true;
	idem_store_payload(s, &result->payload);
}

static void
answer_unknown_holder(IdemOutcome outcome, IdemResult *result)
{
	result->outcome = outcome;
	result->known = false;
}

/*
 * Answer from the live version for a verdict that writes nothing.  False if
 * waiting may help.
 */
static bool
answer_verdict(IdemStore *s, const IdemRequest *req, IdemVerdict verdict, IdemResult *result)
{
	switch (verdict)
	{
		case IDEM_ABSENT:
			answer_unknown_holder(OUTCOME_ABSENT, result);
			return true;
		case IDEM_REPLAY:
			answer(s, OUTCOME_REPLAYED, result);
			return true;
		case IDEM_MISMATCH:
			answer(s, OUTCOME_MISMATCH, result);
			return true;
		case IDEM_UNDECIDED:
			answer(s, OUTCOME_UNKNOWN, result);
			return true;
		case IDEM_FREE:
			answer(s, OUTCOME_RELEASED, result);
			return true;
		case IDEM_BUSY_SELF:
			refuse_expanded_call(req, s);
			answer_unknown_holder(OUTCOME_IN_PROGRESS, result);
			return true;
		case IDEM_BUSY:
			answer(s, OUTCOME_IN_PROGRESS, result);
			return false;
		case IDEM_TOKEN_REUSED:
			refuse_reused_token();
			break;
		default:
			break;
	}
	elog(ERROR, "unexpected verdict %d", verdict);
}

/*
 * Decide from the live version that the probe found, and write or answer.
 * CHANGE_BUSY: *result holds the answer in case waiting is over.
 */
static IdemChange
run_on_live(IdemStore *s, const IdemRequest *req, IdemResult *result)
{
	IdemRecord	next;
	IdemVerdict verdict = decide(req, &s->rec, s->own, &next);
	IdemChange	change;

	if (!IDEM_IS_GRANT(verdict))
		return answer_verdict(s, req, verdict, result) ? CHANGE_DONE : CHANGE_BUSY;

	/* a resolve leaves nothing in hand to meet, so it would write again */
	if (req->kind == REQUEST_RESOLVE && s->own)
		refuse_expanded_call(req, s);

	change = idem_store_lock(s, LockTupleNoKeyExclusive, LockWaitSkip);
	if (change == CHANGE_BUSY)
		answer(s, OUTCOME_IN_PROGRESS, result);
	if (change != CHANGE_DONE)
		return change;
	return take(s, req, verdict, true, &next, result);
}

/* Nothing is there.  A claim inserts, which proves it; others make sure. */
static IdemChange
run_on_absent(IdemStore *s, const IdemRequest *req, IdemResult *result)
{
	IdemRecord	next;
	IdemVerdict verdict;

	if (req->kind != REQUEST_CLAIM)
	{
		if (idem_store_probe_surely(s) != PROBE_ABSENT)
			return CHANGE_MOVED;
		answer_unknown_holder(OUTCOME_ABSENT, result);
		return CHANGE_DONE;
	}
	verdict = decide(req, NULL, false, &next);
	return take(s, req, verdict, false, &next, result);
}

/*
 * Claim, take over or resolve.  On return *result is the answer; its payload
 * is good until the store is released.
 */
void
idem_run_claim(IdemStore *s, const IdemRequest *req, IdemResult *result)
{
	IdemWait	wait;
	IdemWait	patience;
	bool		patient = false;

	idem_wait_begin(&wait, req->wait);
	for (;;)
	{
		IdemProbe	found;
		IdemChange	change = CHANGE_MOVED;

		CHECK_FOR_INTERRUPTS();
		found = idem_store_probe(s);
		switch (found)
		{
			case PROBE_LIVE:
				change = run_on_live(s, req, result);
				break;
			case PROBE_ABSENT:
				change = run_on_absent(s, req, result);
				break;
			case PROBE_HELD:
				answer_unknown_holder(OUTCOME_IN_PROGRESS, result);
				idem_store_release(s);
				if (!idem_wait_transaction(&wait, s->holder))
					return;
				break;
			case PROBE_SPECULATIVE:
				idem_store_release(s);
				if (!patient)
					idem_wait_begin(&patience, Max(SPECULATIVE_PATIENCE, req->wait));
				patient = true;
				answer_unknown_holder(OUTCOME_IN_PROGRESS, result);
				if (!idem_wait_nap(&patience))
					return;
				break;
		}
		if (change == CHANGE_DONE)
			return;
		if (change == CHANGE_BUSY)
		{
			if (idem_wait_is_over(&wait))
				return;
			idem_store_release(s);
			(void) idem_wait_nap(&wait);
		}
	}
}

/* ----------------------------------------------------------------
 * Lookup
 * ---------------------------------------------------------------- */

void
idem_run_lookup(IdemStore *s, IdemResult *result)
{
	static const IdemRequest nothing = {.kind = REQUEST_TAKEOVER};

	switch (idem_store_probe_surely(s))
	{
		case PROBE_LIVE:
			(void) answer_verdict(s, &nothing,
								  idem_decide_lookup(&s->rec, s->own, GetCurrentTimestamp()),
								  result);
			break;
		case PROBE_HELD:
			answer_unknown_holder(OUTCOME_IN_PROGRESS, result);
			break;
		default:
			answer_unknown_holder(OUTCOME_ABSENT, result);
			break;
	}
}

/* ----------------------------------------------------------------
 * The owner's calls
 * ---------------------------------------------------------------- */

/*
 * Find the live version, waiting as an UPDATE does for whoever is changing
 * it.  False: the record is gone.
 */
static bool
find_settled(IdemStore *s)
{
	for (;;)
	{
		switch (idem_store_probe_surely(s))
		{
			case PROBE_LIVE:
				return true;
			case PROBE_HELD:
				idem_store_await_holder(s);
				break;
			default:
				return false;
		}
	}
}

static int
lost_detail(const IdemStore *s, IdemOwnership ownership)
{
	switch (ownership)
	{
		case IDEM_LOST_TAKEN:
			/* nobody takes over into attempt 1: that is another life */
			if (s->rec.attempt > 1)
				return errdetail("It was taken over by attempt %d.", s->rec.attempt);
			return errdetail("It is gone: the key was claimed anew, or the token was never one of its.");
		case IDEM_LOST_FINISHED:
			return errdetail("It is already finished as %s.", idem_state_name(s->rec.state));
		default:
			return errdetail("It is gone: expired and swept, or forgotten.");
	}
}

/* Errors of a call that the caller has no right to make. */
void
idem_require_ownership(const IdemStore *s, IdemOwnership ownership)
{
	switch (ownership)
	{
		case IDEM_OWNED:
		case IDEM_ALREADY:
			return;
		case IDEM_NEED_TOKEN:
			idem_bad_argument("token", "must be given",
							  "Pass the token that the claim returned; only the transaction that claimed may leave it out.");
			return;
		case IDEM_NOT_LEASED:
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the claim of idempotency key \"%s\" in scope \"%s\" has no lease",
							part(s, 1), part(s, 0)),
					 errhint("Claim with a lease if the work goes on outside of the transaction.")));
			return;
		case IDEM_LOST_GONE:
		case IDEM_LOST_TAKEN:
		case IDEM_LOST_FINISHED:
			ereport(ERROR,
					(errcode(MAKE_SQLSTATE('I', 'D', '0', '0', '1')),
					 errmsg("the claim of idempotency key \"%s\" in scope \"%s\" is lost",
							part(s, 1), part(s, 0)),
					 lost_detail(s, ownership),
					 errhint("Roll back; the outcome of whoever holds the key now is the one that counts.")));
	}
}

static IdemOwnership
decide_finish(const IdemStore *s, const IdemFinish *req, bool found, IdemRecord *next)
{
	IdemOwnership ownership = idem_decide_finish(found ? &s->rec : NULL, req, s->own,
												 GetCurrentTimestamp(), next);

	idem_require_ownership(s, ownership);
	return ownership;
}

/*
 * True: recorded now, as *finished.  False: this token had recorded this
 * state before.  place: where this transaction's claim was written, if known.
 */
bool
idem_run_finish(IdemStore *s, const IdemFinish *req, const IdemPayload *response,
				const IdemPlace *place, IdemRecord *finished)
{
	IdemRecord	next;
	IdemPayload payload;
	IdemChange	change;

	do
	{
		bool		found = (place && idem_store_revisit(s, place)) || find_settled(s);

		place = NULL;
		/* a retried finish is answered without a lock */
		if (decide_finish(s, req, found, &next) == IDEM_ALREADY)
			return false;
		change = idem_store_lock(s, LockTupleNoKeyExclusive, LockWaitBlock);
		if (change != CHANGE_DONE)
			continue;

		/* by the clock after the wait; the checkpoint stays, the response is new */
		(void) decide_finish(s, req, found, &next);
		idem_store_payload(s, &payload);
		put_fields(&payload, response, FIELD_RESPONSE_CODE, FIELD_RESPONSE_BYTES);
		change = idem_store_update(s, &next, &payload);
	} while (change != CHANGE_DONE);

	/* of the states that end a claim only unknown carries a lease, and it restricts */
	flush_leased(&next);
	idem_unfinished_settle(&next);
	*finished = next;
	return true;
}

static void
decide_renewal(const IdemStore *s, const IdemRenewal *req, bool found, IdemRecord *next)
{
	idem_require_ownership(s, idem_decide_renewal(found ? &s->rec : NULL, req, s->own,
												  GetCurrentTimestamp(), next));
}

/*
 * Lock the record of a claim that the caller owns.  On CHANGE_DONE *next is
 * its renewal by the clock after the wait.
 */
static IdemChange
lock_owned(IdemStore *s, const IdemRenewal *req, LockWaitPolicy policy, IdemRecord *next)
{
	bool		found = find_settled(s);
	IdemChange	change;

	decide_renewal(s, req, found, next);
	change = idem_store_lock(s, LockTupleNoKeyExclusive, policy);
	if (change == CHANGE_DONE)
		decide_renewal(s, req, found, next);
	return change;
}

/* Lock and renew; checkpoint may be NULL. */
static IdemChange
renew(IdemStore *s, const IdemRenewal *req, LockWaitPolicy policy,
	  const IdemPayload *checkpoint, IdemRecord *next)
{
	IdemPayload payload;
	IdemChange	change = lock_owned(s, req, policy, next);

	if (change != CHANGE_DONE)
		return change;
	idem_store_payload(s, &payload);
	if (checkpoint)
		put_fields(&payload, checkpoint, FIELD_CHECKPOINT, FIELD_CHECKPOINT_DATA);
	change = idem_store_update(s, next, &payload);
	if (change == CHANGE_DONE)
		flush_leased(next);
	return change;
}

TimestampTz
idem_run_checkpoint(IdemStore *s, const IdemRenewal *req, const IdemPayload *checkpoint)
{
	IdemRecord	next;

	while (renew(s, req, LockWaitBlock, checkpoint, &next) != CHANGE_DONE)
		 /* moved: look again */ ;
	return next.lease_expires_at;
}

/*
 * A heartbeat must not hang behind the business transaction that fences with
 * idem_assert in another connection: a row that is merely locked keeps its
 * expiry, which the lock protects anyway.
 */
TimestampTz
idem_run_extend(IdemStore *s, const IdemRenewal *req)
{
	IdemRecord	next;
	IdemChange	change;
	bool		was_busy = false;

	while ((change = renew(s, req, LockWaitSkip, NULL, &next)) != CHANGE_DONE)
	{
		/* busy twice while no change was in sight: a mere lock */
		if (change == CHANGE_BUSY && was_busy)
			return s->rec.lease_expires_at;
		was_busy = change == CHANGE_BUSY;
	}
	return next.lease_expires_at;
}

/* Fence: hold the row so that no takeover can commit before we do. */
void
idem_run_assert(IdemStore *s, const IdemRenewal *req)
{
	IdemRecord	next;

	while (lock_owned(s, req, LockWaitBlock, &next) != CHANGE_DONE)
		 /* moved: look again */ ;
}

bool
idem_run_forget(IdemStore *s)
{
	do
	{
		if (!find_settled(s))
			return false;
	} while (idem_store_delete(s) != CHANGE_DONE);
	idem_unfinished_settle(&s->rec);
	return true;
}

/* ----------------------------------------------------------------
 * Once
 * ---------------------------------------------------------------- */

/* One step; CHANGE_MOVED: look again. */
static IdemChange
once_on(IdemStore *s, bool live, int64 ttl, bool *first)
{
	IdemRecord	next;

	if (live && idem_is_expired(&s->rec, GetCurrentTimestamp()) &&
		idem_store_lock(s, LockTupleNoKeyExclusive, LockWaitBlock) != CHANGE_DONE)
		return CHANGE_MOVED;

	*first = false;
	switch (idem_decide_once(live ? &s->rec : NULL, ttl, s->own, GetCurrentTimestamp(), &next))
	{
		case IDEM_ONCE_SEEN:
			return CHANGE_DONE;
		case IDEM_ONCE_CLAIMED:
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("idempotency key \"%s\" in scope \"%s\" belongs to a claim that is not settled",
							part(s, 1), part(s, 0)),
					 errdetail("Its state is %s.", idem_state_name(s->rec.state)),
					 errhint("Use different scopes for idem_claim and idem_once.")));
		case IDEM_ONCE_FIRST:
			break;
	}
	*first = true;
	draw_token(next.token);
	if (live)
		return idem_store_update(s, &next, &no_payload);
	return idem_store_insert(s, &next, &no_payload) ? CHANGE_DONE : CHANGE_MOVED;
}

/* True the first time.  Waits for an uncommitted twin as a unique index would. */
bool
idem_run_once(IdemStore *s, int64 ttl)
{
	bool		first = false;
	IdemChange	change;

	do
	{
		IdemProbe	found;

		CHECK_FOR_INTERRUPTS();
		change = CHANGE_MOVED;
		found = idem_store_probe(s);
		if (found == PROBE_HELD)
			idem_store_await_holder(s);
		else if (found == PROBE_SPECULATIVE)
			idem_store_await_speculative(s);
		else
			change = once_on(s, found == PROBE_LIVE, ttl, &first);
	} while (change != CHANGE_DONE);
	return first;
}
