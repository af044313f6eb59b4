/*
 * args.c
 *		Arguments of the SQL functions: read, checked, defaulted.
 *
 * Everything a caller can get wrong is refused here, before the table is
 * touched, with SQLSTATE 22023, the argument's name in the message and in the
 * column field of the error (so that a middleware can tell a client's bad key
 * from a programmer's error), and the limit in the hint.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include "access/detoast.h"
#include "utils/builtins.h"
#include "utils/elog.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "args.h"
#include "fingerprint.h"

void
idem_bad_argument(const char *name, const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s %s", name, problem),
			 errhint("%s", hint),
			 err_generic_string(PG_DIAG_COLUMN_NAME, name)));
}

/* ----------------------------------------------------------------
 * Identity
 * ---------------------------------------------------------------- */

/* min to 255 bytes, no control characters. */
Datum
idem_check_text(Datum value, const char *name, int min)
{
	text	   *t = DatumGetTextPP(value);
	const unsigned char *bytes = (const unsigned char *) VARDATA_ANY(t);
	int			len = VARSIZE_ANY_EXHDR(t);

	if (len < min)
		idem_bad_argument(name, "must not be empty", "Give 1 to 255 bytes.");
	if (len > IDEM_MAX_TEXT)
		idem_bad_argument(name, "is too long",
						  "At most 255 bytes are allowed; hash what is longer.");
	for (int i = 0; i < len; i++)
		if (bytes[i] < 0x20 || bytes[i] == 0x7F)
			idem_bad_argument(name, "contains a control character",
							  "The bytes 0x01 to 0x1F and 0x7F are not allowed.");
	return PointerGetDatum(t);
}

Datum
idem_arg_text(FunctionCallInfo fcinfo, int n, const char *name, int min)
{
	if (PG_ARGISNULL(n))
		idem_bad_argument(name, "must not be null", min > 0 ?
						  "Give 1 to 255 bytes." : "Leave it out, or give 0 to 255 bytes.");

	/* the length is known without fetching a value stored out of line */
	if (toast_raw_datum_size(PG_GETARG_DATUM(n)) - VARHDRSZ > IDEM_MAX_TEXT)
		idem_bad_argument(name, "is too long",
						  "At most 255 bytes are allowed; hash what is longer.");
	return idem_check_text(PG_GETARG_DATUM(n), name, min);
}

void
idem_check_principal(Datum value)
{
	text	   *t = DatumGetTextPP(value);

	if (VARSIZE_ANY_EXHDR(t) > 0 && (*VARDATA_ANY(t) == '{' || *VARDATA_ANY(t) == '['))
		idem_bad_argument("principal", "looks like a JSON document",
						  "The third argument is who asks; pass the request by name: request => ...");
}

/* The first three arguments of most functions. */
void
idem_arg_identity(FunctionCallInfo fcinfo, IdemKey *key)
{
	key->part[0] = idem_arg_text(fcinfo, 0, "scope", 1);
	key->part[1] = idem_arg_text(fcinfo, 1, "key", 1);
	key->part[2] = idem_arg_text(fcinfo, 2, "principal", 0);
	idem_check_principal(key->part[2]);
}

/* ----------------------------------------------------------------
 * Times
 * ---------------------------------------------------------------- */

static int64
duration(FunctionCallInfo fcinfo, int n, const char *name, bool zero_allowed)
{
	int64		usecs;
	Interval   *interval = PG_GETARG_INTERVAL_P(n);

	if (!idem_interval_usecs(interval, &usecs) ||
		usecs > IDEM_MAX_DURATION || usecs < -IDEM_MAX_DURATION)
		idem_bad_argument(name, "is out of range", "At most 365250 days are allowed.");
	if (usecs < 0)
		idem_bad_argument(name, "must not be negative", zero_allowed ?
						  "Give an interval of 0 or more." : "Give a positive interval.");
	if (usecs == 0 && !zero_allowed)
		idem_bad_argument(name, "must not be zero", "Give a positive interval.");
	return usecs;
}

