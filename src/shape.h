/*
 * shape.h
 *		Are idem_record and idem_policy tables that the direct path can handle?
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_SHAPE_H
#define IDEM_SHAPE_H

#include "storage/lockdefs.h"
#include "utils/rel.h"

/* Columns of idem_record, in the order of the install script. */
typedef enum IdemColumn
{
	COL_SCOPE = 1,
	COL_KEY,
	COL_PRINCIPAL,
	COL_STATE,
	COL_ATTEMPT,
	COL_TOKEN,
	COL_CREATED_AT,
	COL_CLAIMED_AT,
	COL_EXPIRES_AT,
	COL_TTL,
	COL_ON_ABANDON,
	COL_RECOVERED,
	COL_PROGRESSED,
	COL_LEASE,
	COL_LEASE_EXPIRES_AT,
	COL_FINISHED_AT,
	COL_FINGERPRINT,
	COL_CHECKPOINT,
	COL_CHECKPOINT_DATA,
	COL_RESPONSE_CODE,
	COL_RESPONSE_BODY,
	COL_RESPONSE_HEADERS,
	COL_RESPONSE_BYTES,
	COL_SWEEP_AT,
} IdemColumn;

#define IDEM_NATTS		COL_SWEEP_AT
#define IDEM_NKEYS		3		/* scope, key, principal */

typedef struct IdemShape
{
	uint64		generation;		/* differs whenever the table may have changed */
	Oid			identity_index;
	Oid			sweep_index;
	Oid			lease_index;
} IdemShape;

/* Columns of idem_policy. */
typedef enum IdemPolicyColumn
{
	POLICY_SCOPE = 1,
	POLICY_TTL,
	POLICY_LEASE,
	POLICY_WAIT,
	POLICY_ON_ABANDON,
	POLICY_ROLE,
} IdemPolicyColumn;

#define IDEM_POLICY_NATTS	POLICY_ROLE

extern Relation idem_table_open(Oid table, LOCKMODE mode, const char *name);
extern const IdemShape *idem_table_shape(Relation rel);
extern void idem_check_policy_table(Relation rel);

#endif							/* IDEM_SHAPE_H */
