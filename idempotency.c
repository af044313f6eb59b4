/*
 * idempotency.c
 *		Idempotency keys in PostgreSQL: the module and its SQL functions.
 *
 * A client that gets no answer must retry, and the server must then not do
 * the work twice.  The functions here put that protocol inside the database:
 * claim a key, do the work, store the answer, replay it to every retry.  The
 * claim, the business rows and the stored answer commit or vanish together.
 *
 * How a call flows, one way only:
 *
 *		SQL function (here)		arguments in, row out
 *		src/args.c				read, check, default the arguments
 *		src/policy.c			who may use the scope, and its defaults
 *		src/protocol.c			the loop of a call: probe, decide, change
 *		src/record.c			probe and change the table (see there for why
 *								dirty snapshots and speculative inserts)
 *		src/transition.c		the decision, pure: the rules as a table
 *		src/answer.c			which columns an outcome shows
 *
 * and beside it wait.c (bounded waiting), sweep.c (expiry), unfinished.c (the
 * check at commit), execute.c (the caller's command), shape.c (a table the
 * direct path can handle), fingerprint.c (the canonical form of a request).
 *
 * The record's row is the lock: there are no advisory locks, no session state
 * that outlives a transaction, no subtransactions, and no SQL text but the
 * caller's own.  So the functions work through a transaction pooler, and a
 * rollback of any kind leaves nothing behind.
 *
 * Every function here takes the identity (scope, key, principal) first; its
 * arguments, result and errors are described in the README's reference.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include <limits.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "src/answer.h"
#include "src/args.h"
#include "src/execute.h"
#include "src/fault.h"
#include "src/fingerprint.h"
#include "src/policy.h"
#include "src/protocol.h"
#include "src/sweep.h"
#include "src/unfinished.h"
#include "src/wait.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(idem_claim);
PG_FUNCTION_INFO_V1(idem_finish);
PG_FUNCTION_INFO_V1(idem_lookup);
PG_FUNCTION_INFO_V1(idem_extend);
PG_FUNCTION_INFO_V1(idem_checkpoint);
PG_FUNCTION_INFO_V1(idem_assert);
PG_FUNCTION_INFO_V1(idem_once);
PG_FUNCTION_INFO_V1(idem_once_batch);
PG_FUNCTION_INFO_V1(idem_execute);
PG_FUNCTION_INFO_V1(idem_sweep);
PG_FUNCTION_INFO_V1(idem_sweep_all);
PG_FUNCTION_INFO_V1(idem_takeover);
PG_FUNCTION_INFO_V1(idem_resolve);
PG_FUNCTION_INFO_V1(idem_forget);
PG_FUNCTION_INFO_V1(idem_policy_changed);

PGDLLEXPORT void _PG_init(void);

int			idem_setting_ttl;
int			idem_setting_once_ttl;
int			idem_setting_lease;
int			idem_setting_wait;
int			idem_setting_on_abandon;
bool		idem_setting_durable_claims;
int			idem_setting_max_response;

/* ----------------------------------------------------------------
 * Settings
 * ---------------------------------------------------------------- */

/*
 * So much can be sent back in any form: bytes as hex are twice as long.  And so
 * is all else at most in a dump, where one line has to hold, below 1 GB, a
 * record with both a response and a checkpoint of this size.
 */
#define LARGEST_RESPONSE	(255 * 1024 * 1024)

static const struct config_enum_entry abandon_options[] = {
	{"unknown", IDEM_ABANDON_UNKNOWN, false},
	{"retry", IDEM_ABANDON_RETRY, false},
	{NULL, 0, false}
};

