/*
 * answer.c
 *		The row that a call answers with.
 *
 * Which columns an outcome shows is one table, below, so that nothing can be
 * shown by accident: a token goes to whoever claimed and to nobody else, a
 * response goes with a replay and never with a mismatch.
 *
 * Values are copied out of the buffer, and fetched if stored out of line, as
 * the row is built: the caller holds the slot until then.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"
#include "utils/uuid.h"

#include "answer.h"

#define SHOW_STATE		0x01
#define SHOW_ATTEMPT	0x02
#define SHOW_TOKEN		0x04
#define SHOW_RECOVERED	0x08
#define SHOW_CHECKPOINT 0x10
#define SHOW_RESPONSE	0x20
#define SHOW_LEASE		0x40
#define SHOW_EXPIRY		0x80

static const struct
{
	const char *name;
	int			shows;
}			outcomes[] = {
	[OUTCOME_CLAIMED] = {"claimed", SHOW_STATE | SHOW_ATTEMPT | SHOW_TOKEN | SHOW_RECOVERED |
	SHOW_CHECKPOINT | SHOW_LEASE | SHOW_EXPIRY},
	[OUTCOME_EXECUTED] = {"executed", SHOW_STATE | SHOW_ATTEMPT | SHOW_RECOVERED |
	SHOW_RESPONSE | SHOW_EXPIRY},
	[OUTCOME_REPLAYED] = {"replayed", SHOW_STATE | SHOW_ATTEMPT | SHOW_RESPONSE | SHOW_EXPIRY},
	[OUTCOME_IN_PROGRESS] = {"in_progress", SHOW_STATE | SHOW_ATTEMPT | SHOW_LEASE},
	[OUTCOME_MISMATCH] = {"mismatch", SHOW_STATE},
	[OUTCOME_UNKNOWN] = {"unknown", SHOW_STATE | SHOW_ATTEMPT | SHOW_CHECKPOINT | SHOW_LEASE},
	[OUTCOME_RELEASED] = {"released", SHOW_STATE | SHOW_ATTEMPT | SHOW_CHECKPOINT |
	SHOW_LEASE | SHOW_EXPIRY},
	[OUTCOME_ABSENT] = {"absent", 0},
};

#define MAX_ROW_ATTS	13

/* Columns of the two row types; -1 where a type lacks one. */
typedef struct RowShape
{
	int			natts;
	Oid			types[MAX_ROW_ATTS];
	int			outcome;
	int			state;
	int			token;
	int			attempt;
	int			recovered;
	int			checkpoint;
	int			response;		/* code, body, headers, bytes */
	int			lease;
	int			expiry;
} RowShape;

static const RowShape shapes[] = {
	[ROW_CLAIM] = {13, {TEXTOID, TEXTOID, UUIDOID, INT4OID, BOOLOID, TEXTOID, JSONBOID,
	INT4OID, TEXTOID, JSONBOID, BYTEAOID, TIMESTAMPTZOID, TIMESTAMPTZOID},
	0, 1, 2, 3, 4, 5, 7, 11, 12},
	[ROW_LOOKUP] = {11, {TEXTOID, TEXTOID, INT4OID, TEXTOID, JSONBOID,
	INT4OID, TEXTOID, JSONBOID, BYTEAOID, TIMESTAMPTZOID, TIMESTAMPTZOID},
	0, 1, -1, 2, -1, 3, 5, 9, 10},
};

static uint64
row_type_state(Oid rowtype)
{
	return lookup_type_cache(rowtype, TYPECACHE_TUPDESC)->tupDesc_identifier;
}

/* A row is formed blindly, so each column must be of the type that it was made with. */
static bool
is_as_made(TupleDesc desc, const RowShape *row)
{
	if (desc->natts != row->natts)
		return false;
	for (int i = 0; i < row->natts; i++)
		if (TupleDescAttr(desc, i)->atttypid != row->types[i])
			return false;
	return true;
}

void
idem_refuse_row_type(Oid function)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("function \"%s\" does not return the row that it should",
					get_func_name(function)),
			 errhint("Restore the row type that the extension made.")));
}

/*
 * The row type of the function called, in a form that is kept: finding and
 * copying it costs as much as the probe.  The type cache numbers the states of
 * a named type, so a kept form that the type has left behind is not used.
 */
