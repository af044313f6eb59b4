/*
 * record.c
 *		The only code that touches idem_record and its indexes.
 *
 * Why not SQL: a client needs to see another session's uncommitted claim
 * without blocking on it, and the committed answer inside a REPEATABLE READ
 * transaction that began earlier.  No MVCC snapshot shows either.  So the
 * unique index is probed with a dirty snapshot, which shows every version
 * that is not surely dead, and tells whose it is.
 *
 * Probe.  All entries of the identity are read, for the first may be a dead
 * version.  A version whose inserter has committed (or is this transaction)
 * and that nobody has deleted or is deleting is live: at the moment it was
 * looked at it was the record, so a decision made from it is right as of that
 * moment.  A version with somebody else's transaction in progress on it
 * decides nothing, not even a mismatch, because it may roll back.  A
 * speculative version decides nothing either: it may be withdrawn without its
 * transaction ending.  A mere row lock is not a change and is not looked at.
 *
 * That the probe found nothing is only a hint.  If another session replaces
 * the record by a non-HOT update and commits between our reading of the index
 * leaf and our visit to the heap, we see the old version dead and never had
 * the new entry.  Whoever is going to insert need not care: the insertion
 * proves absence, since the index checks for duplicates while it holds the
 * leaf, and a replacing entry is in the leaf before its transaction commits.
 * Everyone else uses idem_store_probe_surely(), which believes an absence
 * only if a later scan met no entry that an earlier one had not already seen
 * lead to nothing.  Dead stays dead, and a speculative version that is
 * confirmed meanwhile is seen, so no live version had an entry when the later
 * scan read the leaf.
 *
 * Insert.  As INSERT ... ON CONFLICT does: a heap tuple with a speculative
 * token, then entries in all indexes without raising or waiting on a
 * conflict, then confirmation or withdrawal.  No arbiter is named, for
 * REINDEX CONCURRENTLY maintains a twin of the identity index, and a conflict
 * in either must withdraw the tuple.  One session's entry is first in the
 * index and sees no duplicate; all others see its entry.  So of any number of
 * simultaneous inserts exactly one stays.
 *
 * Update and delete name the version that was decided on.  The heap makes the
 * change only if that version is still current, under the buffer lock, or
 * says that it is gone.  So no decision is ever applied to a version other
 * than the one it was made from.  Who must not wait for a row lock takes it
 * first, skipping a locked row.
 *
 * Isolation levels.  No MVCC snapshot is used, so REPEATABLE READ has nothing
 * to fail on, and a dirty scan takes no predicate locks, so two calls of the
 * extension never have a serialization conflict with each other.
 *
 * TIDs.  The slot keeps its buffer pinned from probe to change, which holds
 * off pruning and vacuum of that page: the TID still means the same version.
 * During a probe the index scan's pin on the leaf does the same on a primary.
 * On a standby recycling is replayed regardless, so there an MVCC snapshot
 * (which replay respects) looks first, and the identity columns of every
 * fetched tuple are compared with what was asked for.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/multixact.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_collation.h"
#include "common/int.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "check.h"
#include "fault.h"
#include "record.h"

#if PG_VERSION_NUM >= 180000
#define begin_index_scan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#else
#define begin_index_scan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, nkeys, 0)
#endif

#if PG_VERSION_NUM >= 160000
#define new_file_since(rel)	((rel)->rd_firstRelfilelocatorSubid)
#else
#define new_file_since(rel)	((rel)->rd_firstRelfilenodeSubid)
#endif

/* How often a table that seems to be gone is looked for, 1 ms apart. */
#define LOOKS_FOR_TABLE	100

static const AttrNumber field_column[IDEM_NFIELDS] = {
	COL_CHECKPOINT, COL_CHECKPOINT_DATA, COL_RESPONSE_CODE,
	COL_RESPONSE_BODY, COL_RESPONSE_HEADERS, COL_RESPONSE_BYTES,
};

static const char *const state_names[] = {
	[IDEM_PROCESSING] = "processing",
	[IDEM_SUCCEEDED] = "succeeded",
	[IDEM_FAILED] = "failed",
	[IDEM_RELEASED] = "released",
	[IDEM_UNKNOWN] = "unknown",
};

static const char *const abandon_names[] = {
	[IDEM_ABANDON_UNKNOWN] = "unknown",
	[IDEM_ABANDON_RETRY] = "retry",
};

/* ----------------------------------------------------------------
 * Values
 * ---------------------------------------------------------------- */

static int
find_name(const char *const *names, int n, const char *name, size_t len)
{
	for (int i = 0; i < n; i++)
		if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
			return i;
	return -1;
}

