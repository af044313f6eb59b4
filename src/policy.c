/*
 * policy.c
 *		What a scope's policy says: who may use it, and its defaults.
 *
 * Every client's call asks for the policy of its scope, so idem_policy is not
 * read but remembered: all its rows, in the session's memory.  A scope is an
 * operation, so they are few; if there are none, a call tests a flag.
 *
 * When is what is remembered still true?  Rows are changed by plain DML, of
 * which nobody is told.  So triggers on the table (idem_policy_changed() in
 * idempotency.c) register a relation cache invalidation before each row is
 * changed.  PostgreSQL sends it to all sessions when, and only if, that
 * transaction commits (by COMMIT PREPARED too, and to standbys in the commit
 * record), after its changes have become visible.  Each call takes in what
 * was sent so far before it looks, so a call that begins after the COMMIT
 * has returned goes by the new rows, whatever the isolation level and however
 * old its transaction: a policy is a setting, like a privilege, and not data
 * of a snapshot.
 *
 * Reading.  Invalidations are counted before the snapshot is taken.  Changes
 * that were announced before are visible to it; if any is announced while the
 * table is read, what was read serves this call and is not kept.
 *
 * The transaction that changes policies sees its own changes, which others
 * must not and a rollback undoes.  So from its first change until its end it
 * reads the table at each call and keeps nothing.  That the trigger runs
 * before the row is written matters: no row of ours can be read and kept by a
 * call in the very statement that writes it.
 *
 * That no change can pass the triggers unnoticed is for shape.c to check,
 * each time the table is read: they are there, enabled always (so that
 * logical replication and session_replication_role make no exception), for
 * all rows, and call our function.  Triggers are altered by DDL, which sends
 * the invalidation itself.  Other triggers may stand beside them, such as an
 * audit's: they act on the DML as anywhere, and reading skips nothing of
 * theirs.
 *
 * The rows are those that a snapshot of this moment shows, but they are not
 * read by a scan under that snapshot: in a SERIALIZABLE transaction it would
 * take predicate locks, and an operator's change of a policy would make
 * claims fail.
 *
 * A role is kept by name and looked up at each use.  A dump restored where
 * the role does not exist, a role dropped or renamed then closes the scope to
 * all but superusers, where a regrole would fail the whole restore, leaving
 * all scopes open, or come to mean another role.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "args.h"
#include "fault.h"
#include "policy.h"
#include "record.h"
#include "shape.h"

#define UNSET			(-1)

typedef struct Policy
{
	char		scope[IDEM_MAX_TEXT + 1];	/* the hash key */
	int64		ttl;			/* UNSET where the row is null, as below */
	int64		lease;
	int64		wait;
	int			on_abandon;
	NameData	role;			/* empty: anyone who may call */
} Policy;

static HTAB *policies = NULL;	/* by scope; NULL if there are none */
static MemoryContext context = NULL;	/* of policies */
static Oid	policies_of = InvalidOid;	/* the record table that they go with */
static Oid	policies_from = InvalidOid; /* the table that they were read from */
static bool valid = false;
static uint64 invalidations = 0;
static bool changing = false;	/* by this transaction */

/* ----------------------------------------------------------------
 * Invalidation
 * ---------------------------------------------------------------- */

static void
forget_policies(Datum arg, Oid relid)
{
	invalidations++;
	if (relid == InvalidOid || relid == policies_from)
		valid = false;
}

/* Own changes are now everybody's, or nobody's. */
static void
at_transaction_end(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			if (changing)
				valid = false;
			changing = false;
			break;
		default:
			break;
	}
}

static void
register_callbacks(void)
{
	static bool registered = false;

	if (registered)
		return;
	CacheRegisterRelcacheCallback(forget_policies, (Datum) 0);
	RegisterXactCallback(at_transaction_end, NULL);
	registered = true;
}

/* A row of the table is about to be changed, or all of them to be truncated. */
void
idem_policy_will_change(Oid policy_table)
{
	register_callbacks();
	changing = true;
	CacheInvalidateRelcacheByRelid(policy_table);
}

