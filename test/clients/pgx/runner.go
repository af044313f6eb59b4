// The scenario and the race by pgx (../lib/scenario.py, ../lib/race.py).
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgconn/stmtcache"
	"github.com/jackc/pgtype"
	"github.com/jackc/pgx/v4"
)

var ctx = context.Background()

func connect(way string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig("")
	if err != nil {
		return nil, err
	}
	switch way {
	case "described": // the types are asked for, nothing stays prepared
		config.BuildStatementCache = func(conn *pgconn.PgConn) stmtcache.Cache {
			return stmtcache.New(conn, stmtcache.ModeDescribe, 512)
		}
	case "simple": // literals, for a pooler in transaction mode
		config.PreferSimpleProtocol = true
	}
	return pgx.ConnectConfig(ctx, config)
}

// What a program would pass.  A string is right for anything, and the types of
// pgtype work in every way of calling, JSONB excepted.
func native(kind, text string) (interface{}, error) {
	var err error
	switch kind {
	case "integer":
		return strconv.Atoi(text)
	case "boolean":
		return text == "t", nil
	case "bytea":
		return hex.DecodeString(text)
	case "uuid":
		var uuid pgtype.UUID
		err = uuid.Set(text)
		return uuid, err
	case "interval":
		microseconds, err := strconv.ParseInt(text, 10, 64)
		return pgtype.Interval{Microseconds: microseconds, Status: pgtype.Present}, err
	case "text[]":
		var array pgtype.TextArray
		err = array.Set(elements(text))
		return &array, err
	}
	return text, nil
}

func elements(text string) []string {
	items := []string{}
	for _, item := range strings.Split(text, "|") {
		if item != "" {
			items = append(items, decode(item))
		}
	}
	return items
}

// Where a column goes.  A pointer to a pointer takes NULL as nil.
func destination(kind string) interface{} {
	switch kind {
	case "integer":
		return new(*int32)
	case "bigint":
		return new(*int64)
	case "boolean":
		return new(*bool)
	case "bytea":
		return new([]byte)
	case "uuid":
		return new(pgtype.UUID)
	case "jsonb": // a map would make every number a float64
		return new(pgtype.JSONB)
	case "interval":
		return new(pgtype.Interval)
	case "timestamptz":
		return new(*time.Time)
	case "text[]":
		return new([]string)
	}
	return new(*string)
}

// The value in it, what the program sees of it as text, and is it not NULL?
func shown(from interface{}) (interface{}, string, bool) {
	switch to := from.(type) {
	case **string:
		if *to != nil {
			return **to, **to, true
		}
	case **int32:
		if *to != nil {
			return **to, strconv.Itoa(int(**to)), true
		}
	case **int64:
		if *to != nil {
			return **to, strconv.FormatInt(**to, 10), true
		}
	case **bool:
		if *to != nil {
			return **to, strconv.FormatBool(**to)[:1], true
		}
	case *[]byte:
		return *to, hex.EncodeToString(*to), *to != nil
	case *pgtype.UUID:
		b := to.Bytes
		return *to, fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]), to.Status == pgtype.Present
	case *pgtype.JSONB:
		return *to, string(to.Bytes), to.Status == pgtype.Present
	case *pgtype.Interval:
		return *to, strconv.FormatInt(to.Microseconds, 10), to.Status == pgtype.Present
	case **time.Time:
		if *to != nil {
			return **to, strconv.FormatInt((*to).UnixMicro(), 10), true
		}
	case *[]string:
		items := []string{}
		for _, item := range *to {
			items = append(items, url.PathEscape(item))
		}
		return *to, strings.Join(items, "|"), *to != nil
	}
	return nil, "", false
}

func show(from interface{}) string {
	value, text, there := shown(from)
	if !there {
		return "null"
	}
	if _, array := value.([]string); !array {
		text = url.PathEscape(text)
	}
	return fmt.Sprintf("%T=%s", value, text)
}

func decode(text string) string {
	decoded, err := url.PathUnescape(text)
	if err != nil {
		panic(err)
	}
	return decoded
}

type client struct {
	conn *pgx.Conn
	tx   pgx.Tx
	kept map[string]interface{}
}

func (c *client) do(what string) (err error) {
	switch what {
	case "begin":
		c.tx, err = c.conn.Begin(ctx)
	case "commit":
		err = c.tx.Commit(ctx)
	case "rollback":
		err = c.tx.Rollback(ctx)
	default:
		_, err = c.conn.Exec(ctx, what+" s")
	}
	return err
}

