/*
 * fingerprint.h
 *		The fingerprint of a request: SHA-256 over a canonical form of a jsonb.
 *
 * Copyright (c) the idempotency authors; see LICENSE (PostgreSQL licence).
 */
#ifndef IDEM_FINGERPRINT_H
#define IDEM_FINGERPRINT_H

#include "utils/jsonb.h"

#include "transition.h"

/* request must be detoasted, as DatumGetJsonbP() returns it. */
extern void idem_fingerprint_jsonb(Jsonb *request,
								   uint8 out[IDEM_FINGERPRINT_LEN]);

#endif							/* IDEM_FINGERPRINT_H */