const char *
idem_state_name(IdemState state)
{
	return state_names[state];
}

bool
idem_state_from_name(const char *name, size_t len, IdemState *state)
{
	int			i = find_name(state_names, lengthof(state_names), name, len);

	*state = i < 0 ? IDEM_PROCESSING : (IdemState) i;
	return i >= 0;
}

bool
idem_abandon_from_name(const char *name, size_t len, IdemAbandon *on_abandon)
{
	int			i = find_name(abandon_names, lengthof(abandon_names), name, len);

	*on_abandon = i < 0 ? IDEM_ABANDON_UNKNOWN : (IdemAbandon) i;
	return i >= 0;
}

/*
 * An interval as exact microseconds, a day being 24 hours and a month 30
 * days, so that no verdict depends on a session's time zone.  False if it
 * does not fit.
 */
bool
idem_interval_usecs(const Interval *interval, int64 *usecs)
{
	int64		days = (int64) interval->month * 30 + interval->day;

	return !pg_mul_s64_overflow(days, USECS_PER_DAY, usecs) &&
		!pg_add_s64_overflow(*usecs, interval->time, usecs);
}

/* The same of one that the extension stores: 0 to IDEM_MAX_DURATION. */
bool
idem_duration_usecs(const Interval *interval, int64 *usecs)
{
	return idem_interval_usecs(interval, usecs) &&
		*usecs >= 0 && *usecs <= IDEM_MAX_DURATION;
}

static Datum
interval_datum(int64 usecs)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->day = (int32) (usecs / USECS_PER_DAY);
	interval->time = usecs % USECS_PER_DAY;
	return IntervalPGetDatum(interval);
}

/* ----------------------------------------------------------------
 * Opening
 * ---------------------------------------------------------------- */

/*
 * The table of that name in the schema of a function or relation.
 *
 * Whoever moves the extension may commit between the look at the schema and
 * the look into it.  The catalogs show that at once, but what we remember of
 * the function is only corrected when the news arrives, a moment later.  So a
 * table that is not there is looked for again before that is believed.
 */
Oid
idem_table_beside(Oid object, Oid (*schema_of) (Oid), const char *name)
{
	for (int tries = 0;; tries++)
	{
		Oid			schema = schema_of(object);
		Oid			table;

		FAULT_POINT("in schema");
		table = OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;
		if (OidIsValid(table) || !OidIsValid(schema) || tries == LOOKS_FOR_TABLE)
			return table;
		pg_usleep(1000);
		CHECK_FOR_INTERRUPTS();
		AcceptInvalidationMessages();
	}
}

/* The table beside a function of the extension, never by search_path. */
Oid
idem_table_of(Oid function)
{
	Oid			table = idem_table_beside(function, get_func_namespace, "idem_record");

	if (OidIsValid(table))
		return table;

	/* a statement goes on calling a function that it has dropped */
	if (!OidIsValid(get_func_namespace(function)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the function was dropped during the call"),
				 errhint("Drop the extension in a statement of its own, and call again once it is there.")));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"idem_record\" not found in the schema of function \"%s\"",
					get_func_name(function)),
			 errhint("Call the functions that CREATE EXTENSION idempotency made.")));
}

/*
 * Open the table for a call.  The lock on it stays until the transaction
 * ends, as a statement's would.  Errors: 0A000 and 55000 from the shape check.
 */
void
idem_store_open(IdemStore *s, Oid table, bool writing)
{
	memset(s, 0, sizeof(*s));
	s->lockmode = writing ? RowExclusiveLock : AccessShareLock;
	s->context = CurrentMemoryContext;
	s->rel = idem_table_open(table, s->lockmode, "idem_record");
	s->shape = *idem_table_shape(s->rel);
	s->slot = table_slot_create(s->rel, NULL);
}

void
idem_store_set_key(IdemStore *s, const IdemKey *key)
{
	s->key = *key;
	for (int i = 0; i < IDEM_NKEYS; i++)
		ScanKeyEntryInitialize(&s->scankey[i], 0, i + 1, BTEqualStrategyNumber,
							   InvalidOid, C_COLLATION_OID, F_TEXTEQ, key->part[i]);
}

/* Let go of the buffer pin, before sleeping or running somebody's code. */
void
idem_store_release(IdemStore *s)
{
	ExecClearTuple(s->slot);
	if (s->lock_slot)
		ExecClearTuple(s->lock_slot);
}

