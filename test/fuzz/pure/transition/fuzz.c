/*
 * fuzz.c
 *		libFuzzer against the oracle: any record, any request, any clock.
 *
 * Where every.c takes the values that should be enough, this takes any, and
 * lets the coverage of both sides lead the way.  Bytes are read as the fields
 * one after the other; durations and times stay within what args.c lets in
 * and a timestamp can hold, since beyond that no caller can get.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

#define LONGEST		(INT64_C(365250) * 86400 * 1000000)
#define LATEST		(INT64_C(4) * LONGEST)

extern int	LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct Source
{
	const uint8_t *at;
	const uint8_t *end;
} Source;

static uint8_t
byte(Source *s)
{
	return s->at < s->end ? *s->at++ : 0;
}

static bool
flag(Source *s)
{
	return byte(s) & 1;
}

/* Small steps around the reference are as likely as anything else. */
static int64_t
number(Source *s, int64_t around, int64_t limit)
{
	uint8_t		kind = byte(s);
	uint64_t	far = 0;

	if (kind < 128)
		return around + (int8_t) byte(s) / 16;
	for (int i = 0; i < 8; i++)
		far = far << 8 | byte(s);
	return (int64_t) (far % (uint64_t) limit);
}

/* Even, so that its half is exact; at least 2. */
static int64_t
duration(Source *s)
{
	return 2 + 2 * (number(s, 8, LONGEST - 2) / 2);
}

static int64_t
moment(Source *s, int64_t around)
{
	return number(s, around, LATEST);
}

/* Mostly one of two values, so that equality happens. */
static void
fill(Source *s, uint8_t *bytes, int n)
{
	uint8_t		kind = byte(s);

	memset(bytes, kind & 1, n);
	if (kind & 0x80)
		bytes[(kind & 0x7F) % n] ^= byte(s);
}

static void
take_record(Source *s, IdemRecord *rec, int64_t now)
{
	rec->state = byte(s) % 5;
	rec->on_abandon = flag(s) ? IDEM_ABANDON_RETRY : IDEM_ABANDON_UNKNOWN;
	rec->attempt = (int32_t) number(s, 2, INT32_MAX) + 1;
	rec->recovered = flag(s);
	rec->progressed = flag(s);
	rec->has_fingerprint = flag(s);
	fill(s, rec->fingerprint, IDEM_FINGERPRINT_LEN);
	fill(s, rec->token, IDEM_TOKEN_LEN);
	rec->created_at = moment(s, now);
	rec->claimed_at = moment(s, now);
	rec->ttl = duration(s);
	rec->expires_at = moment(s, flag(s) ? now : now + rec->ttl / 2);
	rec->has_lease_length = flag(s);
	rec->lease = duration(s);
	rec->has_lease = rec->state == IDEM_UNKNOWN ||
		(rec->state == IDEM_PROCESSING && rec->has_lease_length);
	rec->lease_expires_at = moment(s, flag(s) ? now : rec->expires_at);
	rec->has_finished = rec->state != IDEM_PROCESSING;
	rec->finished_at = moment(s, now);
	if (rec->attempt < 1)
		rec->attempt = 1;
}

static void
take_request(Source *s, Request *req)
{
	req->claim.has_fingerprint = flag(s);
	fill(s, req->claim.fingerprint, IDEM_FINGERPRINT_LEN);
	req->claim.lease = flag(s) ? duration(s) : 0;
	req->claim.has_token = flag(s) && req->claim.lease != 0;
	fill(s, req->claim.token, IDEM_TOKEN_LEN);
	req->claim.ttl = duration(s);
	req->claim.on_abandon = flag(s) ? IDEM_ABANDON_RETRY : IDEM_ABANDON_UNKNOWN;
	req->claim.force = flag(s);
	req->finish.has_token = flag(s);
	fill(s, req->finish.token, IDEM_TOKEN_LEN);
	req->finish.state = IDEM_SUCCEEDED + byte(s) % 4;
	req->finish.has_ttl = flag(s);
	req->finish.ttl = duration(s);
	req->renewal.has_token = flag(s);
	fill(s, req->renewal.token, IDEM_TOKEN_LEN);
	req->renewal.has_lease = flag(s);
	req->renewal.lease = duration(s);
	req->renewal.has_on_abandon = flag(s);
	req->renewal.on_abandon = flag(s) ? IDEM_ABANDON_RETRY : IDEM_ABANDON_UNKNOWN;
	req->once_ttl = duration(s);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Source		s = {data, data + size};
	IdemRecord	rec;
	Request		req;
	const char *which = "";
	const char *wrong;
	int64_t		now;
	bool		own,
				there;

	memset(&rec, 0, sizeof(rec));
	memset(&req, 0, sizeof(req));
	own = flag(&s);
	there = !flag(&s);
	now = moment(&s, LATEST / 2);
	take_request(&s, &req);
	take_record(&s, &rec, now);

	wrong = check_all(there ? &rec : NULL, &req, own, now, &which);
	if (wrong)
	{
		printf("wrong %s of %s\n", wrong, which);
		show(there ? &rec : NULL, &req, own, now);
		fflush(stdout);
		abort();
	}
	return 0;
}
