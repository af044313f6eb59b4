/*
 * every.c
 *		Every record, request and clock, as far as they can make a difference.
 *
 * A decision depends on times only through comparisons, on tokens and
 * fingerprints only through equality.  So it is enough to take of each time a
 * value before, at and after each moment that it is compared with, and of
 * tokens and fingerprints the record's and another.  All combinations are
 * compared with the oracle.  Prints how many; status 1 at the first that is
 * wrong.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

#define NOW		((int64_t) 1000000)
#define TTL		((int64_t) 1000)

#define COUNT(array)	((int) (sizeof(array) / sizeof(*(array))))

static const int64_t expiries[] = {
	NOW - 1, NOW, NOW + 1, NOW + TTL / 2 - 1, NOW + TTL / 2, NOW + TTL / 2 + 1, NOW + TTL,
};
static const int64_t lease_ends[] = {0, NOW - 1, NOW, NOW + 1, NOW + 2 * TTL};	/* 0: no lease */
static const int32_t attempts[] = {1, 2, INT32_MAX - 1, INT32_MAX};

static long long cases;

static void
check(const IdemRecord *rec, const Request *req)
{
	for (int own = 0; own <= 1; own++)
	{
		const char *which = "";
		const char *wrong = check_all(rec, req, own, NOW, &which);

		cases++;
		if (wrong)
		{
			printf("wrong %s of %s\n", wrong, which);
			show(rec, req, own, NOW);
			exit(1);
		}
	}
}

/* Each bit or digit of the choice is one thing that the requests differ in. */
static int
pick(int *choice, int n)
{
	int			picked = *choice % n;

	*choice /= n;
	return picked;
}

/* 0: none, 1: the record's, 2: another. */
static bool
pick_bytes(int *choice, uint8_t *bytes, int n)
{
	int			picked = pick(choice, 3);

	memset(bytes, picked, n);
	return picked != 0;
}

/* False if there is no such request. */
static bool
make_claim(int choice, IdemClaim *claim)
{
	memset(claim, 0, sizeof(*claim));
	claim->has_fingerprint = pick_bytes(&choice, claim->fingerprint, IDEM_FINGERPRINT_LEN);
	claim->has_token = pick_bytes(&choice, claim->token, IDEM_TOKEN_LEN);
	claim->lease = pick(&choice, 2) ? 70 : 0;
	claim->on_abandon = pick(&choice, 2) ? IDEM_ABANDON_RETRY : IDEM_ABANDON_UNKNOWN;
	claim->force = pick(&choice, 2);
	claim->ttl = 3 * TTL;
	return choice == 0 && !(claim->has_token && claim->lease == 0);
}

static void
make_owner_requests(int choice, Request *req)
{
	static const IdemState states[] = {IDEM_SUCCEEDED, IDEM_FAILED, IDEM_RELEASED, IDEM_UNKNOWN};

	req->finish.has_token = req->renewal.has_token =
		pick_bytes(&choice, req->finish.token, IDEM_TOKEN_LEN);
	memcpy(req->renewal.token, req->finish.token, IDEM_TOKEN_LEN);
	req->finish.state = states[pick(&choice, 4)];
	req->finish.has_ttl = req->renewal.has_lease = pick(&choice, 2);
	req->renewal.has_on_abandon = pick(&choice, 2);
	req->renewal.on_abandon = pick(&choice, 2) ? IDEM_ABANDON_RETRY : IDEM_ABANDON_UNKNOWN;
	req->finish.ttl = 5 * TTL;
	req->renewal.lease = 90;
	req->once_ttl = 7 * TTL;
}

#define CLAIMS	(3 * 3 * 2 * 2 * 2)
#define OWNERS	(3 * 4 * 2 * 2 * 2)

/* The claim's arguments and the owner's do not meet, so one of each at a time. */
static void
check_requests(const IdemRecord *rec)
{
	Request		req;

	memset(&req, 0, sizeof(req));
	for (int choice = 0; choice < (CLAIMS > OWNERS ? CLAIMS : OWNERS); choice++)
	{
		make_owner_requests(choice % OWNERS, &req);
		if (make_claim(choice % CLAIMS, &req.claim))
			check(rec, &req);
		else
		{
			(void) make_claim(0, &req.claim);
			check(rec, &req);
		}
	}
}

static void
check_record(int choice)
{
	IdemRecord	rec;

	memset(&rec, 0, sizeof(rec));
	rec.state = pick(&choice, 5);
	rec.on_abandon = pick(&choice, 2) ? IDEM_ABANDON_RETRY : IDEM_ABANDON_UNKNOWN;
	rec.attempt = attempts[pick(&choice, COUNT(attempts))];
	rec.recovered = pick(&choice, 2);
	rec.progressed = pick(&choice, 2);
	rec.has_fingerprint = pick(&choice, 2);
	rec.lease_expires_at = lease_ends[pick(&choice, COUNT(lease_ends))];
	rec.has_lease_length = pick(&choice, 2);
	rec.expires_at = expiries[pick(&choice, COUNT(expiries))];
	rec.has_lease = rec.lease_expires_at != 0;
	rec.has_finished = rec.state != IDEM_PROCESSING;
	rec.finished_at = rec.has_finished ? NOW - 40 : 0;
	memset(rec.fingerprint, 1, IDEM_FINGERPRINT_LEN);
	memset(rec.token, 1, IDEM_TOKEN_LEN);
	rec.created_at = NOW - 60;
	rec.claimed_at = NOW - 50;
	rec.ttl = TTL;
	rec.lease = rec.has_lease_length ? 30 : 0;
	if (is_possible(&rec))
		check_requests(&rec);
}

#define RECORDS	(5 * 2 * COUNT(attempts) * 2 * 2 * 2 * COUNT(lease_ends) * 2 * COUNT(expiries))

int
main(void)
{
	check_requests(NULL);
	for (int choice = 0; choice < RECORDS; choice++)
		check_record(choice);
	printf("%lld cases\n", cases);
	return 0;
}