func (c *client) query(fields []string) ([]string, error) {
	var arguments []interface{}
	for _, parameter := range strings.Fields(fields[1]) {
		argument, err := c.argument(parameter)
		if err != nil {
			return nil, err
		}
		arguments = append(arguments, argument)
	}
	rows, err := c.conn.Query(ctx, decode(fields[0]), arguments...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var results []string
	columns := strings.Fields(fields[2])
	for rows.Next() {
		row, err := c.row(rows, columns)
		if err != nil {
			return nil, err
		}
		results = append(results, row)
	}
	return results, rows.Err()
}

func (c *client) argument(parameter string) (interface{}, error) {
	kind, text, _ := strings.Cut(parameter, "=")
	switch {
	case kind == "null":
		return nil, nil
	case strings.HasPrefix(text, "@"):
		return c.kept[text[1:]], nil
	case kind == "text[]":
		return native(kind, text)
	}
	return native(kind, decode(text))
}

func (c *client) row(rows pgx.Rows, columns []string) (string, error) {
	var destinations []interface{}
	for _, column := range columns {
		kind, _, _ := strings.Cut(column, ">")
		destinations = append(destinations, destination(kind))
	}
	if err := rows.Scan(destinations...); err != nil {
		return "", err
	}
	var values []string
	for i, column := range columns {
		if _, name, keep := strings.Cut(column, ">"); keep {
			c.kept[name], _, _ = shown(destinations[i])
		}
		values = append(values, show(destinations[i]))
	}
	return strings.Join(values, " "), nil
}

func (c *client) conformance(lines []string) {
	for _, line := range lines {
		fields := strings.Split(line, "\t")
		var rows []string
		var err error
		if fields[1] == "query" {
			rows, err = c.query(fields[2:])
		} else {
			err = c.do(fields[1])
		}
		var refused *pgconn.PgError
		switch {
		case errors.As(err, &refused):
			fmt.Println(strings.Join([]string{fields[0], "error", refused.Code, refused.ColumnName}, "\t"))
		case err != nil:
			fmt.Printf("%s\terror\t%s\t\n", fields[0], url.PathEscape(err.Error()))
		default:
			fmt.Println(strings.Join(append([]string{fields[0], "ok"}, rows...), "\t"))
		}
	}
}

type answer struct {
	outcome string
	body    *string
}

type racer struct {
	conn *pgx.Conn
	me   string
}

func (r racer) bodyFor(key string) *string {
	body := fmt.Sprintf("%s by %s, %d \U0001FAD6", key, r.me, os.Getpid())
	return &body
}

type executor interface {
	Exec(ctx context.Context, sql string, arguments ...interface{}) (pgconn.CommandTag, error)
}

func (r racer) effect(db executor, flow, key string) error {
	_, err := db.Exec(ctx, "INSERT INTO effect VALUES ($1, $2, $3, $4)", flow, key, r.me, os.Getpid())
	return err
}

func (r racer) transactional(key string) (a answer, err error) {
	err = r.conn.BeginFunc(ctx, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx,
			"SELECT outcome, response_body FROM idem_claim('race', $1, request => $2, wait => '20 ms')",
			key, `{"key": "`+key+`"}`).Scan(&a.outcome, &a.body)
		if err != nil || a.outcome != "claimed" {
			return err
		}
		a.body = r.bodyFor(key)
		if err = r.effect(tx, "transactional", key); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "SELECT idem_finish('race', $1, response_body => $2)", key, *a.body)
		return err
	})
	return a, err
}

func (r racer) leased(key string) (a answer, err error) {
	var token pgtype.UUID
	err = r.conn.QueryRow(ctx,
		"SELECT outcome, token, response_body FROM idem_claim('leased race', $1, request => $2,"+
			" lease => '10 min')",
		key, `{"key": "`+key+`"}`).Scan(&a.outcome, &token, &a.body)
	if err != nil || a.outcome != "claimed" {
		return a, err
	}
	if err = r.effect(r.conn, "outside", key); err != nil {
		return a, err
	}
	a.body = r.bodyFor(key)
	err = r.conn.BeginFunc(ctx, func(tx pgx.Tx) error {
		if err := r.effect(tx, "leased", key); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "SELECT idem_finish('leased race', $1, token => $2, response_body => $3)",
			key, token, *a.body)
		return err
	})
	return a, err
}

func (r racer) race(turns []string) error {
	flows := map[string]func(string) (answer, error){"transactional": r.transactional, "leased": r.leased}
	for len(turns) > 0 {
		turn := turns[0]
		turns = turns[1:]
		flow, key, _ := strings.Cut(turn, "\t")
		a, err := flows[flow](key)
		if err != nil {
			return err
		}
		body := ""
		if a.body != nil {
			body = url.PathEscape(*a.body)
		}
		fmt.Printf("%s\t%s\t%s\n", turn, a.outcome, body)
		if a.outcome == "in_progress" {
			turns = append(turns, turn)
		}
	}
	return nil
}

func run() error {
	conn, err := connect(os.Args[1])
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var lines []string
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		lines = append(lines, input.Text())
	}
	if len(os.Args) > 2 {
		return racer{conn, os.Args[2]}.race(lines)
	}
	(&client{conn, nil, map[string]interface{}{}}).conformance(lines)
	return input.Err()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
