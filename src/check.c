/*
 * check.c
 *		The table's CHECK constraints, compiled once.
 *
 * The direct path skips what the executor does around a write, so the
 * constraints are evaluated here.  The executor compiles them anew for every
 * statement, which costs several times what a claim costs otherwise; here the
 * compiled form is kept until the relation cache says that the table changed.
 * It refers to nothing but the row and built-in functions, so nothing else
 * can make it stale.
 *
 * A violation would be a fault of this library.  Its message names the
 * constraint and not the row, which holds a token and maybe a response.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include "executor/executor.h"
#include "optimizer/optimizer.h"
#include "utils/memutils.h"

#include "check.h"

/* Valid for the shape of this generation; gone with the context. */
static uint64 generation = 0;
static MemoryContext context = NULL;
static int	n_checks;
static ExprState **checks;
static ExprContext *econtext;

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
