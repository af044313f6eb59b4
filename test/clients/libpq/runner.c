/*
 * The scenario and the race by libpq (../lib/scenario.py, ../lib/race.py).
 *
 * In the way "binary" parameters and results are binary wherever the type has
 * a simple form; an array goes in as text.  In the way "simple" parameters are
 * literals, within one PQexec.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <endian.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

#define MAX_FIELDS 32

/* Seconds from 1970 to 2000, where PostgreSQL's binary times begin. */
#define EPOCH_OFFSET INT64_C(946684800)

/* Types of binary parameters, as in pg_type. */
enum
{
	BOOLOID = 16, BYTEAOID = 17, INT4OID = 23, TEXTOID = 25, INTERVALOID = 1186, UUIDOID = 2950,
	JSONBOID = 3802
};

/* As libpq takes and gives it; no bytes are NULL. */
typedef struct
{
	char	   *bytes;
	int			length;
	int			format;
	Oid			type;
}			Value;

static PGconn *conn;
static bool binary,
			prepared,
			simple;
static struct
{
	char		name[32];
	Value		value;
}			kept[16];
static int	kept_count;

static void
die(const char *what)
{
	fprintf(stderr, "%s: %s", what, PQerrorMessage(conn));
	exit(1);
}

/* ---- the lines ---- */

static void
print_encoded(const char *bytes, int length)
{
	for (int i = 0; i < length; i++)
	{
		unsigned char c = bytes[i];

		if (isascii(c) && isalnum(c))
			putchar(c);
		else
			printf("%%%02X", c);
	}
}

static void
decode(char *text)
{
	char	   *to = text;
	unsigned int byte;

	for (; *text; text++)
	{
		if (sscanf(text, "%%%2x", &byte) == 1)
		{
			*to++ = (char) byte;
			text += 2;
		}
		else
			*to++ = *text;
	}
	*to = '\0';
}

static int
split(char *text, const char *separator, char **parts)
{
	int			n = 0;

	while (text && n < MAX_FIELDS)
		parts[n++] = strsep(&text, separator);
	return n;
}

/* ---- parameters ---- */

static Value
as_text(const char *text)
{
	return (Value)
	{
		strdup(text), (int) strlen(text), 0, 0
	};
}

static Value
as_binary(const void *bytes, int length, Oid type)
{
	Value		value = {malloc(length), length, 1, type};

	memcpy(value.bytes, bytes, length);
	return value;
}

/* Hexadecimal digits, hyphens between them or not. */
static Value
from_hex(const char *text, Oid type)
{
	Value		value = {malloc(strlen(text) / 2 + 1), 0, 1, type};
	unsigned int byte;

	for (; *text; text++)
		if (*text != '-' && sscanf(text++, "%2x", &byte) == 1)
			value.bytes[value.length++] = (char) byte;
	return value;
}

/* "{"a","b"}" of elements between bars. */
static Value
array(char *text)
{
	char	   *parts[MAX_FIELDS];
	char	   *literal;
	size_t		size;
	FILE	   *out = open_memstream(&literal, &size);
	int			n = *text ? split(text, "|", parts) : 0;

	fputc('{', out);
	for (int i = 0; i < n; i++)
	{
		decode(parts[i]);
		fputs(i ? ",\"" : "\"", out);
		for (char *c = parts[i]; *c; c++)
		{
			if (*c == '"' || *c == '\\')
				fputc('\\', out);
			fputc(*c, out);
		}
		fputc('"', out);
	}
	fputc('}', out);
	fclose(out);
	return as_text(literal);
}

static Value
interval(const char *text)
{
	int64_t		wire[2] = {(int64_t) htobe64(strtoll(text, NULL, 10)), 0};	/* days, months: 0 */
	char		words[64];

	if (binary)
		return as_binary(wire, sizeof(wire), INTERVALOID);
	snprintf(words, sizeof(words), "%s microseconds", text);
	return as_text(words);
}

static Value
bytea(const char *text)
{
	char		literal[1024];

	/* the format is each parameter's own: bytes may go as they are in any way but one */
	if (!simple)
		return from_hex(text, binary ? BYTEAOID : 0);
	snprintf(literal, sizeof(literal), "\\x%s", text);
	return as_text(literal);
}

