/*
 * check.c
 *		The table's CHECK constraints, compiled once.
 *
 * The direct path skips what the executor does around a write, so the
 * constraints are evaluated here.  The executor compiles them anew for every
 * statement, which costs several times what a claim costs otherwise; here the
 * compiled form is kept until the relation cache says that the table changed.
 * An expression that refers to anything but the row and built-in functions,
 * which might change without the table changing, is refused.
 *
 * A violation would be a fault of this library.  Its message names the
 * constraint and not the row, which holds a token and maybe a response.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include "access/transam.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/memutils.h"

#include "check.h"

/* Valid for the shape of this generation; gone with the context. */
static uint64 generation = 0;
static MemoryContext context = NULL;
static int	n_checks;
static ExprState **checks;
static ExprContext *econtext;

static bool
is_user_function(Oid function, void *context_unused)
{
	return function >= FirstNormalObjectId;
}

static bool
calls_user_function(Node *node, void *context_unused)
{
	if (node == NULL)
		return false;
	return check_functions_in_node(node, is_user_function, NULL) ||
		expression_tree_walker(node, calls_user_function, NULL);
}

static void
compile(Relation rel, const IdemShape *shape)
{
	TupleConstr *constr = RelationGetDescr(rel)->constr;
	MemoryContext old;

	generation = 0;
	if (context)
	{
		FreeExprContext(econtext, true);
		MemoryContextDelete(context);
		context = NULL;
	}
	context = AllocSetContextCreate(CacheMemoryContext, "idempotency checks",
									ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(context);
	econtext = CreateStandaloneExprContext();
	n_checks = constr->num_check;
	checks = palloc(n_checks * sizeof(ExprState *));
	for (int i = 0; i < n_checks; i++)
	{
		Expr	   *expr = stringToNode(constr->check[i].ccbin);

		if (calls_user_function((Node *) expr, NULL))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("check constraint \"%s\" of table \"%s\" calls a user-defined function",
							constr->check[i].ccname, RelationGetRelationName(rel)),
					 errhint("Restore the constraint that the extension made.")));
		checks[i] = ExecInitExpr(expression_planner(expr), NULL);
	}
	MemoryContextSwitchTo(old);
	generation = shape->generation;
}

/* Errors: 23514. */
void
idem_check_row(Relation rel, const IdemShape *shape, TupleTableSlot *slot)
{
	if (generation != shape->generation)
		compile(rel, shape);

	econtext->ecxt_scantuple = slot;
	for (int i = 0; i < n_checks; i++)
	{
		const char *name = RelationGetDescr(rel)->constr->check[i].ccname;

		if (!ExecCheck(checks[i], econtext))
			ereport(ERROR,
					(errcode(ERRCODE_CHECK_VIOLATION),
					 errmsg("idempotency record violates check constraint \"%s\"", name),
					 errtableconstraint(rel, name)));
	}
	ResetExprContext(econtext);
}
