package main

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgtype"
	"github.com/jackc/pgx/v4"
)

type answer struct {
	outcome string
	token   pgtype.UUID
	code    *int // NULL is nil
	body    *string
}

func (a *answer) set(code int, body string) {
	a.code, a.body = &code, &body
}

func createOrder(ctx context.Context, db *pgx.Conn, key, user, item string) (a answer, err error) {
	err = db.BeginFunc(ctx, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx,
			`SELECT outcome, response_code, response_body
			 FROM idem_claim('create_order', $1, $2, request => $3, wait => '1 s')`,
			key, user, map[string]string{"item": item}).Scan(&a.outcome, &a.code, &a.body)
		if err != nil || a.outcome != "claimed" {
			return err
		}
		var id int64
		err = tx.QueryRow(ctx, "INSERT INTO orders (customer, item) VALUES ($1, $2) RETURNING id",
			user, item).Scan(&id)
		if err != nil {
			return err
		}
		a.set(201, fmt.Sprintf(`{"order": %d}`, id))
		_, err = tx.Exec(ctx,
			"SELECT idem_finish('create_order', $1, $2, response_code => $3, response_body => $4)",
			key, user, a.code, a.body)
		return err
	})
	return a, err
}

func charge(ctx context.Context, db *pgx.Conn, key, user string, amount int) (a answer, err error) {
	err = db.QueryRow(ctx,
		`SELECT outcome, token, response_code, response_body
		 FROM idem_claim('charge', $1, $2, request => $3, lease => '60 s')`,
		key, user, map[string]int{"amount": amount}).Scan(&a.outcome, &a.token, &a.code, &a.body)
	if err != nil || a.outcome != "claimed" {
		return a, err
	}
	reference := askProvider(amount) // outside of any transaction
	a.set(201, fmt.Sprintf(`{"charge":"%s"}`, reference))
	err = db.BeginFunc(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO payments VALUES ($1, $2, $3)", key, reference, amount)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx,
			"SELECT idem_finish('charge', $1, $2, token => $3, response_code => $4, response_body => $5)",
			key, user, a.token, a.code, a.body)
		return err
	})
	return a, err
}

func (a answer) String() string {
	switch a.outcome {
	case "claimed", "replayed":
		return fmt.Sprint(*a.code, " ", *a.body)
	case "mismatch":
		return "422 mismatch"
	}
	return "409 " + a.outcome
}

func askProvider(amount int) string {
	return fmt.Sprint("ch_", amount)
}

func must(a answer, err error) answer {
	if err != nil {
		log.Fatal(err)
	}
	return a
}

func main() {
	ctx := context.Background()
	db, err := pgx.Connect(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	for i := 0; i < 2; i++ {
		fmt.Println(must(createOrder(ctx, db, "k-1", "42", "tea")))
		fmt.Println(must(charge(ctx, db, "k-2", "42", 500)))
	}
}
