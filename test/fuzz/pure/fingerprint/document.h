/*
 * document.h
 *		JSON documents, made of any bytes and written in many ways.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#ifndef IDEM_FUZZ_DOCUMENT_H
#define IDEM_FUZZ_DOCUMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum Kind
{
	NULL_VALUE,
	FALSE_VALUE,
	TRUE_VALUE,
	NUMBER,
	STRING,
	ARRAY,
	OBJECT,
	N_KINDS
} Kind;

#define MOST_MEMBERS	8
#define MOST_CHARACTERS 40
#define MOST_DIGITS		40

typedef struct Text
{
	int			n;
	uint32_t	code[MOST_CHARACTERS];	/* Unicode */
} Text;

typedef struct Json
{
	Kind		kind;
	bool		negative;		/* numbers: sign digits * 10^exponent */
	int			exponent;
	int			ndigits;
	char		digits[MOST_DIGITS];
	Text		text;
	int			n;				/* arrays and objects */
	Text		key[MOST_MEMBERS];	/* all different */
	struct Json *member[MOST_MEMBERS];
} Json;

/* Bytes to make choices from; all choices are 0 when they are used up. */
typedef struct Source
{
	const uint8_t *at;
	const uint8_t *end;
} Source;

typedef struct Bytes
{
	size_t		n;
	uint8_t		data[1 << 20];
} Bytes;

extern uint8_t choose(Source *s, int n);

/* Nodes live until the next call of this. */
extern void forget_documents(void);

/* largest: the last character there is, as the server's encoding has it. */
extern Json *take_document(Source *s, uint32_t largest);

/* A document that differs in one place, or not at all. */
extern Json *altered(const Json *document, Source *s, uint32_t largest);

/* Do they mean the same? */
extern bool same_value(const Json *a, const Json *b);

/* As JSON text, in a way of writing that the source chooses; zero-terminated. */
extern void spell(const Json *document, Source *s, bool utf8, Bytes *out);

/* The canonical form that docs/fingerprint.md describes. */
extern void canonical_form(const Json *document, Bytes *out);

extern void add(Bytes *out, const void *data, size_t n);
extern void add_utf8(Bytes *out, uint32_t code);

#endif							/* IDEM_FUZZ_DOCUMENT_H */