/* ----------------------------------------------------------------
 * Reading
 * ---------------------------------------------------------------- */

/* The table beside idem_record, never by search_path. */
static Oid
policy_table_beside(Oid record_table)
{
	Oid			table = idem_table_beside(record_table, get_rel_namespace, "idem_policy");
	const char *name;

	if (OidIsValid(table))
		return table;
	name = get_rel_name(record_table);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"idem_policy\" not found in the schema of table \"%s\"",
					name ? name : "idem_record"),
			 errhint("Restore the table that CREATE EXTENSION idempotency made.")));
}

/*
 * The constraints of the table see to what is checked here again, for they may
 * have been dropped.  A row that says what cannot be meant stops every call,
 * as nobody can say what it was to restrict.
 */
static void
refuse_row(Relation rel, TupleTableSlot *slot, const char *why)
{
	bool		isnull;
	char	   *scope = TextDatumGetCString(slot_getattr(slot, POLICY_SCOPE, &isnull));

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("policy of scope \"%.*s\" cannot be used",
					pg_mbcliplen(scope, strlen(scope), IDEM_MAX_TEXT), scope),
			 errdetail_internal("%s", why),
			 errhint("Correct or delete the row in idem_policy, and restore the table's constraints."),
			 errtable(rel)));
}

/* min is 0 or 1. */
static int64
duration_or_unset(Relation rel, TupleTableSlot *slot, IdemPolicyColumn column, int64 min,
				  const char *why)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, column, &isnull);
	int64		usecs;

	if (isnull)
		return UNSET;
	if (!idem_duration_usecs(DatumGetIntervalP(value), &usecs) || usecs < min)
		refuse_row(rel, slot, why);
	return usecs;
}

static int
abandon_or_unset(Relation rel, TupleTableSlot *slot)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, POLICY_ON_ABANDON, &isnull);
	IdemAbandon on_abandon;
	text	   *name;

	if (isnull)
		return UNSET;
	name = DatumGetTextPP(value);
	if (!idem_abandon_from_name(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name), &on_abandon))
		refuse_row(rel, slot, "Its on_abandon is neither unknown nor retry.");
	return on_abandon;
}

/* As a string; false if it is longer than a scope can be. */
static bool
scope_name(Datum scope, char *to)
{
	text	   *t = DatumGetTextPP(scope);
	int			len = VARSIZE_ANY_EXHDR(t);

	if (len > IDEM_MAX_TEXT)
		return false;
	memcpy(to, VARDATA_ANY(t), len);
	to[len] = '\0';
	return true;
}

static void
remember(HTAB *table, Relation rel, TupleTableSlot *slot)
{
	char		scope[IDEM_MAX_TEXT + 1];
	Policy	   *policy;
	Datum		role;
	bool		isnull;

	if (!scope_name(slot_getattr(slot, POLICY_SCOPE, &isnull), scope))
		refuse_row(rel, slot, "Its scope is too long.");
	policy = hash_search(table, scope, HASH_ENTER, NULL);
	policy->ttl = duration_or_unset(rel, slot, POLICY_TTL, 1, "Its ttl is out of range.");
	policy->lease = duration_or_unset(rel, slot, POLICY_LEASE, 0, "Its lease is out of range.");
	policy->wait = duration_or_unset(rel, slot, POLICY_WAIT, 0, "Its wait is out of range.");
	policy->on_abandon = abandon_or_unset(rel, slot);
	role = slot_getattr(slot, POLICY_ROLE, &isnull);
	namestrcpy(&policy->role, isnull ? "" : NameStr(*DatumGetName(role)));
}

