/*
 * backend.c
 *		libFuzzer inside a backend, so that jsonb and numeric are the server's.
 *
 * Loaded into a single-user server, which has a cluster for itself.  A call
 * of run_fuzzer() does not come back: libFuzzer ends the process.  Of the
 * code under test, src/fingerprint.c, what is hashed is seen here as well, by
 * another name for the function that takes it, so that forms are compared and
 * not only their hashes.
 *
 * For each input: the document that its bytes make, written in two ways, has
 * the form that the oracle says, and one that differs from it somewhere has
 * another form, if and only if it has another meaning.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include <sys/mman.h>

#include "catalog/pg_type.h"
#include "common/cryptohash.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

#include "document.h"
#include "fingerprint.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(run_fuzzer);

extern int	LLVMFuzzerRunDriver(int *argc, char ***argv,
								int (*callback) (const uint8_t *data, size_t size));
extern int	see_hashed(pg_cryptohash_ctx *hash, const uint8 *data, size_t n);

static Bytes seen;
static Bytes spelled;
static Bytes forms[3];
static Bytes expected;
static MemoryContext context;

/* What fingerprint.c calls in place of pg_cryptohash_update(). */
int
see_hashed(pg_cryptohash_ctx *hash, const uint8 *data, size_t n)
{
	add(&seen, data, n);
	return pg_cryptohash_update(hash, data, n);
}

#define ROOM	(1 << 22)

/* A copy that ends where reading on is a crash. */
static Jsonb *
at_the_brink(const Jsonb *jsonb)
{
	static char *brink = NULL;
	char	   *at;

	if (brink == NULL)
	{
		at = mmap(NULL, ROOM + (1 << 16), PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (at == MAP_FAILED || mprotect(at + ROOM, 1 << 16, PROT_NONE) != 0)
			abort();
		brink = at + ROOM;
	}
	at = brink - INTALIGN(VARSIZE(jsonb));
	memcpy(at, jsonb, VARSIZE(jsonb));
	return (Jsonb *) at;
}

/* What is hashed of the document as the text has it. */
static void
form_of_text(Bytes *form)
{
	Jsonb	   *jsonb = DatumGetJsonbP(DirectFunctionCall1(jsonb_in,
														   CStringGetDatum((char *) spelled.data)));
	uint8		fingerprint[IDEM_FINGERPRINT_LEN];

	seen.n = 0;
	idem_fingerprint_jsonb(at_the_brink(jsonb), fingerprint);
	form->n = 0;
	add(form, seen.data, seen.n);
}

static bool
same_bytes(const Bytes *a, const Bytes *b)
{
	return a->n == b->n && memcmp(a->data, b->data, a->n) == 0;
}

static void
show_bytes(const char *name, const Bytes *bytes)
{
	fprintf(stderr, "wrong: %s", name);
	for (size_t i = 0; i < bytes->n; i++)
		fprintf(stderr, " %02x", bytes->data[i]);
	fprintf(stderr, "\n");
}

static void
fail(const char *what)
{
	fprintf(stderr, "wrong: %s\nwrong: the last text is %s\n", what, spelled.data);
	show_bytes("expected", &expected);
	for (int i = 0; i < 3; i++)
		show_bytes("form", &forms[i]);
	abort();
}

static void
check_input(Source *s)
{
	bool		utf8 = GetDatabaseEncoding() == PG_UTF8;
	uint32		largest = utf8 ? 0x10FFFF : 0xFF;
	Source		plainly = {NULL, NULL};
	Json	   *document = take_document(s, largest);
	Json	   *other = altered(document, s, largest);

	canonical_form(document, &expected);
	spell(document, &plainly, utf8, &spelled);
	form_of_text(&forms[0]);
	if (!same_bytes(&forms[0], &expected))
		fail("the form is not as documented");
	spell(other, &plainly, utf8, &spelled);
	form_of_text(&forms[2]);
	if (same_bytes(&forms[0], &forms[2]) != same_value(document, other))
		fail("documents with one form and two meanings, or the reverse");
	spell(document, s, utf8, &spelled);
	form_of_text(&forms[1]);
	if (!same_bytes(&forms[1], &expected))
		fail("the form depends on how the document is written");
}

static int
one_input(const uint8_t *data, size_t size)
{
	Source		s = {data, data + size};
	MemoryContext old = MemoryContextSwitchTo(context);

	PG_TRY();
	{
		check_input(&s);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		fprintf(stderr, "wrong: error: %s\n", error->message);
		fail("an error");
	}
	PG_END_TRY();

	MemoryContextSwitchTo(old);
	MemoryContextReset(context);
	forget_documents();
	return 0;
}

/* run_fuzzer(text[]): libFuzzer's arguments. */
Datum
run_fuzzer(PG_FUNCTION_ARGS)
{
	Datum	   *given;
	bool	   *nulls;
	int			n;
	int			argc = 1;
	char	  **argv;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT,
					  &given, &nulls, &n);
	argv = palloc0((n + 2) * sizeof(char *));
	argv[0] = "fingerprint";
	for (int i = 0; i < n; i++)
		argv[argc++] = TextDatumGetCString(given[i]);
	context = AllocSetContextCreate(TopMemoryContext, "fuzz", ALLOCSET_DEFAULT_SIZES);
	PG_RETURN_INT32(LLVMFuzzerRunDriver(&argc, &argv, one_input));
}
