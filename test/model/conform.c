/*
 * conform.c
 *		Each decision of the model, made again by transition.c.
 *
 * Linked, with transition.c itself, into the program that searches the model
 * if protocol.pml is preprocessed with -DCONFORM.  The search ends at the
 * first decision on which the two differ, in the verdict or in any field of
 * the next record.  The model's variables are handed over as numbers, for its
 * IdemRecord is another type than that of transition.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transition.h"

enum
{
	AT_HAND,
	NEXT,
};

static IdemRecord record[2];
static bool there[2];
static IdemClaim claim;
static IdemFinish finish;
static IdemRenewal renewal;

void
conform_record(int which, int exists, int state, int on_abandon, int attempt,
			   int progressed, int has_lease, int fingerprint, int token,
			   int expires_at, int lease_expires_at)
{
	IdemRecord *rec = &record[which];

	there[which] = exists;
	memset(rec, 0, sizeof(*rec));
	rec->state = state;
	rec->on_abandon = on_abandon;
	rec->attempt = attempt;
	rec->progressed = progressed;
	rec->has_fingerprint = true;
	rec->fingerprint[0] = fingerprint;
	rec->token[0] = token;
	rec->expires_at = expires_at;
	rec->has_lease = has_lease;
	rec->lease_expires_at = lease_expires_at;
	rec->ttl = TTL;
	rec->lease = LEASE;
}

void
conform_request(int token, int leased, int on_abandon, int fingerprint, int force, int state)
{
	memset(&claim, 0, sizeof(claim));
	claim.has_fingerprint = true;
	claim.fingerprint[0] = fingerprint;
	claim.has_token = token != 0;
	claim.token[0] = token;
	claim.ttl = TTL;
	claim.lease = leased ? LEASE : 0;
	claim.on_abandon = on_abandon;
	claim.force = force;

	memset(&finish, 0, sizeof(finish));
	finish.has_token = true;
	finish.token[0] = token;
	finish.state = state;

	memset(&renewal, 0, sizeof(renewal));
	renewal.has_token = true;
	renewal.token[0] = token;
	renewal.has_on_abandon = true;
	renewal.on_abandon = on_abandon;
}

static const IdemRecord *
at_hand(void)
{
	return there[AT_HAND] ? &record[AT_HAND] : NULL;
}

static void
same(const char *what, int64_t model, int64_t c)
{
	if (model == c)
		return;
	printf("conform: %s: the model says %lld, transition.c says %lld\n",
		   what, (long long) model, (long long) c);
	exit(1);
}

/* A token that is yet to be drawn is not compared, nor a time that says nothing. */
static void
same_next(const IdemRecord *c, bool draws_token)
{
	const IdemRecord *model = &record[NEXT];

	same("next state", model->state, c->state);
	same("next on_abandon", model->on_abandon, c->on_abandon);
	same("next attempt", model->attempt, c->attempt);
	same("next progressed", model->progressed, c->progressed);
	same("next fingerprint", model->fingerprint[0], c->fingerprint[0]);
	same("next token", draws_token ? 0 : model->token[0], draws_token ? 0 : c->token[0]);
	same("next expires_at", model->expires_at, c->expires_at);
	same("next has_lease", model->has_lease, c->has_lease);
	if (c->has_lease)
		same("next lease_expires_at", model->lease_expires_at, c->lease_expires_at);
}

void
conform_claim(int own, int t, int verdict)
{
	IdemRecord	next;
	IdemVerdict c = idem_decide_claim(at_hand(), &claim, own, t, &next);

	same("claim", verdict, c);
	if (IDEM_IS_GRANT(c))
		same_next(&next, idem_needs_token(c, &claim));
}

void
conform_takeover(int own, int t, int verdict)
{
	IdemRecord	next;
	IdemVerdict c;

	claim.has_token = false;
	c = idem_decide_takeover(at_hand(), &claim, own, t, &next);
	same("takeover", verdict, c);
	if (IDEM_IS_GRANT(c))
		same_next(&next, idem_needs_token(c, &claim));
}

/* And the sweep: sweep_at says when a record expires, if ever. */
void
conform_lookup(int own, int t, int verdict)
{
	int64_t		sweep_at;

	same("lookup", verdict, idem_decide_lookup(at_hand(), own, t));
	if (there[AT_HAND])
		same("sweep_at", idem_sweep_at(&record[AT_HAND], &sweep_at) && sweep_at <= t,
			 idem_is_expired(&record[AT_HAND], t));
}

void
conform_finish(int own, int t, int verdict)
{
	IdemRecord	next;
	IdemOwnership c = idem_decide_finish(at_hand(), &finish, own, t, &next);

	same("finish", verdict, c);
	if (c == IDEM_OWNED)
		same_next(&next, false);
}

void
conform_renewal(int own, int t, int verdict)
{
	IdemRecord	next;
	IdemOwnership c = idem_decide_renewal(at_hand(), &renewal, own, t, &next);

	same("renewal", verdict, c);
	if (c == IDEM_OWNED)
		same_next(&next, false);
}
