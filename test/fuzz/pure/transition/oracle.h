/*
 * oracle.h
 *		What the decisions should be, and whether one is as it should be.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_FUZZ_ORACLE_H
#define IDEM_FUZZ_ORACLE_H

#include "transition.h"

/* Everything that any of the calls may ask for. */
typedef struct Request
{
	IdemClaim	claim;			/* claim and takeover */
	IdemFinish	finish;
	IdemRenewal renewal;
	int64_t		once_ttl;
} Request;

/*
 * Each compares a decision with the oracle's: NULL, or what is wrong.  rec
 * may be NULL, and satisfies the constraints of the table otherwise.
 */
extern const char *check_claim(const IdemRecord *rec, const Request *req, bool own, int64_t now);
extern const char *check_takeover(const IdemRecord *rec, const Request *req, bool own, int64_t now);
extern const char *check_lookup(const IdemRecord *rec, bool own, int64_t now);
extern const char *check_finish(const IdemRecord *rec, const Request *req, bool own, int64_t now);
extern const char *check_renewal(const IdemRecord *rec, const Request *req, bool own, int64_t now);
extern const char *check_once(const IdemRecord *rec, const Request *req, bool own, int64_t now);
extern const char *check_times(const IdemRecord *rec, int64_t now);

/* All of them in turn; the name of the one that failed in *which. */
extern const char *check_all(const IdemRecord *rec, const Request *req, bool own, int64_t now,
							 const char **which);

/* Whether the table would take the record. */
extern bool is_possible(const IdemRecord *rec);

/* Print the case, to be read. */
extern void show(const IdemRecord *rec, const Request *req, bool own, int64_t now);

#endif							/* IDEM_FUZZ_ORACLE_H */
