#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

/* Parameters go as text and without a type; an error ends this example. */
static PGresult *
run(PGconn *db, const char *sql, int n, const char *const *values)
{
	PGresult   *result = PQexecParams(db, sql, n, NULL, values, NULL, NULL, 0);
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
	{
		fprintf(stderr, "%s: %s", PQresultErrorField(result, PG_DIAG_SQLSTATE), PQerrorMessage(db));
		exit(1);
	}
	return result;
}

/* outcome, code, body and perhaps token; true if the work is ours */
static int
claimed(PGresult *claim)
{
	return strcmp(PQgetvalue(claim, 0, 0), "claimed") == 0;
}

static void
answer(PGresult *claim)
{
	const char *outcome = PQgetvalue(claim, 0, 0);

	if (strcmp(outcome, "replayed") == 0)
		printf("%s %s\n", PQgetvalue(claim, 0, 1), PQgetvalue(claim, 0, 2));
	else
		printf("%s %s\n", strcmp(outcome, "mismatch") == 0 ? "422" : "409", outcome);
}

static void
create_order(PGconn *db, const char *key, const char *user, const char *item)
{
	char		request[256],
				body[256];
	PGresult   *claim;

	snprintf(request, sizeof(request), "{\"item\": \"%s\"}", item);
	PQclear(run(db, "BEGIN", 0, NULL));
	claim = run(db, "SELECT outcome, response_code, response_body FROM idem_claim("
				"'create_order', $1, $2, request => $3, wait => '1 s')",
				3, (const char *[]) {key, user, request});
	if (claimed(claim))
	{
		PGresult   *order = run(db, "INSERT INTO orders (customer, item) VALUES ($1, $2) RETURNING id",
								2, (const char *[]) {user, item});

		snprintf(body, sizeof(body), "{\"order\": %s}", PQgetvalue(order, 0, 0));
		PQclear(order);
		PQclear(run(db, "SELECT idem_finish('create_order', $1, $2, response_code => 201,"
					" response_body => $3)", 3, (const char *[]) {key, user, body}));
	}
	PQclear(run(db, "COMMIT", 0, NULL));
	if (claimed(claim))
		printf("201 %s\n", body);
	else
		answer(claim);
	PQclear(claim);
}

static void
charge(PGconn *db, const char *key, const char *user, const char *amount)
{
	char		request[256],
				reference[256],
				body[512];
	PGresult   *claim;

	snprintf(request, sizeof(request), "{\"amount\": %s}", amount);
	claim = run(db, "SELECT outcome, response_code, response_body, token FROM idem_claim("
				"'charge', $1, $2, request => $3, lease => '60 s')",
				3, (const char *[]) {key, user, request});
	if (claimed(claim))
	{
		/* the provider is asked here, outside of any transaction */
		snprintf(reference, sizeof(reference), "ch_%s", amount);
		snprintf(body, sizeof(body), "{\"charge\":\"%s\"}", reference);
		PQclear(run(db, "BEGIN", 0, NULL));
		PQclear(run(db, "INSERT INTO payments VALUES ($1, $2, $3)",
					3, (const char *[]) {key, reference, amount}));
		PQclear(run(db, "SELECT idem_finish('charge', $1, $2, token => $3, response_code => 201,"
					" response_body => $4)",
					4, (const char *[]) {key, user, PQgetvalue(claim, 0, 3), body}));
		PQclear(run(db, "COMMIT", 0, NULL));
		printf("201 %s\n", body);
	}
	else
		answer(claim);
	PQclear(claim);
}

int
main(void)
{
	PGconn	   *db = PQconnectdb("");

	if (PQstatus(db) != CONNECTION_OK)
		return 1;
	for (int i = 0; i < 2; i++)
	{
		create_order(db, "k-1", "42", "tea");
		charge(db, "k-2", "42", "500");
	}
	PQfinish(db);
	return 0;
}
