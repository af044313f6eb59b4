/*
 * What to know about libpq, shown; titles as in docs/languages.md.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <libpq-fe.h>

static PGconn *db;

static void
trap(const char *title, bool holds)
{
	printf("%sok - %s\n", holds ? "" : "not ", title);
}

static PGresult *
run(const char *sql, Oid type, const char *value, int length, int format, int result_format)
{
	return PQexecParams(db, sql, 1, &type, &value, &length, &format, result_format);
}

static bool
failed(PGresult *result, const char *state)
{
	const char *have = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	return have && strcmp(have, state) == 0;
}

static bool
gives(PGresult *result, const char *value)
{
	return PQntuples(result) == 1 && strcmp(PQgetvalue(result, 0, 0), value) == 0;
}

int
main(void)
{
	PGresult   *result;

	db = PQconnectdb("");
	result = run("SELECT * FROM idem_claim('trap', 'k', request => $1)", 25, "{}", 2, 0, 0);
	trap("A jsonb parameter that is said to be text is refused", failed(result, "42883"));
	result = run("SELECT outcome FROM idem_lookup('trap', 'k', $1)", 0, "42", 2, 0, 0);
	trap("... while one of type 0 fits any argument", gives(result, "absent"));

	result = run("SELECT octet_length($1::bytea)", 0, "ab\0c", 4, 0, 0);
	trap("Bytes in text format end at the first zero", gives(result, "2"));
	result = run("SELECT octet_length($1::bytea)", 0, "ab\0c", 4, 1, 0);
	trap("... and go in whole in binary format", gives(result, "4"));

	result = run("SELECT $1::jsonb", 0, "{}", 2, 0, 1);
	trap("Binary jsonb begins with a version byte",
		 PQgetlength(result, 0, 0) == 3 && PQgetvalue(result, 0, 0)[0] == 1);

	result = PQexec(db, "SELECT outcome FROM idem_lookup('trap', 'k'); SELECT 2");
	trap("Of several statements in one PQexec the last answers", gives(result, "2"));

	PQexec(db, "BEGIN");
	PQexec(db, "SELECT idem_once('trap', 'swallowed')");
	PQexec(db, "SELECT 1 / 0");
	result = PQexec(db, "COMMIT");
	trap("COMMIT says nothing after a swallowed error",
		 PQresultStatus(result) == PGRES_COMMAND_OK);
	trap("... but its command tag says ROLLBACK", strcmp(PQcmdStatus(result), "ROLLBACK") == 0);
	PQfinish(db);
	return 0;
}