int64
idem_arg_ttl(FunctionCallInfo fcinfo, int n, int64 otherwise)
{
	return PG_ARGISNULL(n) ? otherwise : duration(fcinfo, n, "ttl", false);
}

/* 0 is a transactional claim. */
int64
idem_arg_lease(FunctionCallInfo fcinfo, int n, int64 otherwise)
{
	return PG_ARGISNULL(n) ? otherwise : duration(fcinfo, n, "lease", true);
}

/* NULL keeps the length last given; a claim that is leased stays leased. */
bool
idem_arg_renewal_lease(FunctionCallInfo fcinfo, int n, int64 *lease)
{
	if (PG_ARGISNULL(n))
		return false;
	*lease = duration(fcinfo, n, "lease", false);
	return true;
}

int64
idem_arg_wait(FunctionCallInfo fcinfo, int n, int64 otherwise)
{
	return PG_ARGISNULL(n) ? otherwise : duration(fcinfo, n, "wait", true);
}

int64
idem_arg_pause(FunctionCallInfo fcinfo, int n)
{
	if (PG_ARGISNULL(n))
		idem_bad_argument("pause", "must not be null", "Give an interval of 0 or more.");
	return duration(fcinfo, n, "pause", true);
}

/* ----------------------------------------------------------------
 * Tokens, fingerprints, words
 * ---------------------------------------------------------------- */

bool
idem_arg_token(FunctionCallInfo fcinfo, int n, uint8 *token)
{
	if (PG_ARGISNULL(n))
		return false;
	memcpy(token, PG_GETARG_UUID_P(n)->data, IDEM_TOKEN_LEN);
	return true;
}

/* The fingerprint as given, or that of the request; false if there is neither. */
bool
idem_arg_fingerprint(FunctionCallInfo fcinfo, int request, int fingerprint, uint8 *to)
{
	bytea	   *given;

	if (!PG_ARGISNULL(fingerprint) && !PG_ARGISNULL(request))
		idem_bad_argument("fingerprint", "and request must not both be given",
						  "Give the request, or a fingerprint of it made elsewhere.");
	if (!PG_ARGISNULL(request))
	{
		idem_fingerprint_jsonb(PG_GETARG_JSONB_P(request), to);
		return true;
	}
	if (PG_ARGISNULL(fingerprint))
		return false;

	if (toast_raw_datum_size(PG_GETARG_DATUM(fingerprint)) - VARHDRSZ != IDEM_FINGERPRINT_LEN)
		idem_bad_argument("fingerprint", "has the wrong length",
						  "Give exactly 32 bytes, such as a SHA-256 hash.");
	given = PG_GETARG_BYTEA_PP(fingerprint);
	memcpy(to, VARDATA_ANY(given), IDEM_FINGERPRINT_LEN);
	return true;
}

bool
idem_arg_on_abandon(FunctionCallInfo fcinfo, int n, IdemAbandon *on_abandon)
{
	text	   *name;

	if (PG_ARGISNULL(n))
		return false;
	name = PG_GETARG_TEXT_PP(n);
	if (!idem_abandon_from_name(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name), on_abandon))
		idem_bad_argument("on_abandon", "is not a policy", "Use unknown or retry.");
	return true;
}

/* The state that a finish or, without unknown, a resolve records. */
IdemState
idem_arg_state(FunctionCallInfo fcinfo, int n, bool may_be_unknown)
{
	const char *hint = may_be_unknown ?
		"Use succeeded, failed, released or unknown." : "Use succeeded, failed or released.";
	IdemState	state;
	text	   *name;

	if (PG_ARGISNULL(n))
		idem_bad_argument("state", "must not be null", hint);
	name = PG_GETARG_TEXT_PP(n);
	if (!idem_state_from_name(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name), &state) ||
		state == IDEM_PROCESSING || (state == IDEM_UNKNOWN && !may_be_unknown))
		idem_bad_argument("state", "is not one that can be recorded", hint);
	return state;
}

/* ----------------------------------------------------------------
 * Payload
 * ---------------------------------------------------------------- */