static Value
native(const char *kind, char *text)
{
	if (strcmp(kind, "text[]") == 0)
		return array(text);
	decode(text);
	if (strcmp(kind, "bytea") == 0)
		return bytea(text);
	if (strcmp(kind, "interval") == 0)
		return interval(text);
	if (!binary || strcmp(kind, "untyped") == 0)
		return as_text(text);
	if (strcmp(kind, "uuid") == 0)
		return from_hex(text, UUIDOID);
	if (strcmp(kind, "integer") == 0)
	{
		uint32_t	wire = htonl((uint32_t) atoi(text));

		return as_binary(&wire, sizeof(wire), INT4OID);
	}
	if (strcmp(kind, "boolean") == 0)
		return as_binary(*text == 't' ? "\1" : "\0", 1, BOOLOID);
	if (strcmp(kind, "jsonb") == 0)
	{
		/* a version number, then the text */
		Value		value = {NULL, 0, 1, JSONBOID};

		value.length = asprintf(&value.bytes, "\1%s", text);
		return value;
	}
	return as_binary(text, (int) strlen(text), TEXTOID);
}

static Value
parameter(char *field)
{
	char	   *kind = strsep(&field, "=");

	if (field == NULL)
		return (Value) {0};
	if (*field != '@')
		return native(kind, field);
	for (int i = kept_count - 1; i >= 0; i--)
		if (strcmp(kept[i].name, field + 1) == 0)
			return kept[i].value;
	die("no such value was kept");
	return (Value) {0};
}

/* ---- results ---- */

static int64_t
number(const char *wire, int length)
{
	int64_t		n = 0;

	for (int i = 0; i < length; i++)
		n = (int64_t) ((uint64_t) n << 8) | (unsigned char) wire[i];
	return length == 4 ? (int32_t) n : n;
}

static void
show_hex(const char *bytes, int length, bool hyphens)
{
	for (int i = 0; i < length; i++)
		printf(hyphens && (i == 4 || i == 6 || i == 8 || i == 10) ? "-%02x" : "%02x",
			   (unsigned char) bytes[i]);
}

static int64_t
microseconds_of_interval(const char *text)
{
	int			hours,
				minutes;
	double		seconds;

	if (sscanf(text, "%d:%d:%lf", &hours, &minutes, &seconds) != 3)
		die("what an interval");
	return (int64_t) ((hours * 60 + minutes) * 60 * 1e6 + seconds * 1e6 + 0.5);
}

static int64_t
microseconds_of_timestamp(const char *text)
{
	struct tm	local = {0};
	char	   *rest = strptime(text, "%Y-%m-%d %H:%M:%S", &local);
	double		fraction = *rest == '.' ? strtod(rest, &rest) : 0;
	int			hours = 0,
				minutes = 0;

	sscanf(rest, "%d:%d", &hours, &minutes);
	return ((int64_t) timegm(&local) - (hours * 60 + (hours < 0 ? -minutes : minutes)) * 60) * 1000000
		+ (int64_t) (fraction * 1e6 + 0.5);
}

/* Elements of a binary array: dimensions, flags, type; per dimension size and lower bound. */
static void
show_binary_array(const char *wire)
{
	int			n = number(wire, 4) > 0 ? (int) number(wire + 12, 4) : 0;

	wire += 20;
	for (int i = 0; i < n; i++)
	{
		int			length = (int) number(wire, 4);

		if (i)
			putchar('|');
		print_encoded(wire + 4, length);
		wire += 4 + length;
	}
}

static void
show_array(const char *literal)
{
	bool		quoted = false;

	for (literal++; *literal && (quoted || *literal != '}'); literal++)
	{
		if (*literal == '"')
			quoted = !quoted;
		else if (*literal == ',' && !quoted)
			putchar('|');
		else
		{
			if (*literal == '\\')
				literal++;
			print_encoded(literal, 1);
		}
	}
}

static void
show_binary(const char *value, int length, const char *kind)
{
	if (strcmp(kind, "integer") == 0 || strcmp(kind, "bigint") == 0)
		printf("%" PRId64, number(value, length));
	else if (strcmp(kind, "boolean") == 0)
		putchar(*value ? 't' : 'f');
	else if (strcmp(kind, "bytea") == 0 || strcmp(kind, "uuid") == 0)
		show_hex(value, length, *kind == 'u');
	else if (strcmp(kind, "jsonb") == 0)
		print_encoded(value + 1, length - 1);
	else if (strcmp(kind, "interval") == 0)
		printf("%" PRId64, number(value, 8));
	else if (strcmp(kind, "timestamptz") == 0)
		printf("%" PRId64, number(value, 8) + EPOCH_OFFSET * 1000000);
	else if (strcmp(kind, "text[]") == 0)
		show_binary_array(value);
	else
		print_encoded(value, length);
}