void
idem_store_close(IdemStore *s)
{
	if (s->estate)
	{
		if (s->result_rel->ri_IndexRelationDescs)
			ExecCloseIndices(s->result_rel);
		ExecDropSingleTupleTableSlot(s->new_slot);
		FreeExecutorState(s->estate);
	}
	if (s->lock_slot)
		ExecDropSingleTupleTableSlot(s->lock_slot);
	ExecDropSingleTupleTableSlot(s->slot);
	table_close(s->rel, NoLock);
}

/* ----------------------------------------------------------------
 * Reading
 * ---------------------------------------------------------------- */

/* Does the fetched tuple carry the identity that was asked for? */
static bool
same_identity(IdemStore *s)
{
	for (int i = 0; i < IDEM_NKEYS; i++)
	{
		bool		isnull;
		text	   *have = DatumGetTextPP(slot_getattr(s->slot, COL_SCOPE + i, &isnull));
		text	   *want = DatumGetTextPP(s->key.part[i]);

		if (isnull || VARSIZE_ANY_EXHDR(have) != VARSIZE_ANY_EXHDR(want) ||
			memcmp(VARDATA_ANY(have), VARDATA_ANY(want), VARSIZE_ANY_EXHDR(want)) != 0)
			return false;
	}
	return true;
}

static int64
time_or_zero(TupleTableSlot *slot, IdemColumn column, bool *present)
{
	*present = !slot->tts_isnull[column - 1];
	return *present ? DatumGetTimestampTz(slot->tts_values[column - 1]) : 0;
}

/* 0 where there is none.  False if it is out of range. */
static bool
read_duration(TupleTableSlot *slot, IdemColumn column, bool *present, int64 *usecs)
{
	*present = !slot->tts_isnull[column - 1];
	*usecs = 0;
	return !*present ||
		idem_duration_usecs(DatumGetIntervalP(slot->tts_values[column - 1]), usecs);
}

/*
 * Read the fetched version.  What was written past the extension need not be a
 * record (the constraints say nothing of durations, and may have been changed):
 * then the reason why it is none, in a full sentence.
 */
static const char *
read_record(IdemStore *s)
{
	TupleTableSlot *slot = s->slot;
	IdemRecord *rec = &s->rec;
	text	   *name;
	bytea	   *fingerprint;
	bool		present;

	slot_getallattrs(slot);

	name = DatumGetTextPP(slot->tts_values[COL_STATE - 1]);
	if (!idem_state_from_name(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name), &rec->state))
		return "Its state is not one that the extension knows.";
	name = DatumGetTextPP(slot->tts_values[COL_ON_ABANDON - 1]);
	if (!idem_abandon_from_name(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name), &rec->on_abandon))
		return "Its on_abandon is not one that the extension knows.";

	rec->attempt = DatumGetInt32(slot->tts_values[COL_ATTEMPT - 1]);
	rec->recovered = DatumGetBool(slot->tts_values[COL_RECOVERED - 1]);
	rec->progressed = DatumGetBool(slot->tts_values[COL_PROGRESSED - 1]);
	memcpy(rec->token, DatumGetUUIDP(slot->tts_values[COL_TOKEN - 1])->data, IDEM_TOKEN_LEN);
	rec->created_at = time_or_zero(slot, COL_CREATED_AT, &present);
	rec->claimed_at = time_or_zero(slot, COL_CLAIMED_AT, &present);
	rec->expires_at = time_or_zero(slot, COL_EXPIRES_AT, &present);
	rec->lease_expires_at = time_or_zero(slot, COL_LEASE_EXPIRES_AT, &rec->has_lease);
	rec->finished_at = time_or_zero(slot, COL_FINISHED_AT, &rec->has_finished);

	if (!read_duration(slot, COL_TTL, &present, &rec->ttl))
		return "Its ttl is out of range.";
	if (!read_duration(slot, COL_LEASE, &rec->has_lease_length, &rec->lease))
		return "Its lease is out of range.";

	rec->has_fingerprint = !slot->tts_isnull[COL_FINGERPRINT - 1];
	if (rec->has_fingerprint)
	{
		fingerprint = DatumGetByteaPP(slot->tts_values[COL_FINGERPRINT - 1]);
		if (VARSIZE_ANY_EXHDR(fingerprint) != IDEM_FINGERPRINT_LEN)
			return "Its fingerprint is not 32 bytes long.";
		memcpy(rec->fingerprint, VARDATA_ANY(fingerprint), IDEM_FINGERPRINT_LEN);
	}
	return NULL;
}

static char *
text_in_slot(IdemStore *s, IdemColumn column)
{
	return TextDatumGetCString(s->slot->tts_values[column - 1]);
}

