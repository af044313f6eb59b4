/*
 * record.h
 *		Storage of idempotency records: probe, insert, change, delete.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_RECORD_H
#define IDEM_RECORD_H

#include "access/genam.h"
#include "access/skey.h"
#include "datatype/timestamp.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "nodes/lockoptions.h"
#include "utils/rel.h"

#include "shape.h"
#include "transition.h"

/* Long enough for anyone; short enough that no sum of times can overflow. */
#define IDEM_MAX_DURATION	(INT64CONST(36525) * 10 * USECS_PER_DAY)

/* The identity of a request, as text datums in the order of the columns. */
typedef struct IdemKey
{
	Datum		part[IDEM_NKEYS];
} IdemKey;

/* The part of a record that is carried, never decided on. */
typedef enum IdemField
{
	FIELD_CHECKPOINT,
	FIELD_CHECKPOINT_DATA,
	FIELD_RESPONSE_CODE,
	FIELD_RESPONSE_BODY,
	FIELD_RESPONSE_HEADERS,
	FIELD_RESPONSE_BYTES,
	IDEM_NFIELDS,
} IdemField;

typedef struct IdemPayload
{
	Datum		value[IDEM_NFIELDS];
	bool		isnull[IDEM_NFIELDS];
} IdemPayload;

typedef enum IdemProbe
{
	PROBE_ABSENT,				/* a hint only: see record.c */
	PROBE_LIVE,					/* a settled version: rec, payload, own are set */
	PROBE_HELD,					/* by the transaction in holder */
	PROBE_SPECULATIVE,			/* someone's insert is not yet confirmed */
} IdemProbe;

typedef enum IdemChange
{
	CHANGE_DONE,
	CHANGE_BUSY,				/* locked by somebody else */
	CHANGE_MOVED,				/* no longer the live version: probe again */
} IdemChange;

typedef struct IdemTids
{
	int			n;
	int			max;
	ItemPointerData *tid;
} IdemTids;

/* Where this transaction's own version of a record lies. */
typedef struct IdemPlace
{
	Oid			file;			/* the table's relfilenode; invalid: not known */
	ItemPointerData tid;
} IdemPlace;

typedef struct IdemStore
{
	Relation	rel;
	IdemShape	shape;
	LOCKMODE	lockmode;
	MemoryContext context;		/* the call's: what lasts until the store is closed */
	IdemKey		key;
	ScanKeyData scankey[IDEM_NKEYS];

	/* what the last probe or scan step found */
	TupleTableSlot *slot;
	ItemPointerData tid;
	IdemRecord	rec;
	bool		own;			/* this transaction wrote the version */
	bool		changing;		/* scans only: another transaction is changing it */
	TransactionId holder;
	uint32		speculative_token;
	IdemTids	nothing;		/* entries that led to no version that counts */

	/* scans over an index on time */
	Relation	time_index;
	IndexScanDesc scan;
	SnapshotData dirty;

	/* set up by the first write */
	EState	   *estate;
	ResultRelInfo *result_rel;
	TupleTableSlot *new_slot;
	TupleTableSlot *lock_slot;
} IdemStore;

extern Oid	idem_table_beside(Oid object, Oid (*schema_of) (Oid), const char *name);
extern Oid	idem_table_of(Oid function);
extern void idem_store_open(IdemStore *s, Oid table, bool writing);
extern void idem_store_set_key(IdemStore *s, const IdemKey *key);
extern void idem_store_release(IdemStore *s);
extern void idem_store_close(IdemStore *s);

extern IdemProbe idem_store_probe(IdemStore *s);
extern IdemProbe idem_store_probe_surely(IdemStore *s);
extern IdemPlace idem_store_place(IdemStore *s);
extern bool idem_store_revisit(IdemStore *s, const IdemPlace *place);
extern void idem_store_payload(IdemStore *s, IdemPayload *payload);
extern bool idem_store_made_by_statement(IdemStore *s);

extern bool idem_store_insert(IdemStore *s, const IdemRecord *next, const IdemPayload *payload);
extern IdemChange idem_store_update(IdemStore *s, const IdemRecord *next,
									const IdemPayload *payload);
extern IdemChange idem_store_delete(IdemStore *s);
extern bool idem_store_looks_unlocked(IdemStore *s);
extern IdemChange idem_store_lock(IdemStore *s, LockTupleMode mode, LockWaitPolicy policy);
extern void idem_store_await_holder(IdemStore *s);
extern void idem_store_await_speculative(IdemStore *s);

extern void idem_store_scan_begin(IdemStore *s, AttrNumber column, int64 from, int64 upto);
extern bool idem_store_scan_next(IdemStore *s);
extern void idem_store_scan_end(IdemStore *s);

extern const char *idem_state_name(IdemState state);
extern bool idem_state_from_name(const char *name, size_t len, IdemState *state);
extern bool idem_abandon_from_name(const char *name, size_t len, IdemAbandon *on_abandon);

extern bool idem_interval_usecs(const Interval *interval, int64 *usecs);
extern bool idem_duration_usecs(const Interval *interval, int64 *usecs);

#endif							/* IDEM_RECORD_H */