static void
show_text(const char *value, int length, const char *kind)
{
	if (strcmp(kind, "bytea") == 0)
	{
		size_t		n;
		unsigned char *bytes = PQunescapeBytea((const unsigned char *) value, &n);

		show_hex((char *) bytes, (int) n, false);
		PQfreemem(bytes);
	}
	else if (strcmp(kind, "interval") == 0)
		printf("%" PRId64, microseconds_of_interval(value));
	else if (strcmp(kind, "timestamptz") == 0)
		printf("%" PRId64, microseconds_of_timestamp(value));
	else if (strcmp(kind, "text[]") == 0)
		show_array(value);
	else
		print_encoded(value, length);
}

static void
keep(const char *name, PGresult *result, int row, int column)
{
	Value		value = {NULL, PQgetlength(result, row, column), PQfformat(result, column),
	PQftype(result, column)};

	value.bytes = malloc(value.length + 1);
	memcpy(value.bytes, PQgetvalue(result, row, column), value.length + 1);
	if (kept_count == 16)
		die("too much to keep");
	snprintf(kept[kept_count].name, sizeof(kept[0].name), "%s", name);
	kept[kept_count++].value = value;
}

static void
show(PGresult *result, int row, int column, char *kind)
{
	const char *value = PQgetvalue(result, row, column);
	int			length = PQgetlength(result, row, column);
	char	   *name = kind;

	kind = strsep(&name, ">");
	if (name)
		keep(name, result, row, column);
	if (PQgetisnull(result, row, column))
		fputs("null", stdout);
	else if (PQfformat(result, column) == 1)
	{
		fputs("binary=", stdout);
		show_binary(value, length, kind);
	}
	else
	{
		fputs("text=", stdout);
		show_text(value, length, kind);
	}
	if (name)
		name[-1] = '>';
}

/* ---- calls ---- */

/* $1 to $9 and $10 become literals. */
static PGresult *
exec_with_literals(const char *sql, int n, Value *values)
{
	char	   *statement;
	size_t		size;
	FILE	   *out = open_memstream(&statement, &size);

	for (; *sql; sql++)
	{
		char	   *end;
		long		i = *sql == '$' ? strtol(sql + 1, &end, 10) : 0;

		if (i < 1 || i > n)
		{
			fputc(*sql, out);
			continue;
		}
		sql = end - 1;
		if (values[i - 1].bytes == NULL)
			fputs("NULL", out);
		else
			fputs(PQescapeLiteral(conn, values[i - 1].bytes, values[i - 1].length), out);
	}
	fclose(out);
	return PQexec(conn, statement);
}

static PGresult *
call(const char *sql, int n, Value *values)
{
	const char *bytes[MAX_FIELDS];
	int			lengths[MAX_FIELDS],
				formats[MAX_FIELDS];
	Oid			types[MAX_FIELDS];
	PGresult   *result;

	if (simple)
		return exec_with_literals(sql, n, values);
	for (int i = 0; i < n; i++)
	{
		bytes[i] = values[i].bytes;
		lengths[i] = values[i].length;
		formats[i] = values[i].format;
		types[i] = values[i].type;
	}
	if (!prepared)
		return PQexecParams(conn, sql, n, types, bytes, lengths, formats, binary);
	result = PQprepare(conn, "", sql, n, types);
	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		return result;
	PQclear(result);
	return PQexecPrepared(conn, "", n, bytes, lengths, formats, binary);
}

static void
report(const char *line, PGresult *result, char *columns)
{
	char	   *kinds[MAX_FIELDS];
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
	{
		const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
		const char *column = PQresultErrorField(result, PG_DIAG_COLUMN_NAME);

		printf("%s\terror\t%s\t%s\n", line, state ? state : "", column ? column : "");
		PQclear(result);
		return;
	}
	printf("%s\tok", line);
	split(columns, " ", kinds);
	for (int row = 0; row < PQntuples(result); row++)
		for (int column = 0; column < PQnfields(result); column++)
		{
			putchar(column ? ' ' : '\t');
			show(result, row, column, kinds[column]);
		}
	putchar('\n');
	PQclear(result);
}

