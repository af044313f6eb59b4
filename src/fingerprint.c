/*
 * fingerprint.c
 *		The fingerprint of a request: SHA-256 over a canonical form of a jsonb.
 *
 * Two requests are the same if and only if their canonical forms are the same
 * bytes.  The form must never change: fingerprints are stored, and a changed
 * one turns every retry of an older claim into a mismatch.  It is
 *
 *		form	= "IDEM" 0x01 value
 *		value	= 'n' | 't' | 'f'				null, true, false
 *				| '"' text
 *				| '#' number
 *				| '[' count value*
 *				| '{' count (text value)*		keys in order, each once
 *		text	= length, then that many bytes of UTF-8
 *		number	= ndigits weight sign digit*	in base 10000
 *
 * count and length are 4 bytes, the fields of a number 2, all big-endian.
 * Every value says what it is and where it ends before its contents come, so
 * no two documents share a form.  A scalar document is its value, not the
 * array of one in which jsonb stores it.  docs/fingerprint.md has an example.
 *
 * Keys are ordered by their length in UTF-8, then bytewise.  A UTF8 database
 * stores them in just this order, so there a document is hashed as it lies,
 * with no sort and no copy but detoasting.  Under other encodings keys and
 * strings are converted and the keys of each object sorted anew.  SQL_ASCII
 * does not say what its bytes mean, so they are taken as they are.
 *
 * Numbers are taken from numeric_send(), which is what drivers read in binary
 * mode: it cannot change without breaking the protocol, and never expands an
 * exponent.  The form drops the display scale from it and, though storage
 * does so already, zero digits at either end; a zero has no sign.
 *
 * Recursion is guarded by check_stack_depth(), and every full buffer is a
 * chance to cancel.
 */
#include "postgres.h"

#include "catalog/pg_conversion.h"
#include "catalog/pg_namespace.h"
#include "common/cryptohash.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/numeric.h"

#include "fingerprint.h"

typedef struct HashSink
{
	pg_cryptohash_ctx *hash;
	int			used;
	char		buffer[2048];	/* spares a call of the hash for every token */
} HashSink;

PG_FUNCTION_INFO_V1(idem_fingerprint);

static void put_container(HashSink *sink, JsonbContainer *container);

static void
check_hash(int result)
{
	if (result < 0)
		elog(ERROR, "could not compute a SHA-256 hash");
}

static void
flush(HashSink *sink)
{
	CHECK_FOR_INTERRUPTS();
	check_hash(pg_cryptohash_update(sink->hash, (uint8 *) sink->buffer,
									sink->used));
	sink->used = 0;
}

static void
put(HashSink *sink, const void *data, Size len)
{
	while (len > 0)
	{
		Size		part = Min(len, sizeof(sink->buffer) - sink->used);

		memcpy(sink->buffer + sink->used, data, part);
		sink->used += part;
		data = (const char *) data + part;
		len -= part;
		if (sink->used == sizeof(sink->buffer))
			flush(sink);
	}
}

static void
put_uint32(HashSink *sink, uint32 value)
{
	value = pg_hton32(value);
	put(sink, &value, sizeof(value));
}

static bool
hashed_as_stored(void)
{
	return GetDatabaseEncoding() == PG_UTF8 ||
		GetDatabaseEncoding() == PG_SQL_ASCII;
}

/* str in UTF-8: str itself where that is the same bytes, else a new string. */
static char *
to_utf8(char *str, int *len)
{
	int			room = *len * MAX_CONVERSION_GROWTH + 1;	/* jsonb: < 1 GB */
	int			ascii = 0;
	char	   *result;
	Oid			conversion;

	if (hashed_as_stored())
		return str;
	while (ascii < *len && !IS_HIGHBIT_SET(str[ascii]))
		ascii++;
	if (ascii == *len)
		return str;

	/* In pg_catalog only: a search_path must not change a fingerprint. */
	conversion = FindDefaultConversion(PG_CATALOG_NAMESPACE,
									   GetDatabaseEncoding(), PG_UTF8);
	if (!OidIsValid(conversion))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot fingerprint non-ASCII text in a database with encoding \"%s\"",
						GetDatabaseEncodingName()),
				 errdetail("PostgreSQL has no conversion from this encoding to UTF8."),
				 errhint("Compute the fingerprint in the client.")));
	result = palloc(room);
	(void) pg_do_encoding_conversion_buf(conversion,
										 GetDatabaseEncoding(), PG_UTF8,
										 (unsigned char *) str, *len,
										 (unsigned char *) result, room, false);
	*len = strlen(result);
	return result;
}

static void
put_utf8(HashSink *sink, const char *str, int len)
{
	put_uint32(sink, len);
	put(sink, str, len);
}

