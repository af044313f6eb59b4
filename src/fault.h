/*
 * fault.h
 *		Points where a test can make a step fail or stop.
 *
 * Compiled out unless IDEM_FAULT_POINTS is defined; see fault.c.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_FAULT_H
#define IDEM_FAULT_H

#ifdef IDEM_FAULT_POINTS
extern void idem_fault_init(void);
extern void idem_fault_point(const char *name);
#define FAULT_INIT()		idem_fault_init()
#define FAULT_POINT(name)	idem_fault_point(name)
#else
#define FAULT_INIT()		((void) 0)
#define FAULT_POINT(name)	((void) 0)
#endif

#endif							/* IDEM_FAULT_H */
