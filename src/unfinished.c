/*
 * unfinished.c
 *		No transaction commits with an unfinished transactional claim.
 *
 * A transactional claim has no lease, so nothing could ever take it over:
 * committed unfinished it would block its key until it expires.  Each such
 * claim of the running transaction is noted here, by its token, and COMMIT or
 * PREPARE TRANSACTION with one open is refused (ID002).
 *
 * Savepoints.  A note remembers in which subtransaction the claim was made
 * and in which it was finished.  When a subtransaction ends well, its notes
 * pass to its parent; when it is rolled back, claims made in it are dropped
 * and finishes made in it are undone.  A note whose claim and finish belong
 * to the same subtransaction stands or falls as one and is dropped at once,
 * so a loop of claim and finish leaves nothing behind.  Both lists below are
 * in order of subtransaction, ancestors first, because a child's entries pass
 * to its parent before the parent adds more: whatever ends is at the tail.
 *
 * The notes only nominate.  Before the commit is refused the table is asked
 * whether the claim is there and still processing, so a claim that was
 * forgotten, truncated or dropped with the table never refuses a commit.
 *
 * Everything lives in the top transaction's memory and goes with it: there is
 * no session state, and a pooler may hand the connection on.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_class.h"
#include "lib/ilist.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "fault.h"
#include "unfinished.h"

typedef struct Note
{
	uint8		token[IDEM_TOKEN_LEN];	/* hash key */
	Oid			table;
	SubTransactionId claimed_in;
	SubTransactionId finished_in;	/* invalid while open */
	dlist_node	claim_link;
	dlist_node	finish_link;	/* linked while finished_in is valid */
	char	   *identity;		/* the texts' bytes, one after the other */
	uint8		len[IDEM_NKEYS];
} Note;

/* All NULL or empty between transactions that claim. */
static HTAB *notes = NULL;
static MemoryContext notes_context = NULL;
static dlist_head claims;
static dlist_head finishes;

static void
forget_all(void)
{
	notes = NULL;
	notes_context = NULL;
	dlist_init(&claims);
	dlist_init(&finishes);
}