static TupleDesc
row_desc(FunctionCallInfo fcinfo, IdemRowType type)
{
	static struct
	{
		Oid			function;
		Oid			rowtype;
		uint64		state;
		TupleDesc	desc;
	}			cache[4];
	static int	next = 0;
	Oid			function = fcinfo->flinfo->fn_oid;
	TupleDesc	desc;
	Oid			rowtype;
	MemoryContext old;

	for (int i = 0; i < (int) lengthof(cache); i++)
		if (cache[i].function == function &&
			cache[i].state == row_type_state(cache[i].rowtype))
			return cache[i].desc;

	if (get_call_result_type(fcinfo, &rowtype, &desc) != TYPEFUNC_COMPOSITE ||
		!is_as_made(desc, &shapes[type]))
		idem_refuse_row_type(function);

	old = MemoryContextSwitchTo(CacheMemoryContext);
	desc = CreateTupleDescCopy(desc);
	MemoryContextSwitchTo(old);

	if (cache[next].desc)
		FreeTupleDesc(cache[next].desc);
	cache[next].function = function;
	cache[next].rowtype = rowtype;
	cache[next].state = row_type_state(rowtype);
	cache[next].desc = desc;
	next = (next + 1) % lengthof(cache);
	return desc;
}

static void
set(Datum *values, bool *nulls, int column, Datum value, bool isnull)
{
	if (column < 0)
		return;
	values[column] = value;
	nulls[column] = isnull;
}

static Datum
fetched(Datum value, bool isnull, bool byval)
{
	if (isnull || byval || !VARATT_IS_EXTERNAL(DatumGetPointer(value)))
		return value;
	return PointerGetDatum(detoast_external_attr((struct varlena *) DatumGetPointer(value)));
}

static void
set_fields(Datum *values, bool *nulls, int column, const IdemPayload *payload,
		   IdemField from, IdemField to)
{
	for (IdemField f = from; f <= to; f++)
		set(values, nulls, column + (f - from),
			fetched(payload->value[f], payload->isnull[f], f == FIELD_RESPONSE_CODE),
			payload->isnull[f]);
}

/*
 * The answer row.  rec and payload may be NULL where nothing of the record is
 * known: absent, or held by somebody's uncommitted change.
 */
Datum
idem_answer(FunctionCallInfo fcinfo, IdemRowType type, IdemOutcome outcome,
			const IdemRecord *rec, const IdemPayload *payload)
{
	const RowShape *row = &shapes[type];
	int			shows = rec ? outcomes[outcome].shows : 0;
	Datum		values[MAX_ROW_ATTS] = {0};
	bool		nulls[MAX_ROW_ATTS];
	pg_uuid_t	token;

	memset(nulls, true, sizeof(nulls));
	set(values, nulls, row->outcome, CStringGetTextDatum(outcomes[outcome].name), false);

	if (shows & SHOW_STATE)
		set(values, nulls, row->state, CStringGetTextDatum(idem_state_name(rec->state)), false);
	if (shows & SHOW_ATTEMPT)
		set(values, nulls, row->attempt, Int32GetDatum(rec->attempt), false);
	if (shows & SHOW_TOKEN)
	{
		memcpy(token.data, rec->token, IDEM_TOKEN_LEN);
		set(values, nulls, row->token, UUIDPGetDatum(&token), false);
	}
	if (shows & SHOW_RECOVERED)
		set(values, nulls, row->recovered, BoolGetDatum(rec->recovered), false);
	if (shows & SHOW_CHECKPOINT)
		set_fields(values, nulls, row->checkpoint, payload,
				   FIELD_CHECKPOINT, FIELD_CHECKPOINT_DATA);
	if (shows & SHOW_RESPONSE)
		set_fields(values, nulls, row->response, payload,
				   FIELD_RESPONSE_CODE, FIELD_RESPONSE_BYTES);
	if (shows & SHOW_LEASE)
		set(values, nulls, row->lease, TimestampTzGetDatum(rec->lease_expires_at),
			!rec->has_lease);
	if (shows & SHOW_EXPIRY)
		set(values, nulls, row->expiry, TimestampTzGetDatum(rec->expires_at), false);

	return HeapTupleGetDatum(heap_form_tuple(row_desc(fcinfo, type), values, nulls));
}
