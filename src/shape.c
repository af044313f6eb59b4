/*
 * shape.c
 *		Refuse a table that the direct path would get wrong.
 *
 * record.c writes heap and indexes itself, so whatever the executor would
 * have done besides (triggers, rules, row security, foreign keys, foreign
 * and partitioned storage) would silently not happen.  Instead of skipping
 * anything, every call checks that there is nothing to skip.
 *
 * The check is made once per state of the relation cache entry: any DDL on
 * the table or its indexes sends an invalidation, which makes the next call
 * look again.  A lock on the table is held from before the check until after
 * the last use, and DDL that matters here needs a conflicting lock or, for
 * CREATE INDEX and REINDEX CONCURRENTLY, waits for its holders.
 *
 * idem_policy is only read directly.  What could go wrong there is that rows
 * are hidden from those who look, kept elsewhere, or changed without a word
 * to the sessions that remember them: see policy.c, which asks each time it
 * reads the table.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "nodes/primnodes.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "shape.h"

typedef struct ColumnShape
{
	const char *name;
	Oid			type;
	bool		notnull;
} ColumnShape;

static const ColumnShape columns[IDEM_NATTS] = {
	{"scope", TEXTOID, true},
	{"key", TEXTOID, true},
	{"principal", TEXTOID, true},
	{"state", TEXTOID, true},
	{"attempt", INT4OID, true},
	{"token", UUIDOID, true},
	{"created_at", TIMESTAMPTZOID, true},
	{"claimed_at", TIMESTAMPTZOID, true},
	{"expires_at", TIMESTAMPTZOID, true},
	{"ttl", INTERVALOID, true},
	{"on_abandon", TEXTOID, true},
	{"recovered", BOOLOID, true},
	{"progressed", BOOLOID, true},
	{"lease", INTERVALOID, false},
	{"lease_expires_at", TIMESTAMPTZOID, false},
	{"finished_at", TIMESTAMPTZOID, false},
	{"fingerprint", BYTEAOID, false},
	{"checkpoint", TEXTOID, false},
	{"checkpoint_data", JSONBOID, false},
	{"response_code", INT4OID, false},
	{"response_body", TEXTOID, false},
	{"response_headers", JSONBOID, false},
	{"response_bytes", BYTEAOID, false},
	{"sweep_at", TIMESTAMPTZOID, false},
};

static const ColumnShape policy_columns[IDEM_POLICY_NATTS] = {
	{"scope", TEXTOID, true},
	{"ttl", INTERVALOID, false},
	{"lease", INTERVALOID, false},
	{"wait", INTERVALOID, false},
	{"on_abandon", TEXTOID, false},
	{"role", NAMEOID, false},
};

/* By name, as the relation cache sorts them. */
static const char *const checks[] = {
	"idem_record_fingerprint_check",
	"idem_record_identity_check",
	"idem_record_lease_check",
	"idem_record_response_check",
	"idem_record_state_check",
};

static IdemShape shape;
static Oid	shape_relid = InvalidOid;	/* the table that shape is of */
static uint64 invalidations = 0;

static void
forget_shape(Datum arg, Oid relid)
{
	invalidations++;
	if (relid == InvalidOid || relid == shape_relid)
		shape_relid = InvalidOid;
}

/*
 * Open and lock a table that was just found by its name.  Whoever drops it may
 * hold the lock that we wait for: then it is gone when we get it.  What kind
 * of relation it is is for the checks below.  Errors: 55000.
 */
Relation
idem_table_open(Oid table, LOCKMODE mode, const char *name)
{
	Relation	rel = try_relation_open(table, mode);

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" was dropped during the call", name),
				 errhint("Call again once the extension is there.")));
	return rel;
}

static void
refuse(Relation rel, int sqlstate, const char *why)
{
	ereport(ERROR,
			(errcode(sqlstate),
			 errmsg("table \"%s\" cannot be used by the extension",
					RelationGetRelationName(rel)),
			 errdetail_internal("%s", why),
			 errhint("Undo the change; the extension goes to this table directly and would bypass what it does not know."),
			 errtable(rel)));
}

static void
check_storage(Relation rel)
{
	Form_pg_class form = rel->rd_rel;

	/* relhassubclass stays set when the last child is gone */
	if (form->relkind != RELKIND_RELATION || form->relispartition ||
		(form->relhassubclass &&
		 find_inheritance_children(RelationGetRelid(rel), NoLock) != NIL))
		refuse(rel, ERRCODE_FEATURE_NOT_SUPPORTED,
			   "It is not a plain table: partitioned, inherited and foreign tables are not supported.");
	if (form->relpersistence != RELPERSISTENCE_PERMANENT)
		refuse(rel, ERRCODE_FEATURE_NOT_SUPPORTED,
			   "It is not logged: a crash would empty it.");
	if (form->relam != HEAP_TABLE_AM_OID)
		refuse(rel, ERRCODE_FEATURE_NOT_SUPPORTED,
			   "Its table access method is not heap.");
}