static void
report_unreadable(IdemStore *s, int elevel, const char *why)
{
	ereport(elevel,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("record of idempotency key \"%s\" in scope \"%s\" cannot be used",
					text_in_slot(s, COL_KEY), text_in_slot(s, COL_SCOPE)),
			 errdetail_internal("%s", why),
			 errhint("The extension did not write it: correct or delete the row, and restore the table's constraints if they were changed."),
			 errtable(s->rel)));
}

/*
 * The fetched version is the one to go on with.  False at a lower elevel than
 * ERROR: it cannot be read.
 */
static bool
accept_version(IdemStore *s, int elevel)
{
	HeapTuple	tuple = ExecFetchSlotHeapTuple(s->slot, false, NULL);
	const char *why = read_record(s);

	s->tid = s->slot->tts_tid;
	s->own = TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
	if (why)
		report_unreadable(s, elevel, why);
	return why == NULL;
}

/* The carried columns of the live version; good until the slot is released. */
void
idem_store_payload(IdemStore *s, IdemPayload *payload)
{
	for (int i = 0; i < IDEM_NFIELDS; i++)
	{
		payload->value[i] = s->slot->tts_values[field_column[i] - 1];
		payload->isnull[i] = s->slot->tts_isnull[field_column[i] - 1];
	}
}

/*
 * Was the live version, which is our own, written by the statement that is
 * running?  Its command is then not older than the statement's snapshot.
 */
bool
idem_store_made_by_statement(IdemStore *s)
{
	HeapTuple	tuple = ExecFetchSlotHeapTuple(s->slot, false, NULL);

	return ActiveSnapshotSet() &&
		HeapTupleHeaderGetCmin(tuple->t_data) >= GetActiveSnapshot()->curcid;
}

static void
remember_tid(IdemTids *set, ItemPointer tid, MemoryContext context)
{
	if (set->n == set->max)
	{
		set->max = Max(8, set->max * 2);
		set->tid = set->tid == NULL ?
			MemoryContextAlloc(context, set->max * sizeof(ItemPointerData)) :
			repalloc(set->tid, set->max * sizeof(ItemPointerData));
	}
	set->tid[set->n++] = *tid;
}

static bool
has_tid(const IdemTids *set, ItemPointer tid)
{
	for (int i = 0; i < set->n; i++)
		if (ItemPointerEquals(&set->tid[i], tid))
			return true;
	return false;
}

/*
 * Take in one more visible version, given what the versions before it said.
 * The dirty snapshot that fetched it tells whose transactions are in progress
 * on it.  A live version settles everything; a held one outweighs a
 * speculative one.
 */
static IdemProbe
weigh_version(IdemStore *s, Snapshot snapshot, IdemProbe found)
{
	bool		inserting,
				deleting;

	if (snapshot->snapshot_type != SNAPSHOT_DIRTY)
		return PROBE_LIVE;

	inserting = TransactionIdIsValid(snapshot->xmin);
	deleting = TransactionIdIsValid(snapshot->xmax);
	if (!inserting && !deleting)
		return PROBE_LIVE;
	if (found == PROBE_HELD)
		return PROBE_HELD;

	s->tid = s->slot->tts_tid;
	s->holder = inserting ? snapshot->xmin : snapshot->xmax;
	s->speculative_token = snapshot->speculativeToken;
	return s->speculative_token != 0 ? PROBE_SPECULATIVE : PROBE_HELD;
}

/*
 * Read all entries of the identity.  *recycled is set if an entry led to a
 * tuple of another identity, so that nothing can be said.
 */
static IdemProbe
scan_identity(IdemStore *s, Snapshot snapshot, bool *recycled)
{
	Relation	index = index_open(s->shape.identity_index, s->lockmode);
	IndexScanDesc scan = begin_index_scan(s->rel, index, snapshot, IDEM_NKEYS);
	IdemProbe	found = PROBE_ABSENT;
	ItemPointer tid;

	*recycled = false;
	s->nothing.n = 0;
	index_rescan(scan, s->scankey, IDEM_NKEYS, NULL, 0);

	while (found != PROBE_LIVE &&
		   (tid = index_getnext_tid(scan, ForwardScanDirection)) != NULL)
	{
		bool		nothing = true;
		ItemPointerData entry = *tid;

		FAULT_POINT("between leaf and heap");

		/* a dirty snapshot may show several versions of one HOT chain */
		do
		{
			if (!index_fetch_heap(scan, s->slot))
				break;
			if (!same_identity(s))
			{
				*recycled = true;
				break;
			}
			found = weigh_version(s, snapshot, found);
			nothing = nothing && found == PROBE_SPECULATIVE;
		} while (found != PROBE_LIVE && scan->xs_heap_continue);

		if (nothing)
			remember_tid(&s->nothing, &entry, s->context);
	}

	if (found == PROBE_LIVE)
		(void) accept_version(s, ERROR);
	index_endscan(scan);
	index_close(index, NoLock);
	return found;
}

