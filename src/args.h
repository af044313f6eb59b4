/*
 * args.h
 *		Arguments of the SQL functions: read, checked, defaulted.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_ARGS_H
#define IDEM_ARGS_H

#include "fmgr.h"

#include "record.h"

#ifndef pg_noreturn				/* before PostgreSQL 18 */
#define pg_noreturn pg_attribute_noreturn()
#endif

#define IDEM_MAX_TEXT	255		/* bytes of a scope, key or principal */

/* Settings, defined in idempotency.c. */
extern int	idem_setting_ttl;		/* s */
extern int	idem_setting_once_ttl;	/* s */
extern int	idem_setting_lease;		/* ms */
extern int	idem_setting_wait;		/* ms */
extern int	idem_setting_on_abandon;	/* IdemAbandon */
extern bool idem_setting_durable_claims;
extern int	idem_setting_max_response;	/* bytes */

pg_noreturn extern void idem_bad_argument(const char *name, const char *problem,
										  const char *hint);

extern void idem_arg_identity(FunctionCallInfo fcinfo, IdemKey *key);
extern Datum idem_arg_text(FunctionCallInfo fcinfo, int n, const char *name, int min);
extern Datum idem_check_text(Datum value, const char *name, int min);
extern void idem_check_principal(Datum value);
extern int64 idem_arg_ttl(FunctionCallInfo fcinfo, int n, int64 otherwise);
extern int64 idem_arg_lease(FunctionCallInfo fcinfo, int n, int64 otherwise);
extern bool idem_arg_renewal_lease(FunctionCallInfo fcinfo, int n, int64 *lease);
extern int64 idem_arg_wait(FunctionCallInfo fcinfo, int n, int64 otherwise);
extern int64 idem_arg_pause(FunctionCallInfo fcinfo, int n);
extern bool idem_arg_token(FunctionCallInfo fcinfo, int n, uint8 *token);
extern bool idem_arg_fingerprint(FunctionCallInfo fcinfo, int request, int fingerprint,
								 uint8 *to);
extern bool idem_arg_on_abandon(FunctionCallInfo fcinfo, int n, IdemAbandon *on_abandon);
extern IdemState idem_arg_state(FunctionCallInfo fcinfo, int n, bool may_be_unknown);
extern void idem_arg_response(FunctionCallInfo fcinfo, int code, IdemState state,
							  IdemPayload *payload);
extern void idem_arg_checkpoint(FunctionCallInfo fcinfo, int n, IdemPayload *payload);
extern void idem_check_response_size(const IdemPayload *payload);
extern void idem_set_field(IdemPayload *payload, IdemField field, Datum value, bool isnull);
extern void idem_clear_fields(IdemPayload *payload, IdemField from);

#endif							/* IDEM_ARGS_H */