static void
check_row_security(Relation rel)
{
	if (rel->rd_rel->relrowsecurity || rel->rd_rel->relforcerowsecurity)
		refuse(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "Row-level security is enabled on it.");
}

/* What the executor would do beside writing the row. */
static void
check_side_effects(Relation rel)
{
	check_row_security(rel);
	/* triggers include those of foreign keys and of distributed tables */
	if (rel->trigdesc != NULL)
		refuse(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "It has a trigger or a foreign key.");
	if (rel->rd_rules != NULL)
		refuse(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "It has a rule.");
}

/* Not null, as all rows are known to be. */
static bool
is_not_null(TupleDesc desc, int i)
{
#if PG_VERSION_NUM >= 180000
	/* where the constraint is NOT VALID, rows from before it may be null */
	if (TupleDescCompactAttr(desc, i)->attnullability == ATTNULLABLE_INVALID)
		return false;
#endif
	return TupleDescAttr(desc, i)->attnotnull;
}

static void
check_column(Relation rel, int i, const ColumnShape *wanted, bool generated, bool bytewise)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), i);

	if (att->attisdropped ||
		strcmp(NameStr(att->attname), wanted->name) != 0 ||
		att->atttypid != wanted->type ||
		att->atttypmod != -1 ||
		is_not_null(RelationGetDescr(rel), i) != wanted->notnull ||
		(att->attgenerated != '\0') != generated ||
		(bytewise && att->attcollation != C_COLLATION_OID))
		refuse(rel, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
			   "A column was dropped, renamed or changed.");
}

static void
check_columns(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	if (desc->natts < IDEM_NATTS)
		refuse(rel, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "A column is missing.");

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (i >= IDEM_NATTS)
		{
			/* an added column stays null; anything else would be skipped */
			if (!att->attisdropped &&
				(att->attnotnull || att->atthasdef || att->attidentity || att->attgenerated ||
				 get_typtype(att->atttypid) == TYPTYPE_DOMAIN))
				refuse(rel, ERRCODE_FEATURE_NOT_SUPPORTED,
					   "A column was added that is not null, generated, of a domain, or has a default.");
			continue;
		}
		check_column(rel, i, &columns[i], i + 1 == COL_SWEEP_AT, i < IDEM_NKEYS);
	}
}

/* Exactly the constraints of the install script. */
static void
check_constraints(Relation rel)
{
	TupleConstr *constr = RelationGetDescr(rel)->constr;
	int			n = constr ? constr->num_check : 0;

	if (n > (int) lengthof(checks))
		refuse(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "A constraint was added.");
	for (int i = 0; i < (int) lengthof(checks); i++)
		if (i >= n || strcmp(constr->check[i].ccname, checks[i]) != 0)
			refuse(rel, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
				   "A constraint was dropped or renamed.");
}

/* Unique on the identity, compared bytewise, nothing less and nothing else. */
static bool
is_identity_index(Relation index)
{
	Form_pg_index form = index->rd_index;
	bool		seen[IDEM_NKEYS] = {false};

	if (form->indnkeyatts != IDEM_NKEYS ||
		RelationGetIndexPredicate(index) != NIL)
		return false;
	for (int i = 0; i < IDEM_NKEYS; i++)
	{
		AttrNumber	attno = form->indkey.values[i];

		if (attno < COL_SCOPE || attno > COL_PRINCIPAL || seen[attno - 1] ||
			index->rd_indcollation[i] != C_COLLATION_OID)
			return false;
		seen[attno - 1] = true;
	}
	return true;
}

/* Is it our primary key's order, so that the scan keys fit? */
static bool
is_probe_index(Relation index)
{
	Form_pg_index form = index->rd_index;

	for (int i = 0; i < IDEM_NKEYS; i++)
		if (form->indkey.values[i] != COL_SCOPE + i ||
			index->rd_opfamily[i] != TEXT_BTREE_FAM_OID)
			return false;
	return true;
}