static IdemProbe
probe_with(IdemStore *s, Snapshot snapshot)
{
	IdemProbe	found;
	bool		recycled;

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		found = scan_identity(s, snapshot, &recycled);
		if (found == PROBE_LIVE || !recycled)
			return found;
	}
}

/* See the banner.  On PROBE_LIVE the slot holds the version. */
IdemProbe
idem_store_probe(IdemStore *s)
{
	SnapshotData dirty;
	IdemProbe	found;

	if (RecoveryInProgress())
	{
		Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());

		found = probe_with(s, latest);

		UnregisterSnapshot(latest);
		if (found == PROBE_LIVE)
			return found;
	}

	InitDirtySnapshot(dirty);
	found = probe_with(s, &dirty);
	FAULT_POINT("after probe");
	return found;
}

/*
 * The same, but an absence is certain, and a speculative insert, which is no
 * record yet, counts as one.
 */
IdemProbe
idem_store_probe_surely(IdemStore *s)
{
	IdemProbe	found = idem_store_probe(s);

	while (found == PROBE_ABSENT || found == PROBE_SPECULATIVE)
	{
		IdemTids	before = s->nothing;
		bool		sure = true;

		memset(&s->nothing, 0, sizeof(s->nothing));
		found = idem_store_probe(s);
		if (found == PROBE_LIVE || found == PROBE_HELD)
			break;
		for (int i = 0; sure && i < s->nothing.n; i++)
			sure = has_tid(&before, &s->nothing.tid[i]);
		if (before.tid)
			pfree(before.tid);
		if (sure)
			return PROBE_ABSENT;
	}
	return found;
}

/*
 * Where the version lies that was just inserted or updated.  Not known for a
 * table, or a file of it, that this transaction made: TRUNCATE would empty
 * that in place, and the file say nothing about what the TID means.
 */
IdemPlace
idem_store_place(IdemStore *s)
{
	IdemPlace	place = {s->rel->rd_rel->relfilenode, s->new_slot->tts_tid};

	if (s->rel->rd_createSubid != InvalidSubTransactionId ||
		new_file_since(s->rel) != InvalidSubTransactionId)
		place.file = InvalidOid;
	return place;
}

/*
 * Go back to a version that this transaction wrote, without the index.  True
 * as after PROBE_LIVE.  False if it is not there any more, because a later
 * command of the transaction changed it or rewrote the table; probe then.
 *
 * Nobody else can change or remove our uncommitted version, so while the
 * table is the same file its TID means that version or a successor of ours.
 */
bool
idem_store_revisit(IdemStore *s, const IdemPlace *place)
{
	SnapshotData self;
	ItemPointerData tid = place->tid;

	if (!OidIsValid(place->file) || place->file != s->rel->rd_rel->relfilenode)
		return false;

	InitDirtySnapshot(self);
	if (!table_tuple_fetch_row_version(s->rel, &tid, &self, s->slot) ||
		TransactionIdIsValid(self.xmin) || TransactionIdIsValid(self.xmax) ||
		!same_identity(s))
		return false;
	(void) accept_version(s, ERROR);
	return s->own;
}

/* ----------------------------------------------------------------
 * Writing
 * ---------------------------------------------------------------- */

static void
prepare_writing(IdemStore *s)
{
	MemoryContext old;

	if (s->estate)
		return;
	old = MemoryContextSwitchTo(s->context);
	s->estate = CreateExecutorState();
	s->result_rel = makeNode(ResultRelInfo);
	InitResultRelInfo(s->result_rel, s->rel, 0, NULL, 0);
	s->new_slot = table_slot_create(s->rel, NULL);
	MemoryContextSwitchTo(old);
}

/*
 * Tell the index whether an update leaves its key as it is, which lets it
 * clear old versions away before it splits a page.  The executor would find
 * out by compiling the generated column's expression for each statement; the
 * identity never changes, and the other keys mostly do.
 */
static void
hint_unchanged_keys(IdemStore *s)
{
#if PG_VERSION_NUM >= 150000
	for (int i = 0; i < s->result_rel->ri_NumIndices; i++)
	{
		IndexInfo  *info = s->result_rel->ri_IndexRelationInfo[i];

		info->ii_CheckedUnchanged = true;
		info->ii_IndexUnchanged = true;
		for (int k = 0; k < info->ii_NumIndexKeyAttrs; k++)
			if (info->ii_IndexAttrNumbers[k] < COL_SCOPE ||
				info->ii_IndexAttrNumbers[k] > COL_PRINCIPAL)
				info->ii_IndexUnchanged = false;
	}
#endif
}