static void
create_notes(void)
{
	HASHCTL		ctl;

	notes_context = AllocSetContextCreate(TopTransactionContext, "idempotency claims",
										  ALLOCSET_SMALL_SIZES);
	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = IDEM_TOKEN_LEN;
	ctl.entrysize = sizeof(Note);
	ctl.hcxt = notes_context;
	notes = hash_create("idempotency claims", 16, &ctl,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static void
drop_note(Note *note)
{
	dlist_delete(&note->claim_link);
	if (note->finished_in != InvalidSubTransactionId)
		dlist_delete(&note->finish_link);
	pfree(note->identity);
	hash_search(notes, note->token, HASH_REMOVE, NULL);
}

static char *
copy_identity(const IdemKey *key, uint8 *len)
{
	Size		total = 0;
	char	   *identity;
	char	   *to;

	for (int i = 0; i < IDEM_NKEYS; i++)
	{
		len[i] = VARSIZE_ANY_EXHDR(DatumGetPointer(key->part[i]));
		total += len[i];
	}
	to = identity = MemoryContextAlloc(notes_context, total);
	for (int i = 0; i < IDEM_NKEYS; i++)
	{
		memcpy(to, VARDATA_ANY(DatumGetPointer(key->part[i])), len[i]);
		to += len[i];
	}
	return identity;
}

/* Note a transactional claim that was just written. */
void
idem_unfinished_add(IdemStore *s, const IdemRecord *rec)
{
	Note	   *note;
	char	   *identity;
	uint8		len[IDEM_NKEYS];
	bool		found;

	if (rec->has_lease)
		return;
	if (notes == NULL)
		create_notes();

	/* whatever may fail comes first: a note is whole or is not there */
	identity = copy_identity(&s->key, len);
	note = hash_search(notes, rec->token, HASH_ENTER, &found);
	Assert(!found);
	note->table = RelationGetRelid(s->rel);
	note->claimed_in = GetCurrentSubTransactionId();
	note->finished_in = InvalidSubTransactionId;
	note->identity = identity;
	memcpy(note->len, len, sizeof(len));
	dlist_push_tail(&claims, &note->claim_link);
}

/* Note that the claim was finished, however it ended. */
void
idem_unfinished_settle(const IdemRecord *rec)
{
	Note	   *note = notes ? hash_search(notes, rec->token, HASH_FIND, NULL) : NULL;

	if (note == NULL || note->finished_in != InvalidSubTransactionId)
		return;
	note->finished_in = GetCurrentSubTransactionId();
	dlist_push_tail(&finishes, &note->finish_link);
	if (note->finished_in == note->claimed_in)
		drop_note(note);
}

static Note *
last_claim(SubTransactionId subid)
{
	Note	   *note;

	if (dlist_is_empty(&claims))
		return NULL;
	note = dlist_tail_element(Note, claim_link, &claims);
	return note->claimed_in >= subid ? note : NULL;
}

static Note *
last_finish(SubTransactionId subid)
{
	Note	   *note;

	if (dlist_is_empty(&finishes))
		return NULL;
	note = dlist_tail_element(Note, finish_link, &finishes);
	return note->finished_in >= subid ? note : NULL;
}

static void
abort_subtransaction(SubTransactionId subid)
{
	Note	   *note;

	while ((note = last_finish(subid)) != NULL)
	{
		note->finished_in = InvalidSubTransactionId;
		dlist_delete(&note->finish_link);
	}
	while ((note = last_claim(subid)) != NULL)
		drop_note(note);
}

static void
commit_subtransaction(SubTransactionId subid, SubTransactionId parent)
{
	dlist_iter	iter;
	dlist_node *cur;

	dlist_reverse_foreach(iter, &claims)
	{
		Note	   *note = dlist_container(Note, claim_link, iter.cur);

		if (note->claimed_in < subid)
			break;
		note->claimed_in = parent;
	}

	/* what is now of one subtransaction stands or falls as one */
	for (cur = finishes.head.prev; cur != &finishes.head;)
	{
		Note	   *note = dlist_container(Note, finish_link, cur);

		cur = cur->prev;
		if (note->finished_in < subid)
			break;
		note->finished_in = parent;
		if (note->claimed_in == parent)
			drop_note(note);
	}
}

static void
at_subtransaction_end(SubXactEvent event, SubTransactionId subid,
					  SubTransactionId parent, void *arg)
{
	if (notes == NULL)
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		commit_subtransaction(subid, parent);
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		abort_subtransaction(subid);
}

static char *
part_of(const Note *note, int part)
{
	const char *from = note->identity;

	for (int i = 0; i < part; i++)
		from += note->len[i];
	return pnstrdup(from, note->len[part]);
}

/* Is the noted claim in the table, ours and processing? */
static bool
is_unfinished(const Note *note)
{
	IdemStore	s;
	IdemKey		key;
	bool		unfinished;

	if (get_rel_relkind(note->table) != RELKIND_RELATION)
		return false;
	for (int i = 0; i < IDEM_NKEYS; i++)
		key.part[i] = CStringGetTextDatum(part_of(note, i));

	idem_store_open(&s, note->table, true);
	idem_store_set_key(&s, &key);
	unfinished = idem_store_probe(&s) == PROBE_LIVE && s.own &&
		s.rec.state == IDEM_PROCESSING && !s.rec.has_lease;
	idem_store_close(&s);
	return unfinished;
}

static void
refuse_unfinished(const char *what)
{
	dlist_iter	iter;

	if (dlist_is_empty(&claims))
		return;

	/* an identity that is stored out of line needs a snapshot to be read */
	PushActiveSnapshot(GetTransactionSnapshot());
	dlist_foreach(iter, &claims)
	{
		Note	   *note = dlist_container(Note, claim_link, iter.cur);

		if (note->finished_in != InvalidSubTransactionId || !is_unfinished(note))
			continue;
		ereport(ERROR,
				(errcode(MAKE_SQLSTATE('I', 'D', '0', '0', '2')),
				 errmsg("cannot %s with an unfinished claim of idempotency key \"%s\" in scope \"%s\"",
						what, part_of(note, 1), part_of(note, 0)),
				 errdetail("A claim without a lease is finished in the transaction that made it."),
				 errhint("Call idem_finish before the end of the transaction, or claim with a lease if the work goes on outside of it.")));
	}
	PopActiveSnapshot();
}

static void
at_transaction_end(XactEvent event, void *arg)
{
	if (notes == NULL)
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			FAULT_POINT("at commit");
			refuse_unfinished("commit");
			break;
		case XACT_EVENT_PRE_PREPARE:
			FAULT_POINT("at prepare");
			refuse_unfinished("prepare the transaction");
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			forget_all();
			break;
		default:
			break;
	}
}

/* Called once, when the library is loaded. */
void
idem_unfinished_init(void)
{
	forget_all();
	RegisterXactCallback(at_transaction_end, NULL);
	RegisterSubXactCallback(at_subtransaction_end, NULL);
}