void
idem_set_field(IdemPayload *payload, IdemField field, Datum value, bool isnull)
{
	payload->value[field] = value;
	payload->isnull[field] = isnull;
}

void
idem_clear_fields(IdemPayload *payload, IdemField from)
{
	for (int i = from; i < IDEM_NFIELDS; i++)
		idem_set_field(payload, i, (Datum) 0, true);
}

static Size
varlena_size(const IdemPayload *payload, IdemField field)
{
	return payload->isnull[field] ? 0 :
		toast_raw_datum_size(payload->value[field]) - VARHDRSZ;
}

/* As text, for that is how it is sent back, and it may be much the longer form. */
static Size
jsonb_size(const IdemPayload *payload, IdemField field)
{
	Jsonb	   *jsonb;
	char	   *as_text;
	Size		size;

	if (payload->isnull[field])
		return 0;
	jsonb = DatumGetJsonbP(payload->value[field]);
	as_text = JsonbToCString(NULL, &jsonb->root, VARSIZE(jsonb));
	size = strlen(as_text);
	pfree(as_text);
	return size;
}

static void
check_size(Size size, const char *what)
{
	if (size > (Size) idem_setting_max_response)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%s of %zu bytes exceeds idempotency.max_response (%d bytes)",
						what, size, idem_setting_max_response),
				 errhint("Nothing was recorded, and whoever has claimed still owns the claim. Store something smaller, such as a reference to where the body is kept, or raise the setting.")));
}

void
idem_check_response_size(const IdemPayload *payload)
{
	Size		size = payload->isnull[FIELD_RESPONSE_CODE] ? 0 : sizeof(int32);

	/* cheapest first: a huge body need not have its headers measured */
	size += varlena_size(payload, FIELD_RESPONSE_BODY);
	size += varlena_size(payload, FIELD_RESPONSE_BYTES);
	check_size(size, "response");
	size += jsonb_size(payload, FIELD_RESPONSE_HEADERS);
	check_size(size, "response");
}

/*
 * The four response arguments that start at code, for a finish with the given
 * state.  The payload's checkpoint is left alone.  Errors: 22023, 54000.
 */
void
idem_arg_response(FunctionCallInfo fcinfo, int code, IdemState state, IdemPayload *payload)
{
	static const char *const names[] = {
		"response_code", "response_body", "response_headers", "response_bytes",
	};

	for (int i = 0; i < (int) lengthof(names); i++)
	{
		bool		isnull = PG_ARGISNULL(code + i);

		if (!isnull && state != IDEM_SUCCEEDED && state != IDEM_FAILED)
			idem_bad_argument(names[i], "does not go with this state",
							  "Only succeeded and failed store a response.");
		idem_set_field(payload, FIELD_RESPONSE_CODE + i,
					   isnull ? (Datum) 0 : PG_GETARG_DATUM(code + i), isnull);
	}
	if (!payload->isnull[FIELD_RESPONSE_BODY] && !payload->isnull[FIELD_RESPONSE_BYTES])
		idem_bad_argument("response_bytes", "and response_body must not both be given",
						  "Store the body as text or as bytes.");
	idem_check_response_size(payload);
}

/* checkpoint (required) and checkpoint_data, from argument n on. */
void
idem_arg_checkpoint(FunctionCallInfo fcinfo, int n, IdemPayload *payload)
{
	if (PG_ARGISNULL(n))
		idem_bad_argument("checkpoint", "must not be null", "Name the recovery point.");
	idem_set_field(payload, FIELD_CHECKPOINT, PG_GETARG_DATUM(n), false);
	idem_set_field(payload, FIELD_CHECKPOINT_DATA,
				   PG_ARGISNULL(n + 1) ? (Datum) 0 : PG_GETARG_DATUM(n + 1),
				   PG_ARGISNULL(n + 1));
	check_size(varlena_size(payload, FIELD_CHECKPOINT) +
			   jsonb_size(payload, FIELD_CHECKPOINT_DATA), "checkpoint");
}