/* A HOT update needs no index, so they are opened when the first entry is due. */
static void
open_indexes(IdemStore *s)
{
	MemoryContext old;

	if (s->result_rel->ri_IndexRelationDescs != NULL)
		return;
	old = MemoryContextSwitchTo(s->context);
	ExecOpenIndices(s->result_rel, false);
	hint_unchanged_keys(s);
	MemoryContextSwitchTo(old);
}

static void
put_time(Datum *values, bool *nulls, IdemColumn column, bool present, int64 time)
{
	values[column - 1] = TimestampTzGetDatum(time);
	nulls[column - 1] = !present;
}

/* Fill new_slot with the record as it is to be. */
static void
form_record(IdemStore *s, const IdemRecord *rec, const IdemPayload *payload)
{
	TupleTableSlot *slot = s->new_slot;
	Datum	   *values = slot->tts_values;
	bool	   *nulls = slot->tts_isnull;
	bytea	   *fingerprint;
	pg_uuid_t  *token = palloc(sizeof(pg_uuid_t));
	int64		sweep_at;
	bool		sweepable = idem_sweep_at(rec, &sweep_at);

	ExecClearTuple(slot);
	memset(nulls, true, slot->tts_tupleDescriptor->natts * sizeof(bool));

	for (int i = 0; i < IDEM_NKEYS; i++)
	{
		values[i] = s->key.part[i];
		nulls[i] = false;
	}

	values[COL_STATE - 1] = CStringGetTextDatum(state_names[rec->state]);
	values[COL_ATTEMPT - 1] = Int32GetDatum(rec->attempt);
	memcpy(token->data, rec->token, IDEM_TOKEN_LEN);
	values[COL_TOKEN - 1] = UUIDPGetDatum(token);
	values[COL_TTL - 1] = interval_datum(rec->ttl);
	values[COL_ON_ABANDON - 1] = CStringGetTextDatum(abandon_names[rec->on_abandon]);
	values[COL_RECOVERED - 1] = BoolGetDatum(rec->recovered);
	values[COL_PROGRESSED - 1] = BoolGetDatum(rec->progressed);
	nulls[COL_STATE - 1] = nulls[COL_ATTEMPT - 1] = nulls[COL_TOKEN - 1] =
		nulls[COL_TTL - 1] = nulls[COL_ON_ABANDON - 1] =
		nulls[COL_RECOVERED - 1] = nulls[COL_PROGRESSED - 1] = false;

	put_time(values, nulls, COL_CREATED_AT, true, rec->created_at);
	put_time(values, nulls, COL_CLAIMED_AT, true, rec->claimed_at);
	put_time(values, nulls, COL_EXPIRES_AT, true, rec->expires_at);
	put_time(values, nulls, COL_LEASE_EXPIRES_AT, rec->has_lease, rec->lease_expires_at);
	put_time(values, nulls, COL_FINISHED_AT, rec->has_finished, rec->finished_at);
	put_time(values, nulls, COL_SWEEP_AT, sweepable, sweep_at);

	if (rec->has_lease_length)
	{
		values[COL_LEASE - 1] = interval_datum(rec->lease);
		nulls[COL_LEASE - 1] = false;
	}
	if (rec->has_fingerprint)
	{
		fingerprint = palloc(VARHDRSZ + IDEM_FINGERPRINT_LEN);
		SET_VARSIZE(fingerprint, VARHDRSZ + IDEM_FINGERPRINT_LEN);
		memcpy(VARDATA(fingerprint), rec->fingerprint, IDEM_FINGERPRINT_LEN);
		values[COL_FINGERPRINT - 1] = PointerGetDatum(fingerprint);
		nulls[COL_FINGERPRINT - 1] = false;
	}
	for (int i = 0; i < IDEM_NFIELDS; i++)
	{
		values[field_column[i] - 1] = payload->value[i];
		nulls[field_column[i] - 1] = payload->isnull[i];
	}
}

/*
 * Columns that users added keep what the old version has, but not into
 * another life: swept first, they would start out null.
 */
static void
keep_added_columns(IdemStore *s, const IdemRecord *next)
{
	int			natts = s->new_slot->tts_tupleDescriptor->natts;

	if (next->created_at != s->rec.created_at)
		return;

	for (int i = IDEM_NATTS; i < natts; i++)
	{
		s->new_slot->tts_values[i] = s->slot->tts_values[i];
		s->new_slot->tts_isnull[i] = s->slot->tts_isnull[i];
	}
}