static HTAB *
make_hash(MemoryContext memory)
{
	HASHCTL		ctl = {
		.keysize = IDEM_MAX_TEXT + 1,
		.entrysize = sizeof(Policy),
		.hcxt = memory,
	};

	return hash_create("idempotency policies", 16, &ctl, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

/* All rows as of now.  NULL if there are none. */
static HTAB *
read_rows(Relation rel, MemoryContext memory)
{
	Snapshot	now = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, SnapshotAny, 0, NULL);
	HTAB	   *found = NULL;

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		if (!table_tuple_satisfies_snapshot(rel, slot, now))
			continue;
		if (found == NULL)
			found = make_hash(memory);
		remember(found, rel, slot);
		FAULT_POINT("in policy");
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(now);
	return found;
}

/*
 * Read the table.  The lock on it ends here, so that no claim keeps an
 * operator from altering it.  Errors: 0A000, 55000.
 */
static void
read_policies(Oid record_table)
{
	Relation	rel;
	MemoryContext fresh;
	uint64		seen;

	register_callbacks();
	valid = false;
	rel = idem_table_open(policy_table_beside(record_table), AccessShareLock, "idem_policy");
	policies_from = RelationGetRelid(rel);
	seen = invalidations;
	idem_check_policy_table(rel);

	fresh = AllocSetContextCreate(CurrentMemoryContext, "idempotency policies",
								  ALLOCSET_SMALL_SIZES);
	policies_of = InvalidOid;
	policies = read_rows(rel, fresh);
	if (context)
		MemoryContextDelete(context);
	MemoryContextSetParent(fresh, CacheMemoryContext);
	context = fresh;
	policies_of = record_table;
	table_close(rel, AccessShareLock);
	valid = seen == invalidations && !changing;
}

/* The policy of a scope, NULL if it has none.  Good until the next call. */
static const Policy *
find_policy(Oid record_table, Datum scope)
{
	char		name[IDEM_MAX_TEXT + 1];

	AcceptInvalidationMessages();
	if (!valid || policies_of != record_table)
		read_policies(record_table);
	if (policies == NULL)
		return NULL;
	(void) scope_name(scope, name);
	return hash_search(policies, name, HASH_FIND, NULL);
}

/* ----------------------------------------------------------------
 * Using
 * ---------------------------------------------------------------- */

/* Is the current user a member of the role, with its privileges? */
static void
require_role(const Policy *policy)
{
	Oid			role;

	if (policy == NULL || NameStr(policy->role)[0] == '\0')
		return;
	role = get_role_oid(NameStr(policy->role), true);
	if (OidIsValid(role) ? has_privs_of_role(GetUserId(), role) : superuser())
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for scope \"%s\"", policy->scope),
			 OidIsValid(role) ?
			 errhint("Only members of role \"%s\" may use this scope, as its row in idem_policy says.",
					 NameStr(policy->role)) :
			 errhint("The row of this scope in idem_policy names role \"%s\", which does not exist.",
					 NameStr(policy->role))));
}

static void
fill_defaults(const Policy *policy, IdemDefaults *to)
{
	to->ttl = idem_setting_ttl * USECS_PER_SEC;
	to->once_ttl = idem_setting_once_ttl * USECS_PER_SEC;
	to->lease = idem_setting_lease * INT64CONST(1000);
	to->wait = idem_setting_wait * INT64CONST(1000);
	to->on_abandon = idem_setting_on_abandon;
	if (policy == NULL)
		return;

	if (policy->ttl != UNSET)
		to->ttl = to->once_ttl = policy->ttl;
	if (policy->lease != UNSET)
		to->lease = policy->lease;
	if (policy->wait != UNSET)
		to->wait = policy->wait;
	if (policy->on_abandon != UNSET)
		to->on_abandon = policy->on_abandon;
}

/* For a client's call: may the current user use the scope?  Errors: 42501. */
void
idem_policy_admit(Oid record_table, Datum scope, IdemDefaults *defaults)
{
	const Policy *policy = find_policy(record_table, scope);

	require_role(policy);
	fill_defaults(policy, defaults);
}

/* For an operator's call, which any scope is open to. */
void
idem_policy_defaults(Oid record_table, Datum scope, IdemDefaults *defaults)
{
	fill_defaults(find_policy(record_table, scope), defaults);
}