void
_PG_init(void)
{
	DefineCustomIntVariable("idempotency.ttl",
							"How long a record replays, where a claim does not say.",
							NULL, &idem_setting_ttl,
							24 * SECS_PER_HOUR, 1, INT_MAX,
							PGC_USERSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.once_ttl",
							"How long idem_once remembers a key, where a call does not say.",
							"Providers redeliver for days.", &idem_setting_once_ttl,
							30 * SECS_PER_DAY, 1, INT_MAX,
							PGC_USERSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.lease",
							"Length of the lease, where a claim does not say.",
							"0 makes a transactional claim: all effects are in this database.",
							&idem_setting_lease,
							0, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.wait",
							"How long a claim waits for one in flight, where it does not say.",
							NULL, &idem_setting_wait,
							0, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomEnumVariable("idempotency.on_abandon",
							 "What a lapsed lease means, where a claim does not say.",
							 NULL, &idem_setting_on_abandon,
							 IDEM_ABANDON_UNKNOWN, abandon_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("idempotency.durable_claims",
							 "Flush leased claims at commit even where synchronous_commit is off.",
							 NULL, &idem_setting_durable_claims,
							 true,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.max_response",
							"Largest response that a finish stores: code, headers and bodies together.",
							NULL, &idem_setting_max_response,
							64 * 1024 * 1024, 0, LARGEST_RESPONSE,
							PGC_USERSET, GUC_UNIT_BYTE, NULL, NULL, NULL);
	FAULT_INIT();
#if PG_VERSION_NUM >= 150000
	MarkGUCPrefixReserved("idempotency");
#else
	EmitWarningsOnPlaceholders("idempotency");
#endif

	idem_unfinished_init();
}

/* ----------------------------------------------------------------
 * Common steps
 * ---------------------------------------------------------------- */

/*
 * Refuse where nothing can be written, before anything else: an application
 * must not work on replays and break on its first fresh key.
 */
static void
require_writable(const char *call)
{
	PreventCommandIfReadOnly(call);
	PreventCommandIfParallelMode(call);
	PreventCommandDuringRecovery(call);
}

/* What a call is about. */
typedef struct IdemTarget
{
	Oid			table;
	IdemKey		key;
	IdemDefaults defaults;
} IdemTarget;

/* The record that the first three arguments name. */
static void
name_target(FunctionCallInfo fcinfo, IdemTarget *target)
{
	idem_arg_identity(fcinfo, &target->key);
	target->table = idem_table_of(fcinfo->flinfo->fn_oid);
}

/* That of a client's call: the scope must be open to the user. */
static void
client_target(FunctionCallInfo fcinfo, IdemTarget *target)
{
	name_target(fcinfo, target);
	idem_policy_admit(target->table, target->key.part[0], &target->defaults);
}

static void
open_target(const IdemTarget *target, IdemStore *s, bool writing)
{
	idem_store_open(s, target->table, writing);
	idem_store_set_key(s, &target->key);
}

/* For a client's call that takes nothing from the policy but leave. */
static void
open_for_client(FunctionCallInfo fcinfo, IdemStore *s, bool writing)
{
	IdemTarget	target;

	client_target(fcinfo, &target);
	open_target(&target, s, writing);
}

/* For an operator's call: every scope is open to it. */
static void
open_for_operator(FunctionCallInfo fcinfo, IdemStore *s)
{
	IdemTarget	target;

	name_target(fcinfo, &target);
	open_target(&target, s, true);
}

static Datum
answer_and_close(FunctionCallInfo fcinfo, IdemStore *s, IdemRowType type,
				 const IdemResult *result)
{
	Datum		row = idem_answer(fcinfo, type, result->outcome,
								  result->known ? &result->rec : NULL, &result->payload);

	idem_store_close(s);
	return row;
}

/* How the call is made, for the guard of the select list. */
static void
note_caller(FunctionCallInfo fcinfo, IdemRequest *req)
{
	req->in_target_list = fcinfo->resultinfo == NULL;
	req->statement = fcinfo->flinfo->fn_mcxt;
}

static bool
bool_arg(FunctionCallInfo fcinfo, int n, const char *name)
{
	if (PG_ARGISNULL(n))
		idem_bad_argument(name, "must not be null", "Give true or false.");
	return PG_GETARG_BOOL(n);
}

static int
count_arg(FunctionCallInfo fcinfo, int n, const char *name)
{
	if (PG_ARGISNULL(n) || PG_GETARG_INT32(n) < 1)
		idem_bad_argument(name, "must be at least 1", "Give the number of rows to delete at most.");
	return PG_GETARG_INT32(n);
}

/* ----------------------------------------------------------------
 * The client's calls
 * ---------------------------------------------------------------- */

Datum
idem_claim(PG_FUNCTION_ARGS)
{
	IdemTarget	target;
	IdemStore	s;
	IdemResult	result;
	IdemRequest req = {.kind = REQUEST_CLAIM};

	require_writable("idem_claim()");
	client_target(fcinfo, &target);
	req.claim.ttl = idem_arg_ttl(fcinfo, 5, target.defaults.ttl);
	req.claim.lease = idem_arg_lease(fcinfo, 6, target.defaults.lease);
	req.wait = idem_arg_wait(fcinfo, 7, target.defaults.wait);
	req.claim.on_abandon = target.defaults.on_abandon;
	(void) idem_arg_on_abandon(fcinfo, 8, &req.claim.on_abandon);
	req.claim.has_token = idem_arg_token(fcinfo, 9, req.claim.token);
	if (req.claim.has_token && req.claim.lease == 0)
		idem_bad_argument("claim_token", "needs a lease",
						  "A transactional claim vanishes with its transaction; it has nothing to repeat.");
	req.claim.has_fingerprint = idem_arg_fingerprint(fcinfo, 3, 4, req.claim.fingerprint);
	note_caller(fcinfo, &req);

	open_target(&target, &s, true);
	idem_run_claim(&s, &req, &result);
	return answer_and_close(fcinfo, &s, ROW_CLAIM, &result);
}

Datum
idem_finish(PG_FUNCTION_ARGS)
{
	IdemStore	s;
	IdemFinish	req = {0};
	IdemPayload response;
	IdemRecord	finished;
	bool		recorded;

	require_writable("idem_finish()");
	req.has_token = idem_arg_token(fcinfo, 3, req.token);
	req.state = idem_arg_state(fcinfo, 4, true);
	idem_arg_response(fcinfo, 5, req.state, &response);
	req.has_ttl = !PG_ARGISNULL(9);
	req.ttl = idem_arg_ttl(fcinfo, 9, 0);

	open_for_client(fcinfo, &s, true);
	recorded = idem_run_finish(&s, &req, &response, NULL, &finished);
	idem_store_close(&s);
	PG_RETURN_BOOL(recorded);
}

Datum
idem_lookup(PG_FUNCTION_ARGS)
{
	IdemStore	s;
	IdemResult	result;

	/* it needs snapshots newer than the one that a parallel operation shares */
	PreventCommandIfParallelMode("idem_lookup()");
	open_for_client(fcinfo, &s, false);
	idem_run_lookup(&s, &result);
	return answer_and_close(fcinfo, &s, ROW_LOOKUP, &result);
}

/* The token and the lease of an owner's call; lease < 0 where it takes none. */
static void
renewal_args(FunctionCallInfo fcinfo, int lease, IdemRenewal *req)
{
	memset(req, 0, sizeof(*req));
	req->has_token = idem_arg_token(fcinfo, 3, req->token);
	if (lease >= 0)
		req->has_lease = idem_arg_renewal_lease(fcinfo, lease, &req->lease);
}

Datum
idem_extend(PG_FUNCTION_ARGS)
{
	IdemStore	s;
	IdemRenewal req;
	TimestampTz expiry;

	require_writable("idem_extend()");
	renewal_args(fcinfo, 4, &req);
	open_for_client(fcinfo, &s, true);
	expiry = idem_run_extend(&s, &req);
	idem_store_close(&s);
	PG_RETURN_TIMESTAMPTZ(expiry);
}

Datum
idem_checkpoint(PG_FUNCTION_ARGS)
{
	IdemStore	s;
	IdemRenewal req;
	IdemPayload checkpoint;
	TimestampTz expiry;

	require_writable("idem_checkpoint()");
	renewal_args(fcinfo, 7, &req);
	idem_arg_checkpoint(fcinfo, 4, &checkpoint);
	req.has_on_abandon = idem_arg_on_abandon(fcinfo, 6, &req.on_abandon);
	open_for_client(fcinfo, &s, true);
	expiry = idem_run_checkpoint(&s, &req, &checkpoint);
	idem_store_close(&s);
	PG_RETURN_TIMESTAMPTZ(expiry);
}

Datum
idem_assert(PG_FUNCTION_ARGS)
{
	IdemStore	s;
	IdemRenewal req;

	require_writable("idem_assert()");
	renewal_args(fcinfo, -1, &req);
	open_for_client(fcinfo, &s, true);
	idem_run_assert(&s, &req);
	idem_store_close(&s);
	PG_RETURN_VOID();
}

/* ----------------------------------------------------------------
 * One-call forms
 * ---------------------------------------------------------------- */

Datum
idem_once(PG_FUNCTION_ARGS)
{
	IdemTarget	target;
	IdemStore	s;
	int64		ttl;
	bool		first;

	require_writable("idem_once()");
	client_target(fcinfo, &target);
	ttl = idem_arg_ttl(fcinfo, 3, target.defaults.once_ttl);
	open_target(&target, &s, true);
	first = idem_run_once(&s, ttl);
	idem_store_close(&s);
	PG_RETURN_BOOL(first);
}

static int
compare_keys(const void *a, const void *b)
{
	text	   *ta = DatumGetTextPP(*(const Datum *) a);
	text	   *tb = DatumGetTextPP(*(const Datum *) b);

	return varstr_cmp(VARDATA_ANY(ta), VARSIZE_ANY_EXHDR(ta),
					  VARDATA_ANY(tb), VARSIZE_ANY_EXHDR(tb), C_COLLATION_OID);
}

/* The keys of a batch: checked, sorted, each once.  Returns how many. */
static int
batch_keys(FunctionCallInfo fcinfo, int n, Datum **keys)
{
	bool	   *nulls;
	int			given;
	int			kept = 0;

	if (PG_ARGISNULL(n))
		idem_bad_argument("keys", "must not be null", "Give an array of keys; it may be empty.");
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(n), TEXTOID, -1, false, TYPALIGN_INT,
					  keys, &nulls, &given);
	for (int i = 0; i < given; i++)
	{
		if (nulls[i])
			idem_bad_argument("keys", "must not contain nulls", "Give 1 to 255 bytes for each key.");
		(*keys)[i] = idem_check_text((*keys)[i], "keys", 1);
	}
	qsort(*keys, given, sizeof(Datum), compare_keys);
	for (int i = 0; i < given; i++)
		if (kept == 0 || compare_keys(&(*keys)[kept - 1], &(*keys)[i]) != 0)
			(*keys)[kept++] = (*keys)[i];
	return kept;
}

/* Mark all keys; those that were new move to the front.  Returns how many. */
static int
mark_batch(FunctionCallInfo fcinfo, Datum *keys, int n)
{
	IdemStore	s;
	IdemTarget	target;
	IdemKey    *key = &target.key;
	int64		ttl;
	int			fresh = 0;
	MemoryContext per_key = AllocSetContextCreate(CurrentMemoryContext, "idem_once_batch",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext old;

	key->part[0] = idem_arg_text(fcinfo, 0, "scope", 1);
	key->part[2] = idem_arg_text(fcinfo, 2, "principal", 0);
	idem_check_principal(key->part[2]);
	target.table = idem_table_of(fcinfo->flinfo->fn_oid);
	idem_policy_admit(target.table, key->part[0], &target.defaults);
	ttl = idem_arg_ttl(fcinfo, 3, target.defaults.once_ttl);
	idem_store_open(&s, target.table, true);
	for (int i = 0; i < n; i++)
	{
		key->part[1] = keys[i];
		idem_store_set_key(&s, key);
		old = MemoryContextSwitchTo(per_key);
		if (idem_run_once(&s, ttl))
			keys[fresh++] = keys[i];
		MemoryContextSwitchTo(old);
		MemoryContextReset(per_key);
	}
	idem_store_close(&s);
	MemoryContextDelete(per_key);
	return fresh;
}

/*
 * All keys are marked by the first call, in sorted order, whatever the caller
 * then fetches: batches in any order cannot deadlock with each other.
 */
Datum
idem_once_batch(PG_FUNCTION_ARGS)
{
	FuncCallContext *funcctx;
	Datum	   *keys;

	if (SRF_IS_FIRSTCALL())
	{
		MemoryContext old;

		require_writable("idem_once_batch()");
		funcctx = SRF_FIRSTCALL_INIT();
		old = MemoryContextSwitchTo(funcctx->multi_call_memory_ctx);
		funcctx->max_calls = batch_keys(fcinfo, 1, &keys);
		funcctx->max_calls = mark_batch(fcinfo, keys, (int) funcctx->max_calls);
		funcctx->user_fctx = keys;
		MemoryContextSwitchTo(old);
	}

	funcctx = SRF_PERCALL_SETUP();
	keys = funcctx->user_fctx;
	if (funcctx->call_cntr < funcctx->max_calls)
	{
		/* the macro counts before it looks at the value */
		Datum		key = keys[funcctx->call_cntr];

		SRF_RETURN_NEXT(funcctx, key);
	}
	SRF_RETURN_DONE(funcctx);
}

Datum
idem_execute(PG_FUNCTION_ARGS)
{
	IdemTarget	target;
	IdemStore	s;
	IdemResult	result;
	IdemRequest req = {.kind = REQUEST_CLAIM};
	IdemFinish	finish = {.has_token = true,.state = IDEM_SUCCEEDED};
	IdemPayload response;
	char	   *command;

	require_writable("idem_execute()");
	if (PG_ARGISNULL(4))
		idem_bad_argument("command", "must not be null", "Give the SQL statement to run.");
	command = text_to_cstring(PG_GETARG_TEXT_PP(4));
	client_target(fcinfo, &target);
	req.claim.ttl = idem_arg_ttl(fcinfo, 5, target.defaults.ttl);
	req.wait = idem_arg_wait(fcinfo, 6, target.defaults.wait);
	req.claim.has_fingerprint = !PG_ARGISNULL(3);
	if (req.claim.has_fingerprint)
		idem_fingerprint_jsonb(PG_GETARG_JSONB_P(3), req.claim.fingerprint);

	open_target(&target, &s, true);
	idem_run_claim(&s, &req, &result);
	if (result.outcome == OUTCOME_CLAIMED)
	{
		/* closed meanwhile: the command may do to the table what it likes */
		idem_store_close(&s);
		idem_execute_command(command, PG_ARGISNULL(3) ? (Datum) 0 : PG_GETARG_DATUM(3),
							 PG_ARGISNULL(3), &response);
		idem_check_response_size(&response);
		/* and even drop it, and this function */
		target.table = idem_table_of(fcinfo->flinfo->fn_oid);
		open_target(&target, &s, true);
		memcpy(finish.token, result.rec.token, IDEM_TOKEN_LEN);
		/* a command that finished the claim itself has stored another answer */
		if (!idem_run_finish(&s, &finish, &response, &result.place, &result.rec))
			idem_require_ownership(&s, IDEM_LOST_FINISHED);
		result.outcome = OUTCOME_EXECUTED;
		result.payload = response;
	}
	return answer_and_close(fcinfo, &s, ROW_CLAIM, &result);
}

/* ----------------------------------------------------------------
 * The operator's calls
 * ---------------------------------------------------------------- */

/* A row is formed blindly, so each column must be of the type that it was made with. */
static bool
is_sweep_row(TupleDesc desc)
{
	return desc->natts == 3 &&
		TupleDescAttr(desc, 0)->atttypid == INT8OID &&
		TupleDescAttr(desc, 1)->atttypid == INT8OID &&
		TupleDescAttr(desc, 2)->atttypid == BOOLOID;
}

Datum
idem_sweep(PG_FUNCTION_ARGS)
{
	IdemStore	s;
	IdemSweep	sweep = {.from = DT_NOBEGIN};
	int			max_rows;
	Oid			table;
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false};

	require_writable("idem_sweep()");
	max_rows = count_arg(fcinfo, 0, "max_rows");
	table = idem_table_of(fcinfo->flinfo->fn_oid);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE || !is_sweep_row(desc))
		idem_refuse_row_type(fcinfo->flinfo->fn_oid);

	idem_store_open(&s, table, true);
	idem_sweep_batch(&s, max_rows, &sweep);
	values[0] = Int64GetDatum(sweep.deleted);
	values[1] = Int64GetDatum(idem_count_unresolved(&s));
	values[2] = BoolGetDatum(sweep.more);
	idem_store_close(&s);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* Sleep between batches, outside of any lock; interruptible. */
static void
pause_for(int64 usecs)
{
	IdemWait	wait;

	idem_wait_begin(&wait, usecs);
	while (idem_wait_nap(&wait))
		 /* until the bound */ ;
}

/* One batch in a transaction of its own; what is fetched from TOAST needs a snapshot. */
static void
sweep_and_commit(Oid table, int batch, IdemSweep *sweep)
{
	IdemStore	s;

	PushActiveSnapshot(GetTransactionSnapshot());
	idem_store_open(&s, table, true);
	idem_sweep_batch(&s, batch, sweep);
	idem_store_close(&s);
	PopActiveSnapshot();
	SPI_commit();
#if PG_VERSION_NUM < 150000
	SPI_start_transaction();
#endif
}

/*
 * A procedure, because each batch is committed.  Each batch starts where the
 * one before ended, so it does not read again what was deleted, or was left
 * because it was locked.
 */
Datum
idem_sweep_all(PG_FUNCTION_ARGS)
{
	CallContext *context = (CallContext *) fcinfo->context;
	IdemSweep	sweep = {.from = DT_NOBEGIN};
	Oid			table;
	int			batch;
	int64		pause;

	require_writable("idem_sweep_all()");
	batch = count_arg(fcinfo, 0, "batch");
	pause = idem_arg_pause(fcinfo, 1);
	if (context == NULL || !IsA(context, CallContext) || context->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
				 errmsg("idem_sweep_all commits after every batch and cannot run inside a transaction"),
				 errhint("Call it on its own, or use idem_sweep.")));
	table = idem_table_of(fcinfo->flinfo->fn_oid);

	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	do
	{
		if (sweep.more)
			pause_for(pause);
		sweep_and_commit(table, batch, &sweep);
	} while (sweep.more);
	SPI_finish();
	PG_RETURN_VOID();
}