static void
store_new_slot(IdemStore *s)
{
	ExecStoreVirtualTuple(s->new_slot);
	idem_check_row(s->rel, &s->shape, s->new_slot);
}

static void
after_write(IdemStore *s)
{
	ResetPerTupleExprContext(s->estate);
	CommandCounterIncrement();
}

static void
insert_entries(IdemStore *s, bool update, bool *conflict, bool only_summarizing)
{
	open_indexes(s);
#if PG_VERSION_NUM >= 160000
	(void) ExecInsertIndexTuples(s->result_rel, s->new_slot, s->estate, update,
								 conflict != NULL, conflict, NIL, only_summarizing);
#else
	(void) ExecInsertIndexTuples(s->result_rel, s->new_slot, s->estate, update,
								 conflict != NULL, conflict, NIL);
#endif
	FAULT_POINT("after index insert");
}

/*
 * Insert the record.  False: another session's version is in the way, so
 * nothing was inserted; probe again.
 */
bool
idem_store_insert(IdemStore *s, const IdemRecord *next, const IdemPayload *payload)
{
	TransactionId xid = GetCurrentTransactionId();
	bool		conflict = false;
	uint32		token;

	prepare_writing(s);
	form_record(s, next, payload);
	store_new_slot(s);

	/* others wait on the token until the tuple is confirmed or withdrawn */
	token = SpeculativeInsertionLockAcquire(xid);
	table_tuple_insert_speculative(s->rel, s->new_slot, GetCurrentCommandId(true),
								   0, NULL, token);
	FAULT_POINT("after heap insert");
	insert_entries(s, false, &conflict, false);
	FAULT_POINT("before confirm");
	table_tuple_complete_speculative(s->rel, s->new_slot, token, !conflict);
	SpeculativeInsertionLockRelease(xid);
	FAULT_POINT("after confirm");

	after_write(s);
	return !conflict;
}

static IdemChange
change_result(TM_Result result)
{
	switch (result)
	{
		case TM_Ok:
			return CHANGE_DONE;
		case TM_BeingModified:
		case TM_WouldBlock:
			return CHANGE_BUSY;
		case TM_Updated:
		case TM_Deleted:
		case TM_SelfModified:
			return CHANGE_MOVED;
		default:
			elog(ERROR, "unexpected result %d of a change to an idempotency record", result);
	}
}

/*
 * A statement that writes the table itself, such as in WITH, and calls us in
 * the middle of it: the heap does not let a command change a version that the
 * same command wrote.
 */
static void
refuse_same_command(IdemStore *s)
{
	HeapTuple	tuple = ExecFetchSlotHeapTuple(s->slot, false, NULL);

	if (!s->own || HeapTupleHeaderGetCmin(tuple->t_data) < GetCurrentCommandId(false))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
			 errmsg("record of idempotency key \"%s\" in scope \"%s\" was written by the statement that calls the function",
					text_in_slot(s, COL_KEY), text_in_slot(s, COL_SCOPE)),
			 errhint("Write to the table and call the function in separate statements."),
			 errtable(s->rel)));
}

/*
 * Replace the version that the probe found.  Waits, as an UPDATE does, if
 * somebody else has locked it.
 */
IdemChange
idem_store_update(IdemStore *s, const IdemRecord *next, const IdemPayload *payload)
{
#if PG_VERSION_NUM >= 160000
	TU_UpdateIndexes indexes = TU_None;
#else
	bool		indexes = false;
#endif
	TM_FailureData tmfd;
	LockTupleMode mode;
	IdemChange	change;

	refuse_same_command(s);
	CheckCmdReplicaIdentity(s->rel, CMD_UPDATE);
	prepare_writing(s);
	form_record(s, next, payload);
	keep_added_columns(s, next);
	store_new_slot(s);

	change = change_result(table_tuple_update(s->rel, &s->tid, s->new_slot,
											  GetCurrentCommandId(true),
											  InvalidSnapshot, InvalidSnapshot, true,
											  &tmfd, &mode, &indexes));
	if (change != CHANGE_DONE)
		return change;
	FAULT_POINT("after heap update");

#if PG_VERSION_NUM >= 160000
	if (indexes != TU_None)
		insert_entries(s, true, NULL, indexes == TU_Summarizing);
#else
	if (indexes)
		insert_entries(s, true, NULL, false);
#endif
	after_write(s);
	return CHANGE_DONE;
}