static void
put_number(HashSink *sink, Numeric number)
{
	bytea	   *sent = DatumGetByteaP(DirectFunctionCall1(numeric_send,
														  NumericGetDatum(number)));
	uint16	   *wire = (uint16 *) VARDATA(sent);	/* ndigits, weight, sign,
													 * display scale, digits */
	uint16	   *digits = wire + 4;
	uint16		ndigits = pg_ntoh16(wire[0]);
	uint16		weight = pg_ntoh16(wire[1]);

	for (; ndigits > 0 && digits[0] == 0; digits++, ndigits--)
		weight--;
	while (ndigits > 0 && digits[ndigits - 1] == 0)
		ndigits--;
	wire[0] = pg_hton16(ndigits);
	wire[1] = ndigits > 0 ? pg_hton16(weight) : 0;
	if (ndigits == 0 && wire[2] == pg_hton16(0x4000))
		wire[2] = 0;			/* minus zero */
	put(sink, wire, 3 * sizeof(uint16));
	put(sink, digits, ndigits * sizeof(uint16));
	pfree(sent);
}

static void
put_value(HashSink *sink, const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvNull:
			put(sink, "n", 1);
			break;
		case jbvBool:
			put(sink, value->val.boolean ? "t" : "f", 1);
			break;
		case jbvNumeric:
			put(sink, "#", 1);
			put_number(sink, value->val.numeric);
			break;
		case jbvString:
			{
				int			len = value->val.string.len;
				char	   *utf8 = to_utf8(value->val.string.val, &len);

				put(sink, "\"", 1);
				put_utf8(sink, utf8, len);
				if (utf8 != value->val.string.val)
					pfree(utf8);
				break;
			}
		case jbvBinary:
			put_container(sink, value->val.binary.data);
			break;
		default:
			elog(ERROR, "unexpected jsonb value type: %d", (int) value->type);
	}
}

static int
compare_pairs(const void *a, const void *b)
{
	const JsonbPair *x = a;
	const JsonbPair *y = b;
	int			result = x->key.val.string.len - y->key.val.string.len;

	if (result == 0)
		result = memcmp(x->key.val.string.val, y->key.val.string.val,
						x->key.val.string.len);
	/* Some encodings write one Unicode character in two ways. */
	if (result == 0)
		result = x->order < y->order ? -1 : 1;
	return result;
}

/* The pairs of an object whose keys may have another order in UTF-8. */
static void
put_sorted_pairs(HashSink *sink, JsonbContainer *object)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "idempotency fingerprint keys",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	JsonbPair  *pairs = MemoryContextAllocHuge(context, sizeof(JsonbPair) *
											   JsonContainerSize(object));
	JsonbPair  *end = pairs;
	JsonbIterator *it = JsonbIteratorInit(object);
	JsonbIteratorToken token;
	JsonbValue	item;

	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
		{
			end->key = item;
			end->key.val.string.val = to_utf8(item.val.string.val,
											  &end->key.val.string.len);
		}
		else if (token == WJB_VALUE)
		{
			end->value = item;
			end->order = end - pairs;
			end++;
		}
	}
	MemoryContextSwitchTo(caller);

	qsort(pairs, end - pairs, sizeof(JsonbPair), compare_pairs);
	for (JsonbPair *pair = pairs; pair < end; pair++)
	{
		put_utf8(sink, pair->key.val.string.val, pair->key.val.string.len);
		put_value(sink, &pair->value);
	}
	MemoryContextDelete(context);
}

static void
put_container(HashSink *sink, JsonbContainer *container)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	item;

	check_stack_depth();
	if (!JsonContainerIsScalar(container))
	{
		put(sink, JsonContainerIsObject(container) ? "{" : "[", 1);
		put_uint32(sink, JsonContainerSize(container));
	}
	if (JsonContainerIsObject(container) && !hashed_as_stored())
	{
		put_sorted_pairs(sink, container);
		return;
	}

	it = JsonbIteratorInit(container);
	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			put_utf8(sink, item.val.string.val, item.val.string.len);
		else if (token == WJB_ELEM || token == WJB_VALUE)
			put_value(sink, &item);
	}
}

void
idem_fingerprint_jsonb(Jsonb *request, uint8 out[IDEM_FINGERPRINT_LEN])
{
	HashSink	sink;

	/* After an error the resource owner or memory context frees the hash. */
	sink.hash = pg_cryptohash_create(PG_SHA256);
	sink.used = 0;
	check_hash(pg_cryptohash_init(sink.hash));
	put(&sink, "IDEM\001", 5);
	put_container(&sink, &request->root);
	flush(&sink);
	check_hash(pg_cryptohash_final(sink.hash, out, IDEM_FINGERPRINT_LEN));
	pg_cryptohash_free(sink.hash);
}

/* idem_fingerprint(request jsonb) returns bytea */
Datum
idem_fingerprint(PG_FUNCTION_ARGS)
{
	Jsonb	   *request = PG_GETARG_JSONB_P(0);
	bytea	   *result = palloc(VARHDRSZ + IDEM_FINGERPRINT_LEN);

	SET_VARSIZE(result, VARHDRSZ + IDEM_FINGERPRINT_LEN);
	idem_fingerprint_jsonb(request, (uint8 *) VARDATA(result));
	PG_FREE_IF_COPY(request, 0);
	PG_RETURN_BYTEA_P(result);
}
