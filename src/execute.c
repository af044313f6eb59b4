/*
 * execute.c
 *		Running the caller's command for idem_execute.
 *
 * The only SQL that the library runs is the caller's own, as the caller and
 * under the caller's search_path: nothing of ours is looked up by name.
 *
 * Plans.  A prepared plan is kept per command text, in the session, for up to
 * PLANS_KEPT texts; the least recently used goes.  The plan cache itself sees
 * to changes of tables, search_path and row security role: a saved plan is
 * checked, and made anew if need be, each time it runs.  Privileges are
 * checked at each execution for whoever is the user then.  Apart from speed
 * nothing depends on a kept plan, so the cache may outlive transactions.
 *
 * A plan that fails while it is being prepared is never kept, and one that is
 * running cannot be evicted: it is pinned, because a command may itself call
 * idem_execute.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "lib/ilist.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "args.h"
#include "execute.h"

#define PLANS_KEPT	64

typedef struct KeptPlan
{
	dlist_node	link;
	uint32		hash;
	int			running;		/* nested executions, never evicted */
	SPIPlanPtr	plan;
	char		command[FLEXIBLE_ARRAY_MEMBER];
} KeptPlan;

/* Most recently used first. */
static dlist_head plans = DLIST_STATIC_INIT(plans);
static int	plans_kept = 0;

static KeptPlan *
find_plan(const char *command, uint32 hash)
{
	dlist_iter	iter;

	dlist_foreach(iter, &plans)
	{
		KeptPlan   *kept = dlist_container(KeptPlan, link, iter.cur);

		if (kept->hash == hash && strcmp(kept->command, command) == 0)
		{
			dlist_move_head(&plans, &kept->link);
			return kept;
		}
	}
	return NULL;
}

/* Make room, sparing what is running. */
static void
evict_plans(void)
{
	dlist_node *cur = plans.head.prev;

	while (plans_kept >= PLANS_KEPT && cur != &plans.head)
	{
		KeptPlan   *kept = dlist_container(KeptPlan, link, cur);

		cur = cur->prev;
		if (kept->running > 0)
			continue;
		dlist_delete(&kept->link);
		plans_kept--;
		SPI_freeplan(kept->plan);
		pfree(kept);
	}
}

static KeptPlan *
prepare_plan(const char *command, uint32 hash)
{
	Oid			argtypes[1] = {JSONBOID};
	Size		len = strlen(command) + 1;
	SPIPlanPtr	plan = SPI_prepare(command, 1, argtypes);
	KeptPlan   *kept;

	if (plan == NULL)
		elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
	if (list_length(SPI_plan_get_plan_sources(plan)) != 1)
		idem_bad_argument("command", "must be a single statement",
						  "Put several effects into one statement with WITH, or into a function.");

	evict_plans();
	kept = MemoryContextAlloc(CacheMemoryContext, offsetof(KeptPlan, command) + len);
	kept->hash = hash;
	kept->running = 0;
	kept->plan = plan;
	memcpy(kept->command, command, len);
	if (SPI_keepplan(plan) != 0)
		elog(ERROR, "SPI_keepplan failed");
	dlist_push_head(&plans, &kept->link);
	plans_kept++;
	return kept;
}

/* The response code from the second column of the row, if there is one. */
static void
store_code(HeapTuple tuple, TupleDesc desc, IdemPayload *response)
{
	bool		isnull;
	Datum		value = SPI_getbinval(tuple, desc, 2, &isnull);
	int64		code = 0;

	switch (getBaseType(SPI_gettypeid(desc, 2)))
	{
		case INT2OID:
			code = isnull ? 0 : DatumGetInt16(value);
			break;
		case INT4OID:
			code = isnull ? 0 : DatumGetInt32(value);
			break;
		case INT8OID:
			code = isnull ? 0 : DatumGetInt64(value);
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("the second column of the command's row must be an integer, not %s",
							format_type_be(SPI_gettypeid(desc, 2))),
					 errhint("The first column is stored as the response body, the second as its code.")));
	}
	if (code < PG_INT32_MIN || code > PG_INT32_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("response code out of range")));
	idem_set_field(response, FIELD_RESPONSE_CODE, Int32GetDatum((int32) code), isnull);
}

/* Store what the command returned, in the caller's memory. */
static void
store_row(SPITupleTable *table, uint64 rows, MemoryContext caller, IdemPayload *response)
{
	MemoryContext old;
	char	   *body;

	if (table == NULL || rows == 0)
		return;
	if (rows > 1)
		ereport(ERROR,
				(errcode(ERRCODE_CARDINALITY_VIOLATION),
				 errmsg("command returned more than one row"),
				 errhint("Aggregate the rows into one value, such as with json_agg.")));
	if (table->tupdesc->natts > 2)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("command returned %d columns", table->tupdesc->natts),
				 errhint("Return the response body and, if wanted, its integer code; put several values into one with row_to_json.")));
	if (table->tupdesc->natts == 0)
		return;

	body = SPI_getvalue(table->vals[0], table->tupdesc, 1);
	old = MemoryContextSwitchTo(caller);
	if (body)
		idem_set_field(response, FIELD_RESPONSE_BODY, CStringGetTextDatum(body), false);
	MemoryContextSwitchTo(old);
	if (table->tupdesc->natts == 2)
		store_code(table->vals[0], table->tupdesc, response);
}

/*
 * Run the command with $1 = request and put its result into *response.
 * Errors are the command's own, and 21000, 42804, 22023 for a result or a
 * command of the wrong form.
 */
void
idem_execute_command(const char *command, Datum request, bool request_isnull,
					 IdemPayload *response)
{
	MemoryContext caller = CurrentMemoryContext;
	char		nulls[1] = {request_isnull ? 'n' : ' '};
	Datum		values[1] = {request};
	uint32		hash = DatumGetUInt32(hash_any((const unsigned char *) command, strlen(command)));
	KeptPlan   *kept;
	int			status;

	idem_clear_fields(response, FIELD_RESPONSE_CODE);

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	kept = find_plan(command, hash);
	if (kept == NULL)
		kept = prepare_plan(command, hash);

	kept->running++;
	PG_TRY();
	{
		/* two rows are enough to know that there is more than one */
		status = SPI_execute_plan(kept->plan, values, nulls, false, 2);
	}
	PG_FINALLY();
	{
		kept->running--;
	}
	PG_END_TRY();
	if (status < 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("command cannot be run by idem_execute"),
				 errdetail("It is refused as %s.", SPI_result_code_string(status)),
				 errhint("Commands that control transactions or copy from and to the client cannot be nested; use separate calls of idem_claim and idem_finish.")));

	store_row(SPI_tuptable, SPI_processed, caller, response);
	SPI_finish();
}