static void
step(char *line)
{
	char	   *fields[MAX_FIELDS],
			   *parameters[MAX_FIELDS];
	Value		values[MAX_FIELDS];
	int			n;

	split(line, "\t", fields);
	if (strcmp(fields[1], "query") != 0)
	{
		char		statement[64];

		snprintf(statement, sizeof(statement), "%s%s", fields[1],
				 strstr(fields[1], "savepoint") ? " s" : "");
		report(fields[0], PQexec(conn, statement), fields[4]);
		return;
	}
	decode(fields[2]);
	n = *fields[3] ? split(fields[3], " ", parameters) : 0;
	for (int i = 0; i < n; i++)
		values[i] = parameter(parameters[i]);
	report(fields[0], call(fields[2], n, values), fields[4]);
}

/* ---- the race ---- */

static PGresult *
must(const char *sql, int n, const char *const *values)
{
	PGresult   *result = PQexecParams(conn, sql, n, NULL, values, NULL, NULL, 0);

	if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
		die(sql);
	return result;
}

static void
effect(const char *flow, const char *key, const char *me)
{
	char		pid[16];
	const char *values[] = {flow, key, me, pid};

	snprintf(pid, sizeof(pid), "%d", getpid());
	PQclear(must("INSERT INTO effect VALUES ($1, $2, $3, $4)", 4, values));
}

/* One turn; was it in vain? */
static bool
turn(const char *flow, const char *key, const char *me)
{
	bool		leased = strcmp(flow, "leased") == 0,
				again;
	char		request[256],
				body[256];
	const char *claim[] = {key, request};
	const char *finish[] = {key, body, NULL};
	const char *outcome,
			   *answer;
	PGresult   *result;

	snprintf(request, sizeof(request), "{\"key\": \"%s\"}", key);
	snprintf(body, sizeof(body), "%s by %s, %d \xF0\x9F\xAB\x96", key, me, getpid());
	if (!leased)
		PQclear(must("BEGIN", 0, NULL));
	result = must(leased ?
				  "SELECT outcome, response_body, token FROM idem_claim('leased race', $1,"
				  " request => $2, lease => '10 min')" :
				  "SELECT outcome, response_body, token FROM idem_claim('race', $1,"
				  " request => $2, wait => '20 ms')", 2, claim);
	outcome = PQgetvalue(result, 0, 0);
	answer = PQgetvalue(result, 0, 1);
	if (strcmp(outcome, "claimed") == 0)
	{
		answer = body;
		if (leased)
		{
			effect("outside", key, me);
			PQclear(must("BEGIN", 0, NULL));
		}
		finish[2] = PQgetvalue(result, 0, 2);
		effect(flow, key, me);
		PQclear(must(leased ?
					 "SELECT idem_finish('leased race', $1, response_body => $2, token => $3)" :
					 "SELECT idem_finish('race', $1, response_body => $2, token => $3)", 3, finish));
	}
	if (!leased || answer == body)
		PQclear(must("COMMIT", 0, NULL));
	printf("%s\t%s\t%s\t", flow, key, outcome);
	print_encoded(answer, (int) strlen(answer));
	putchar('\n');
	again = strcmp(outcome, "in_progress") == 0;
	PQclear(result);
	return again;
}

/* Turns that were in vain come again, after the others. */
static void
race(const char *me)
{
	char	  **turns = NULL,
			   *line = NULL,
			   *parts[MAX_FIELDS];
	size_t		size = 0,
				n = 0;

	while (getline(&line, &size, stdin) > 0)
	{
		turns = realloc(turns, (n + 1) * sizeof(*turns));
		line[strcspn(line, "\n")] = '\0';
		turns[n++] = strdup(line);
	}
	for (size_t i = 0; i < n; i++)
	{
		char	   *copy = strdup(turns[i]);

		split(copy, "\t", parts);
		if (turn(parts[0], parts[1], me))
		{
			turns = realloc(turns, (n + 1) * sizeof(*turns));
			turns[n++] = turns[i];
		}
		free(copy);
	}
}

int
main(int argc, char **argv)
{
	char	   *line = NULL;
	size_t		size = 0;

	if (argc < 2)
		return 2;
	binary = strcmp(argv[1], "binary") == 0;
	prepared = strcmp(argv[1], "prepared") == 0;
	simple = strcmp(argv[1], "simple") == 0;
	conn = PQconnectdb("");
	if (PQstatus(conn) != CONNECTION_OK)
		die("connect");
	if (argc > 2)
		race(argv[2]);
	else
		while (getline(&line, &size, stdin) > 0)
		{
			line[strcspn(line, "\n")] = '\0';
			step(line);
		}
	PQfinish(conn);
	return 0;
}
