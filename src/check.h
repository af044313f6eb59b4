/*
 * check.h
 *		The table's CHECK constraints, compiled once.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_CHECK_H
#define IDEM_CHECK_H

#include "executor/tuptable.h"
#include "utils/rel.h"

#include "shape.h"

extern void idem_check_row(Relation rel, const IdemShape *shape, TupleTableSlot *slot);

#endif							/* IDEM_CHECK_H */
