/*
 * unfinished.h
 *		No transaction commits with an unfinished transactional claim.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_UNFINISHED_H
#define IDEM_UNFINISHED_H

#include "record.h"

extern void idem_unfinished_init(void);
extern void idem_unfinished_add(IdemStore *s, const IdemRecord *rec);
extern void idem_unfinished_settle(const IdemRecord *rec);

#endif							/* IDEM_UNFINISHED_H */
