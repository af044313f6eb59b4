// What to know about pgx, shown; titles as in docs/languages.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgtype"
	"github.com/jackc/pgx/v4"
)

var ctx = context.Background()

func trap(title string, holds bool, detail interface{}) {
	if holds {
		fmt.Println("ok - " + title)
	} else {
		fmt.Printf("not ok - %s: %v\n", title, detail)
	}
}

func connect(simple bool) *pgx.Conn {
	config, err := pgx.ParseConfig("")
	if err == nil {
		config.PreferSimpleProtocol = simple
		var conn *pgx.Conn
		if conn, err = pgx.ConnectConfig(ctx, config); err == nil {
			return conn
		}
	}
	fmt.Println("not ok -", err)
	os.Exit(1)
	return nil
}

func stateOf(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return fmt.Sprint(err)
}

func main() {
	db, simple := connect(false), connect(true)

	var body string
	err := db.QueryRow(ctx, "SELECT response_body FROM idem_lookup('trap', 'k')").Scan(&body)
	trap("NULL does not go into a string", err != nil, err)
	var there *string
	err = db.QueryRow(ctx, "SELECT response_body FROM idem_lookup('trap', 'k')").Scan(&there)
	trap("... but into a *string", err == nil && there == nil, err)

	var document map[string]interface{}
	err = db.QueryRow(ctx, `SELECT '{"id": 9007199254740993}'::jsonb`).Scan(&document)
	trap("A map makes every number in jsonb a float64", document["id"] == float64(9007199254740992), err)

	claim := "SELECT outcome FROM idem_claim('trap', 'j', request => $1, lease => '1 h')"
	var outcome string
	err = db.QueryRow(ctx, claim, map[string]int{"a": 1}).Scan(&outcome)
	trap("A map goes out as jsonb", err == nil && outcome == "claimed", err)
	_, err = simple.Exec(ctx, claim, map[string]int{"a": 1})
	trap("... but not in the simple protocol", err != nil, err)
	request := pgtype.JSONB{Bytes: []byte(`{"a": 1}`), Status: pgtype.Present}
	_, err = simple.Exec(ctx, claim, request)
	trap("... nor does a pgtype.JSONB", stateOf(err) == "22P02", err)

	tx, _ := db.Begin(ctx)
	_, _ = tx.Exec(ctx, "SELECT idem_once('trap', 'swallowed')")
	_, _ = tx.Exec(ctx, "SELECT 1 / 0")
	err = tx.Commit(ctx)
	trap("Commit fails after a swallowed error", errors.Is(err, pgx.ErrTxCommitRollback), err)

	var prepared int
	err = db.QueryRow(ctx, "SELECT count(*) FROM pg_prepared_statements WHERE statement = $1", claim).Scan(&prepared)
	trap("Every statement becomes a prepared one", err == nil && prepared == 1, prepared)

	hasty, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = simple.Exec(hasty, "SELECT pg_sleep(60)")
	trap("A context that ends closes the connection", err != nil && simple.IsClosed(), err)
	_ = db.Close(ctx)
}
