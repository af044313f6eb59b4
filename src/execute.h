/*
 * execute.h
 *		Running the caller's command for idem_execute.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_EXECUTE_H
#define IDEM_EXECUTE_H

#include "record.h"

extern void idem_execute_command(const char *command, Datum request, bool request_isnull,
								 IdemPayload *response);

#endif							/* IDEM_EXECUTE_H */