/* An index on just this column, partial by its being not null. */
static bool
is_time_index(Relation index, AttrNumber attno)
{
	List	   *predicate = RelationGetIndexPredicate(index);
	NullTest   *test;
	Var		   *var;

	if (index->rd_rel->relam != BTREE_AM_OID || index->rd_index->indisunique ||
		index->rd_index->indnkeyatts != 1 ||
		index->rd_index->indkey.values[0] != attno ||
		(index->rd_indoption[0] & INDOPTION_DESC) != 0 ||
		list_length(predicate) != 1 || !IsA(linitial(predicate), NullTest))
		return false;
	test = linitial_node(NullTest, predicate);
	var = (Var *) test->arg;
	return test->nulltesttype == IS_NOT_NULL && IsA(var, Var) && var->varattno == attno;
}

static void
check_index(Relation rel, Relation index, IdemShape *found)
{
	Form_pg_index form = index->rd_index;

	if (form->indisexclusion || (form->indisunique && !form->indimmediate))
		refuse(rel, ERRCODE_FEATURE_NOT_SUPPORTED,
			   "It has a deferrable or an exclusion constraint.");
	if (form->indisunique && !is_identity_index(index))
		refuse(rel, ERRCODE_FEATURE_NOT_SUPPORTED,
			   "It has a unique index on something else than the identity.");
	if (!form->indisvalid)
		return;
	if (form->indisunique && is_probe_index(index))
		found->identity_index = RelationGetRelid(index);
	else if (is_time_index(index, COL_SWEEP_AT))
		found->sweep_index = RelationGetRelid(index);
	else if (is_time_index(index, COL_LEASE_EXPIRES_AT))
		found->lease_index = RelationGetRelid(index);
}

static void
check_indexes(Relation rel, IdemShape *found)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *lc;

	memset(found, 0, sizeof(*found));
	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		check_index(rel, index, found);
		index_close(index, NoLock);
	}
	list_free(indexes);

	if (!OidIsValid(found->identity_index))
		refuse(rel, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
			   "Its unique index on the identity is missing or invalid.");
	if (!OidIsValid(found->sweep_index) || !OidIsValid(found->lease_index))
		refuse(rel, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
			   "Its index on sweep_at or on lease_expires_at is missing or invalid.");
}

/*
 * Check the table, which the caller has locked, and return where its indexes
 * are.  Valid while the lock is held.  Errors: 0A000, 55000.
 */
const IdemShape *
idem_table_shape(Relation rel)
{
	static bool registered = false;
	static uint64 generation = 0;
	IdemShape	found;
	uint64		seen;

	if (shape_relid == RelationGetRelid(rel))
		return &shape;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_shape, (Datum) 0);
		registered = true;
	}

	/* what changes while we look is looked at again by the next call */
	seen = invalidations;
	check_storage(rel);
	check_side_effects(rel);
	check_columns(rel);
	check_constraints(rel);
	check_indexes(rel, &found);

	found.generation = ++generation;
	shape = found;
	shape_relid = seen == invalidations ? RelationGetRelid(rel) : InvalidOid;
	return &shape;
}

/* ----------------------------------------------------------------
 * idem_policy
 * ---------------------------------------------------------------- */

/* Has it this trigger, unconditional and always enabled? */
static bool
has_trigger(Relation rel, Oid function, int16 type)
{
	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
	{
		const Trigger *trigger = &rel->trigdesc->triggers[i];

		if (trigger->tgfoid == function && trigger->tgtype == type &&
			trigger->tgenabled == TRIGGER_FIRES_ALWAYS &&
			trigger->tgqual == NULL && trigger->tgnattr == 0)
			return true;
	}
	return false;
}

/* The function is that of the extension, which is in the table's schema. */
static void
check_policy_triggers(Relation rel)
{
	oidvector  *no_arguments = buildoidvector(NULL, 0);
	Oid			function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
										   CStringGetDatum("idem_policy_changed"),
										   PointerGetDatum(no_arguments),
										   ObjectIdGetDatum(RelationGetNamespace(rel)));

	if (!OidIsValid(function) ||
		!has_trigger(rel, function, TRIGGER_TYPE_ROW | TRIGGER_TYPE_BEFORE | TRIGGER_TYPE_INSERT |
					 TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE) ||
		!has_trigger(rel, function, TRIGGER_TYPE_BEFORE | TRIGGER_TYPE_TRUNCATE))
		refuse(rel, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
			   "A trigger of the extension on it is missing, changed, or not enabled always.");
}

/* The caller has locked the table.  Errors: 0A000, 55000. */
void
idem_check_policy_table(Relation rel)
{
	check_storage(rel);
	check_row_security(rel);
	if (RelationGetDescr(rel)->natts < IDEM_POLICY_NATTS)
		refuse(rel, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "A column is missing.");
	for (int i = 0; i < IDEM_POLICY_NATTS; i++)
		check_column(rel, i, &policy_columns[i], false, i + 1 == POLICY_SCOPE);
	check_policy_triggers(rel);
}
