/*
 * policy.h
 *		What a scope's policy says: who may use it, and its defaults.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_POLICY_H
#define IDEM_POLICY_H

#include "transition.h"

/* What stands for an argument that a call leaves out. */
typedef struct IdemDefaults
{
	int64		ttl;			/* of a claim; us, as all of them */
	int64		once_ttl;		/* of a mark */
	int64		lease;
	int64		wait;
	IdemAbandon on_abandon;
} IdemDefaults;

extern void idem_policy_admit(Oid record_table, Datum scope, IdemDefaults *defaults);
extern void idem_policy_defaults(Oid record_table, Datum scope, IdemDefaults *defaults);
extern void idem_policy_will_change(Oid policy_table);

#endif							/* IDEM_POLICY_H */