Datum
idem_takeover(PG_FUNCTION_ARGS)
{
	IdemTarget	target;
	IdemStore	s;
	IdemResult	result;
	IdemRequest req = {.kind = REQUEST_TAKEOVER};

	require_writable("idem_takeover()");
	name_target(fcinfo, &target);
	idem_policy_defaults(target.table, target.key.part[0], &target.defaults);
	req.claim.lease = idem_arg_lease(fcinfo, 3, target.defaults.lease);
	req.wait = idem_arg_wait(fcinfo, 4, target.defaults.wait);
	req.claim.force = bool_arg(fcinfo, 5, "force");
	note_caller(fcinfo, &req);

	open_target(&target, &s, true);
	idem_run_claim(&s, &req, &result);
	return answer_and_close(fcinfo, &s, ROW_CLAIM, &result);
}

Datum
idem_resolve(PG_FUNCTION_ARGS)
{
	IdemStore	s;
	IdemResult	result;
	IdemRequest req = {.kind = REQUEST_RESOLVE};

	require_writable("idem_resolve()");
	req.finish.state = idem_arg_state(fcinfo, 3, false);
	idem_arg_response(fcinfo, 4, req.finish.state, &req.response);
	req.finish.has_ttl = !PG_ARGISNULL(8);
	req.finish.ttl = idem_arg_ttl(fcinfo, 8, 0);
	req.claim.force = bool_arg(fcinfo, 9, "force");
	note_caller(fcinfo, &req);

	open_for_operator(fcinfo, &s);
	idem_run_claim(&s, &req, &result);
	return answer_and_close(fcinfo, &s, ROW_LOOKUP, &result);
}

Datum
idem_forget(PG_FUNCTION_ARGS)
{
	IdemStore	s;
	bool		forgotten;

	require_writable("idem_forget()");
	open_for_operator(fcinfo, &s);
	forgotten = idem_run_forget(&s);
	idem_store_close(&s);
	PG_RETURN_BOOL(forgotten);
}

/* ----------------------------------------------------------------
 * Triggers
 * ---------------------------------------------------------------- */

/*
 * Before each change of a row of idem_policy, and before it is truncated:
 * every session must read the table again.
 */
Datum
idem_policy_changed(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("idem_policy_changed must be called as a trigger")));

	idem_policy_will_change(RelationGetRelid(trigger->tg_relation));
	if (!TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		return PointerGetDatum(NULL);
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ?
						   trigger->tg_newtuple : trigger->tg_trigtuple);
}