/* Delete the version that the probe or scan found; waits as above. */
IdemChange
idem_store_delete(IdemStore *s)
{
	TM_FailureData tmfd;
	IdemChange	change;

	refuse_same_command(s);
	CheckCmdReplicaIdentity(s->rel, CMD_DELETE);
	change = change_result(table_tuple_delete(s->rel, &s->tid, GetCurrentCommandId(true),
											  InvalidSnapshot, InvalidSnapshot, true,
											  &tmfd, false));
	if (change != CHANGE_DONE)
		return change;
	FAULT_POINT("after heap delete");
	CommandCounterIncrement();
	return CHANGE_DONE;
}

/* Was the version without a locker when it was looked at?  A hint. */
bool
idem_store_looks_unlocked(IdemStore *s)
{
	HeapTuple	tuple = ExecFetchSlotHeapTuple(s->slot, false, NULL);
	Buffer		buffer = ((BufferHeapTupleTableSlot *) s->slot)->buffer;
	uint16		infomask;
	TransactionId locker;

	if (s->own)
		return true;

	/* others may change the two at any time; they must belong together */
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	infomask = tuple->t_data->t_infomask;
	locker = HeapTupleHeaderGetRawXmax(tuple->t_data);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);

	if ((infomask & HEAP_XMAX_INVALID) != 0)
		return true;
	if ((infomask & HEAP_XMAX_IS_MULTI) != 0)
		return !MultiXactIdIsRunning(locker, HEAP_XMAX_IS_LOCKED_ONLY(infomask));
	return TransactionIdIsCurrentTransactionId(locker) || !TransactionIdIsInProgress(locker);
}

/*
 * Lock the version that the probe found until the transaction ends.
 * CHANGE_DONE: nobody else can change it now, and it is still current.  Our
 * own uncommitted version needs no lock: to everyone else it is held.
 */
IdemChange
idem_store_lock(IdemStore *s, LockTupleMode mode, LockWaitPolicy policy)
{
	TM_FailureData tmfd;
	IdemChange	change;

	if (s->own)
		return CHANGE_DONE;
	if (s->lock_slot == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(s->context);

		s->lock_slot = table_slot_create(s->rel, NULL);
		MemoryContextSwitchTo(old);
	}
	change = change_result(table_tuple_lock(s->rel, &s->tid, InvalidSnapshot, s->lock_slot,
											GetCurrentCommandId(true), mode, policy, 0, &tmfd));
	FAULT_POINT("after lock");
	return change;
}

/* Wait for the holder's transaction to end, as an UPDATE would. */
void
idem_store_await_holder(IdemStore *s)
{
	idem_store_release(s);
	FAULT_POINT("in wait");
	XactLockTableWait(s->holder, s->rel, &s->tid, XLTW_Update);
}

/* Wait until a speculative insert is confirmed or withdrawn. */
void
idem_store_await_speculative(IdemStore *s)
{
	idem_store_release(s);
	FAULT_POINT("in wait");
	(void) SpeculativeInsertionWait(s->holder, s->speculative_token);
}

/* ----------------------------------------------------------------
 * Scans in order of a time: what the sweep and its report walk over
 * ---------------------------------------------------------------- */

/* Walk the index on column (sweep_at or lease_expires_at), from <= time <= upto. */
void
idem_store_scan_begin(IdemStore *s, AttrNumber column, int64 from, int64 upto)
{
	ScanKeyData bounds[2];

	s->time_index = index_open(column == COL_SWEEP_AT ?
							   s->shape.sweep_index : s->shape.lease_index, s->lockmode);
	ScanKeyInit(&bounds[0], 1, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(from));
	ScanKeyInit(&bounds[1], 1, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE,
				TimestampTzGetDatum(upto));
	InitDirtySnapshot(s->dirty);
	s->scan = begin_index_scan(s->rel, s->time_index, &s->dirty, 2);
	index_rescan(s->scan, bounds, 2, NULL, 0);
}

/*
 * The next committed version, or our own; false at the end.  One that another
 * transaction has inserted and not committed is passed over, and so, with a
 * warning, is one that cannot be read: it must not stop the sweep for good.
 */
bool
idem_store_scan_next(IdemStore *s)
{
	while (index_getnext_slot(s->scan, ForwardScanDirection, s->slot))
	{
		CHECK_FOR_INTERRUPTS();
		if (TransactionIdIsValid(s->dirty.xmin))
			continue;
		s->changing = TransactionIdIsValid(s->dirty.xmax);
		if (accept_version(s, WARNING))
			return true;
	}
	return false;
}

void
idem_store_scan_end(IdemStore *s)
{
	index_endscan(s->scan);
	index_close(s->time_index, NoLock);
	idem_store_release(s);
}
