/*
 * protocol.pml
 *		One key, its clients, an operator, a sweeper and a clock.
 *
 * States, verdicts and rules bear the names that they have in
 * src/transition.h, and each rule reads in the order of the function of the
 * same name in src/transition.c.  Storage is what src/record.c promises: one
 * committed version, at most one uncommitted one, a row lock that lasts until
 * its transaction ends, and a change that is made only if the version decided
 * on is still the live one.
 *
 * What can go wrong does so anywhere: a client dies, a commit's answer is
 * lost, a transaction rolls back, time passes.  README.md tells what is left
 * out, and what the M_... switches, the mutants, stand for.
 */

#ifndef CLIENTS
#define CLIENTS	2
#endif
#ifndef TRIES					/* requests that a client makes */
#define TRIES	2
#endif
#ifndef OPERATIONS				/* calls that the operator makes */
#define OPERATIONS	1
#endif
#ifndef UNTIL					/* the clock stops then */
#define UNTIL	5
#endif
#ifndef LEASE
#define LEASE	2
#endif
#ifndef TTL
#define TTL		2
#endif

#ifndef STRANGER				/* a client with another request than the rest */
#define STRANGER	0
#endif

#define OPERATOR	(CLIENTS + 1)
#define SWEEPER		(CLIENTS + 2)
#define NOBODY		0

/* IdemState */
#define IDEM_PROCESSING	0
#define IDEM_SUCCEEDED	1
#define IDEM_FAILED		2
#define IDEM_RELEASED	3
#define IDEM_UNKNOWN	4

/* IdemAbandon */
#define IDEM_ABANDON_UNKNOWN	0
#define IDEM_ABANDON_RETRY		1

/* IdemVerdict */
#define IDEM_GRANT_FIRST	0
#define IDEM_GRANT_NEXT		1
#define IDEM_GRANT_REPEAT	2
#define IDEM_ABSENT			3
#define IDEM_REPLAY			4
#define IDEM_BUSY			5
#define IDEM_BUSY_SELF		6
#define IDEM_MISMATCH		7
#define IDEM_UNDECIDED		8
#define IDEM_FREE			9
#define IDEM_TOKEN_REUSED	10
#define IDEM_IS_GRANT(v)	((v) <= IDEM_GRANT_REPEAT)

/* IdemOwnership */
#define IDEM_OWNED			0
#define IDEM_ALREADY		1
#define IDEM_LOST_GONE		3
#define IDEM_LOST_TAKEN		4
#define IDEM_LOST_FINISHED	5
#define IDEM_NOT_LEASED		6

typedef IdemRecord
{
	bit			there;			/* else there is no version, and all else is 0 */
	unsigned	state : 3;
	bit			on_abandon;
	bit			progressed;
	bit			has_lease;
	bit			fingerprint;
	unsigned	attempt : 3;
	unsigned	token : 4;
	unsigned	expires_at : 4;
	unsigned	lease_expires_at : 4;
	unsigned	response : 5;

	/* what no record holds: for the invariants */
	unsigned	owner : 3;		/* who was granted this attempt */
	bit			row;			/* the business row of this life is in the database */
	unsigned	finished_at : 4;
};

#define COPY(to, from) \
	to.there = from.there; to.state = from.state; to.on_abandon = from.on_abandon; \
	to.progressed = from.progressed; to.has_lease = from.has_lease; \
	to.fingerprint = from.fingerprint; to.attempt = from.attempt; to.token = from.token; \
	to.expires_at = from.expires_at; to.lease_expires_at = from.lease_expires_at; \
	to.response = from.response; to.owner = from.owner; to.row = from.row; \
	to.finished_at = from.finished_at

#define CLEAR(r) \
	r.there = 0; r.state = 0; r.on_abandon = 0; r.progressed = 0; r.has_lease = 0; \
	r.fingerprint = 0; r.attempt = 0; r.token = 0; r.expires_at = 0; \
	r.lease_expires_at = 0; r.response = 0; r.owner = 0; r.row = 0; r.finished_at = 0

/* ----------------------------------------------------------------
 * The database
 * ---------------------------------------------------------------- */

unsigned now : 4;					/* the server's clock */
IdemRecord rec;					/* the committed version */
IdemRecord pend;				/* what the transaction of holder makes of it */
unsigned holder : 3;			/* of the row lock */
bit changing;					/* holder has written, not merely locked */
bit seen[SWEEPER + 1];			/* the version that was probed is still the live one */
unsigned drawn : 4;			/* tokens are numbers, none drawn twice */

/* ----------------------------------------------------------------
 * What is true of the world, which no call can ask
 * ---------------------------------------------------------------- */

byte token_of[OPERATOR + 1];	/* the token of a grant that was heard of */
byte lease_of[OPERATOR + 1];	/* until when its holder thinks that it has the lease */
#define IN_TRANSACTION	255		/* of a transactional claim: until it ends */
bit fenced[OPERATOR + 1];		/* an operator took its claim away */
bit outside;					/* an effect is out there, its outcome not recorded */
bit told_unknown;				/* somebody was told "unknown", and nobody has settled it */
unsigned answer : 5;		/* the first response recorded in this life */

/* ----------------------------------------------------------------
 * Invariants.  Each is a variable that stays false, so that a violated
 * assertion shows its name.
 * ---------------------------------------------------------------- */

hidden byte one_owner;			/* at most one owner with a live lease or transaction */
hidden byte only_owner_writes;	/* nothing of a fenced owner is recorded */
hidden byte unknown_stays;		/* no claim gets what was unknown */
hidden byte effect_once;			/* time alone never repeats an outside effect */
hidden byte replays_equal;		/* all replays of a life are its first answer */
hidden byte all_or_nothing;		/* business row and answer, or neither */
hidden byte by_the_clock;		/* decided by the clock at the decision */
hidden byte answer_kept;			/* an answer replays for its ttl, a late one too */
hidden byte record_shape;		/* the table's CHECK constraints */
hidden byte lookup_agrees;		/* lookup says what claim would */
hidden byte fenced_while_locked;	/* under idem_assert, nobody else is granted */

#define INVARIANT(name, condition)	assert(name || (condition))

/* ----------------------------------------------------------------
 * transition.c.  cur is the version at hand, own: this transaction wrote it,
 * t: the clock; nxt is the next record.  All are used within one step.
 * ---------------------------------------------------------------- */

hidden IdemRecord cur;
hidden IdemRecord nxt;
hidden byte own;
hidden byte t;
hidden byte verdict;
hidden byte looked_up;
hidden byte other;

/* What a call asks for. */
hidden byte req_token;			/* 0: none; for finish and renewal, the owner's */
hidden byte req_lease;			/* else transactional */
hidden byte req_on_abandon;
hidden byte req_fingerprint;
hidden byte req_force;
hidden byte req_state;

/* Each decision is made again by transition.c itself: see conform.c. */
#ifdef CONFORM
c_decl {
	extern void conform_record(int, int, int, int, int, int, int, int, int, int, int);
	extern void conform_request(int, int, int, int, int, int);
	extern void conform_claim(int, int, int);
	extern void conform_takeover(int, int, int);
	extern void conform_lookup(int, int, int);
	extern void conform_finish(int, int, int);
	extern void conform_renewal(int, int, int);
};
#define HAND_OVER(which, r) \
	conform_record(which, r.there, r.state, r.on_abandon, r.attempt, r.progressed, \
				   r.has_lease, r.fingerprint, r.token, r.expires_at, r.lease_expires_at)
#define CONFORMS(what, its_verdict) \
	c_code { \
		HAND_OVER(0, cur); \
		HAND_OVER(1, nxt); \
		conform_request(req_token, req_lease, req_on_abandon, req_fingerprint, \
						req_force, req_state); \
		conform_##what(own, t, its_verdict); \
	}
#else
#define CONFORMS(what, its_verdict)	skip
#endif

#define is_settled(r) \
	(r.state == IDEM_SUCCEEDED || r.state == IDEM_FAILED)

#define is_abandoned(r) \
	(r.state == IDEM_PROCESSING && r.has_lease && r.lease_expires_at <= t)

#ifdef M_UNKNOWN_EXPIRES
#define NEVER_EXPIRES(r)	false
#else
#define NEVER_EXPIRES(r)	(r.state == IDEM_UNKNOWN)
#endif

#define idem_is_expired(r) \
	(r.expires_at <= t && !NEVER_EXPIRES(r) && \
	 (is_settled(r) || r.state == IDEM_RELEASED || r.state == IDEM_UNKNOWN || \
	  (is_abandoned(r) && r.on_abandon == IDEM_ABANDON_RETRY)))

#define is_absent(r) \
	(!r.there || (!(own && r.state == IDEM_PROCESSING) && idem_is_expired(r)))

#ifdef M_RECLAIM_UNKNOWN
#define idem_needs_reconciling(r)	(r.state == IDEM_UNKNOWN)
#else
#define idem_needs_reconciling(r) \
	(r.state == IDEM_UNKNOWN || \
	 (is_abandoned(r) && r.on_abandon == IDEM_ABANDON_UNKNOWN))
#endif

inline set_lease(leased)
{
	nxt.has_lease = leased;
	nxt.lease_expires_at = (leased -> t + LEASE : 0)
}

inline start_attempt(who)
{
	nxt.there = true;
	nxt.state = IDEM_PROCESSING;
	nxt.progressed = false;
	nxt.response = 0;
	nxt.finished_at = 0;
	nxt.expires_at = t + TTL;
	nxt.owner = who;
	set_lease(req_lease);
	nxt.token = req_token
}

inline grant_first(who)
{
	CLEAR(nxt);
	nxt.attempt = 1;
	nxt.on_abandon = req_on_abandon;
	nxt.fingerprint = req_fingerprint;
	start_attempt(who);
	verdict = IDEM_GRANT_FIRST
}

inline grant_next(who)
{
	nxt.attempt = cur.attempt + 1;
	start_attempt(who);
	verdict = IDEM_GRANT_NEXT
}

#define holds_token	(cur.there && req_token != 0 && cur.token == req_token)

#ifdef M_REPEAT_AFTER_PROGRESS
#define PROGRESSED	false
#else
#define PROGRESSED	cur.progressed
#endif

#ifdef M_CLAIM_IGNORES_LEASE
#define CLAIM_IS_BUSY	false
#else
#define CLAIM_IS_BUSY	(cur.state == IDEM_PROCESSING && !is_abandoned(cur))
#endif

inline idem_decide_claim(who)
{
	if
	:: is_absent(cur) && holds_token -> verdict = IDEM_TOKEN_REUSED
	:: is_absent(cur) && !holds_token -> grant_first(who)
	:: else ->
		if
		:: cur.fingerprint != req_fingerprint -> verdict = IDEM_MISMATCH
		:: else ->
			if
			:: holds_token && cur.state == IDEM_PROCESSING && !PROGRESSED &&
				cur.has_lease && cur.lease_expires_at > t ->
				COPY(nxt, cur);
				set_lease(req_lease);
				verdict = IDEM_GRANT_REPEAT
			:: else ->
				if
				:: cur.state == IDEM_PROCESSING && own -> verdict = IDEM_BUSY_SELF
				:: is_settled(cur) -> verdict = IDEM_REPLAY
				:: idem_needs_reconciling(cur) -> verdict = IDEM_UNDECIDED
				:: !(cur.state == IDEM_PROCESSING && own) && CLAIM_IS_BUSY ->
					verdict = IDEM_BUSY
				:: else ->
					if
					:: holds_token -> verdict = IDEM_TOKEN_REUSED
					:: else ->
						COPY(nxt, cur);
						nxt.on_abandon = req_on_abandon;
						grant_next(who)
					fi
				fi
			fi
		fi
	fi;
	CONFORMS(claim, verdict)
}

#ifdef M_TAKEOVER_IGNORES_LEASE
#define TAKEOVER_IS_BUSY	false
#else
#define TAKEOVER_IS_BUSY \
	(cur.state == IDEM_PROCESSING && !is_abandoned(cur) && !req_force)
#endif

#define idem_needs_token \
	((verdict == IDEM_GRANT_FIRST || verdict == IDEM_GRANT_NEXT) && req_token == 0)

/* A random token, which only a mutant can make anything but new. */
inline draw_token()
{
	if
	:: idem_needs_token ->
#ifdef M_TOKEN_REUSED
		nxt.token = nxt.attempt			/* a count that a sweep starts anew */
#else
		drawn++;
		nxt.token = drawn
#endif
	:: else -> skip
	fi
}

inline idem_decide_takeover(who)
{
	if
	:: is_absent(cur) -> verdict = IDEM_ABSENT
	:: else ->
		if
		:: cur.state == IDEM_PROCESSING && own -> verdict = IDEM_BUSY_SELF
		:: is_settled(cur) -> verdict = IDEM_REPLAY
		:: !(cur.state == IDEM_PROCESSING && own) && TAKEOVER_IS_BUSY ->
			verdict = IDEM_BUSY
		:: else ->
			COPY(nxt, cur);
			grant_next(who)
		fi
	fi;
	CONFORMS(takeover, verdict)
}

inline idem_decide_lookup()
{
	if
	:: is_absent(cur) -> looked_up = IDEM_ABSENT
	:: else ->
		if
		:: cur.state == IDEM_PROCESSING && own -> looked_up = IDEM_BUSY_SELF
		:: is_settled(cur) -> looked_up = IDEM_REPLAY
		:: idem_needs_reconciling(cur) -> looked_up = IDEM_UNDECIDED
		:: !(cur.state == IDEM_PROCESSING && own) &&
			(cur.state == IDEM_RELEASED || is_abandoned(cur)) && !idem_needs_reconciling(cur) ->
			looked_up = IDEM_FREE
		:: else -> looked_up = IDEM_BUSY
		fi
	fi;
	CONFORMS(lookup, looked_up)
}

inline check_owner()
{
	if
	:: !cur.there -> verdict = IDEM_LOST_GONE
#ifdef M_NO_FENCE
	:: cur.there -> verdict = IDEM_OWNED
#else
	:: cur.there && cur.token == req_token -> verdict = IDEM_OWNED
	:: cur.there && cur.token != req_token -> verdict = IDEM_LOST_TAKEN
#endif
	fi
}

#ifdef M_FINISH_AGAIN
#define FINISHED	false
#else
#define FINISHED	(cur.state != IDEM_PROCESSING && cur.state != IDEM_UNKNOWN)
#endif

inline idem_decide_finish()
{
	check_owner();
	if
	:: verdict == IDEM_OWNED && cur.state == req_state -> verdict = IDEM_ALREADY
	:: verdict == IDEM_OWNED && cur.state != req_state && FINISHED ->
		verdict = IDEM_LOST_FINISHED
	:: verdict == IDEM_OWNED && cur.state != req_state && !FINISHED ->
		COPY(nxt, cur);
		nxt.state = req_state;
		nxt.finished_at = t;
		if
		:: req_state == IDEM_UNKNOWN ->
			if
			:: !nxt.has_lease || nxt.lease_expires_at > t -> nxt.lease_expires_at = t
			:: else -> skip
			fi;
			nxt.has_lease = true;
#ifndef M_UNKNOWN_KEEPS_RETRY
			nxt.on_abandon = IDEM_ABANDON_UNKNOWN
#endif
#ifdef M_RELEASE_KEEPS_LEASE
		:: req_state == IDEM_RELEASED -> skip
		:: req_state == IDEM_SUCCEEDED || req_state == IDEM_FAILED ->
#else
		:: else ->
#endif
			nxt.has_lease = false;
			nxt.lease_expires_at = 0
		fi;
		if
#ifndef M_FINISH_KEEPS_EXPIRY
		:: cur.expires_at - t < TTL / 2 -> nxt.expires_at = t + TTL
#endif
		:: else -> skip
		fi
	:: else -> skip
	fi;
	CONFORMS(finish, verdict)
}

inline idem_decide_renewal()
{
	check_owner();
	if
	:: verdict == IDEM_OWNED && cur.state != IDEM_PROCESSING -> verdict = IDEM_LOST_FINISHED
	:: verdict == IDEM_OWNED && cur.state == IDEM_PROCESSING && !cur.has_lease ->
		verdict = IDEM_NOT_LEASED
	:: verdict == IDEM_OWNED && cur.state == IDEM_PROCESSING && cur.has_lease ->
		COPY(nxt, cur);
		nxt.progressed = true;
		set_lease(true);
		nxt.on_abandon = req_on_abandon
	:: else -> skip
	fi;
	CONFORMS(renewal, verdict)
}

/* ----------------------------------------------------------------
 * record.c
 * ---------------------------------------------------------------- */

#define HELD_BY_OTHER(who)	(holder != NOBODY && holder != who)
#define PROBE_HELD(who)		(HELD_BY_OTHER(who) && changing)

/* Let the version at hand and the clock be those that the call decides by. */
inline at_hand(who)
{
	own = (holder == who && changing);
	if
	:: own -> COPY(cur, pend)
#ifdef M_NO_RECHECK
	:: else -> COPY(cur, probed)
#else
	:: else -> COPY(cur, rec)
#endif
	fi
}

/* The version decided on becomes nxt, uncommitted. */
inline store(who)
{
	COPY(pend, nxt);
	holder = who;
	changing = true
}

inline lock_only(who)
{
	holder = who
}

inline end_transaction(who)
{
	if
	:: who <= OPERATOR && lease_of[who] == IN_TRANSACTION -> lease_of[who] = 0
	:: else -> skip
	fi;
	CLEAR(pend);
	holder = NOBODY;
	changing = false
}

inline rollback(who)
{
	d_step {
		if
		:: holder == who -> end_transaction(who)
		:: else -> skip
		fi
	}
}

/* What every committed record must be like, and what its commit makes true. */
inline commit(who)
{
	d_step {
		if
		:: holder == who && changing ->
			INVARIANT(record_shape, !pend.there ||
				(pend.has_lease -> pend.state == IDEM_PROCESSING || pend.state == IDEM_UNKNOWN
				 : pend.state != IDEM_UNKNOWN));
			INVARIANT(all_or_nothing, !pend.there ||
				(pend.row == (pend.state == IDEM_SUCCEEDED) &&
				 (pend.response != 0) == is_settled(pend) &&
				 (pend.state != IDEM_PROCESSING || pend.has_lease)));
			if
			:: !pend.there || pend.attempt < rec.attempt || pend.attempt == 1 && pend.token != rec.token ->
				answer = 0				/* another life */
			:: else -> skip
			fi;
			if
			:: is_settled(pend) && answer == 0 -> answer = pend.response
			:: else -> skip
			fi;
			if
			:: is_settled(pend) || !pend.there -> outside = false
			:: else -> skip
			fi;
			if
			:: is_settled(pend) || pend.state == IDEM_RELEASED || !pend.there ->
				told_unknown = false
			:: else -> skip
			fi;
			COPY(rec, pend);
			for (other : 1 .. SWEEPER) {
				seen[other] = false
			};
			other = 0;
			end_transaction(who)
		:: holder == who && !changing -> end_transaction(who)
		:: else -> skip
		fi
	}
}

/* ----------------------------------------------------------------
 * What is asserted of decisions
 * ---------------------------------------------------------------- */

#define OWNS(who)	(token_of[who] != 0 && lease_of[who] > now)

/* Somebody becomes owner, or becomes it for longer. */
inline check_owners(who)
{
	for (other : 1 .. OPERATOR) {
		INVARIANT(one_owner, other == who || !OWNS(other))
	};
	other = 0
}

/* A lease or an expiry is counted from the moment of the decision. */
inline check_times()
{
	INVARIANT(by_the_clock, !nxt.has_lease || nxt.state != IDEM_PROCESSING ||
		nxt.lease_expires_at == now + LEASE)
}

inline check_grant(who)
{
	check_owners(who);
	check_times();
	INVARIANT(fenced_while_locked, !HELD_BY_OTHER(who));
	INVARIANT(answer_kept, !cur.there || !is_settled(cur) ||
		(cur.expires_at <= now && now >= cur.finished_at + TTL / 2))
}

/* By a claim.  An operator may do more. */
inline check_claim(who)
{
	idem_decide_lookup();
	if
	:: IDEM_IS_GRANT(verdict) ->
		check_grant(who);
		INVARIANT(unknown_stays, !told_unknown);
		INVARIANT(lookup_agrees,
			looked_up == (verdict == IDEM_GRANT_FIRST -> IDEM_ABSENT :
						  (verdict == IDEM_GRANT_NEXT -> IDEM_FREE : IDEM_BUSY)))
	:: verdict == IDEM_REPLAY ->
		INVARIANT(replays_equal, own || cur.response == answer);
		INVARIANT(replays_equal, cur.fingerprint == req_fingerprint);
		INVARIANT(by_the_clock, cur.expires_at > now);
		INVARIANT(lookup_agrees, looked_up == IDEM_REPLAY)
	:: verdict == IDEM_UNDECIDED ->
		told_unknown = !own;
		INVARIANT(lookup_agrees, looked_up == IDEM_UNDECIDED)
	:: verdict == IDEM_BUSY ->
		INVARIANT(by_the_clock, cur.lease_expires_at > now);
		INVARIANT(lookup_agrees, looked_up == IDEM_BUSY)
	:: verdict == IDEM_MISMATCH ->
		INVARIANT(lookup_agrees, looked_up != IDEM_ABSENT)
	:: verdict == IDEM_TOKEN_REUSED ->
		INVARIANT(lookup_agrees, looked_up == IDEM_ABSENT || looked_up == IDEM_FREE)
	:: else -> skip
	fi
}

/* What an owner's call recorded. */
inline check_written(who)
{
	INVARIANT(only_owner_writes, cur.owner == who);
	INVARIANT(only_owner_writes, !HELD_BY_OTHER(who))
}

inline check_finished(who)
{
	check_written(who);
	INVARIANT(answer_kept, nxt.expires_at >= now + TTL / 2);
	INVARIANT(answer_kept, cur.expires_at > now || nxt.expires_at == now + TTL)
}

/* The response and the business row that a finish brings. */
inline bring_response()
{
	nxt.response = (req_state == IDEM_SUCCEEDED -> 2 * cur.token :
					(req_state == IDEM_FAILED -> 2 * cur.token + 1 : 0));
	if
	:: req_state == IDEM_SUCCEEDED ->
		INVARIANT(all_or_nothing, !cur.row);
		nxt.row = true
	:: else -> skip
	fi
}

/* Nobody whom the operator takes a claim from counts any more. */
inline fence_others(who)
{
	for (other : 1 .. OPERATOR) {
		if
		:: other != who && token_of[other] != 0 ->
			fenced[other] = true;
			lease_of[other] = 0
		:: else -> skip
		fi
	};
	other = 0
}

/* ----------------------------------------------------------------
 * Clients
 * ---------------------------------------------------------------- */

/* A mutant that reads the clock before it waits. */
#ifdef M_FROZEN_CLOCK
#define READ_CLOCK_EARLY	early = now
#define CLOCK				early
#else
#define READ_CLOCK_EARLY	skip
#define CLOCK				now
#endif

/* A mutant that decides on what it probed, and writes over whatever is there by then. */
#ifdef M_NO_RECHECK
#define PROBE_DONE(who)		seen[who] = true; COPY(probed, rec)
#define STILL(who)			true
#else
#define PROBE_DONE(who)		seen[who] = true
#define STILL(who)			seen[who]
#endif

#define NOTHING		7

inline forget_claim(who)
{
	token_of[who] = 0;
	lease_of[who] = 0;
	fenced[who] = false;
	checkpointed = false;
	acted = false;
	state = NOTHING
}

/* Another request will be made by somebody who knows nothing of this one. */
inline restart(who)
{
	d_step {
		forget_claim(who);
		seen[who] = false;
		v = 0;
		claim_token = 0;
		leased = false;
		on_abandon = IDEM_ABANDON_UNKNOWN;
		force = false
	}
}

inline claim(who)
{
	d_step {
		t = CLOCK;
		at_hand(who);
		req_token = claim_token;
		req_lease = leased;
		req_on_abandon = on_abandon;
		req_fingerprint = fingerprint;
		idem_decide_claim(who);
		if
		:: IDEM_IS_GRANT(verdict) && HELD_BY_OTHER(who) -> verdict = IDEM_BUSY
		:: else ->
			check_claim(who);
			if
			:: IDEM_IS_GRANT(verdict) ->
				draw_token();
				store(who)
			:: else -> skip
			fi
		fi;
		v = verdict
	}
}

inline takeover(who)
{
	d_step {
		t = CLOCK;
		at_hand(who);
		req_token = 0;
		req_lease = leased;
		req_force = force;
		idem_decide_takeover(who);
		if
		:: verdict == IDEM_GRANT_NEXT && HELD_BY_OTHER(who) -> verdict = IDEM_BUSY
		:: verdict == IDEM_GRANT_NEXT && !HELD_BY_OTHER(who) ->
			if
			:: force -> fence_others(who)
			:: else -> skip
			fi;
			check_grant(who);
			fence_others(who);
			draw_token();
#ifdef M_TAKEOVER_KEEPS_TOKEN
			nxt.token = cur.token;
#endif
			if
			:: state != NOTHING ->		/* resolve: the attempt and its end are one change */
				COPY(cur, nxt);
				own = true;
				req_token = cur.token;
				req_state = (outside -> IDEM_SUCCEEDED : state);	/* it has asked */
				idem_decide_finish();
				bring_response();
				check_finished(who)
			:: else -> skip
			fi;
			store(who)
		:: verdict == IDEM_REPLAY ->
			INVARIANT(replays_equal, own || cur.response == answer)
		:: else -> skip
		fi;
		v = (verdict == IDEM_OWNED -> IDEM_GRANT_NEXT : verdict)
	}
}

inline finish(who)
{
	d_step {
		t = CLOCK;
		at_hand(who);
		req_token = token_of[who];
		req_state = state;
		idem_decide_finish();
		INVARIANT(fenced_while_locked, holder != who || verdict == IDEM_OWNED);
		if
		:: verdict == IDEM_OWNED ->
			bring_response();
			check_finished(who);
			lease_of[who] = 0;
			store(who)
		:: else -> skip
		fi;
		v = verdict
	}
}

/* idem_extend and idem_checkpoint */
inline renew(who)
{
	d_step {
		t = CLOCK;
		at_hand(who);
		req_token = token_of[who];
		req_on_abandon = on_abandon;
		idem_decide_renewal();
		if
		:: verdict == IDEM_OWNED ->
			check_written(who);
			check_owners(who);
			check_times();
			store(who)
		:: else -> skip
		fi;
		v = verdict
	}
}

/* idem_assert */
inline fence(who)
{
	d_step {
		t = CLOCK;
		at_hand(who);
		req_token = token_of[who];
		req_on_abandon = cur.on_abandon;
		idem_decide_renewal();
		if
		:: verdict == IDEM_OWNED ->
			INVARIANT(only_owner_writes, cur.owner == who);
			lock_only(who)
		:: else -> skip
		fi;
		v = verdict
	}
}

inline forget(who)
{
	d_step {
		at_hand(who);
		v = IDEM_ABSENT;
		if
		:: cur.there ->
			CLEAR(nxt);
			fence_others(who);
			store(who);
			v = IDEM_OWNED
		:: else -> skip
		fi
	}
}

/* The answer to a committed claim or takeover has come. */
inline hear_of_grant(who)
{
	token_of[who] = rec.token;
	lease_of[who] = rec.lease_expires_at;
	fenced[who] = false;
	on_abandon = rec.on_abandon;
	acted = (who == OPERATOR && outside)	/* it asks before it acts */
}

/*
 * What a client is to do by the documentation: it acts outside only under a
 * leased claim that it knows to be committed; where a lapse of the lease would
 * let another run, or its own claim be repeated, it checkpoints first.
 */
#define MAY_ACT \
	(!acted && (checkpointed || (claim_token == 0 && on_abandon == IDEM_ABANDON_UNKNOWN)))

inline act(who)
{
	INVARIANT(effect_once, fenced[who] || !outside);
	outside = outside || !fenced[who];
	acted = true
}

/* It does not know; the loop around it makes the same request again. */
inline unheard(who)
{
	if
	:: claim_token != 0 && tries > 0 ->
		d_step {
			tries--;
			forget_claim(who);
			READ_CLOCK_EARLY
		};
		goto ask
	:: restart(who); goto again
	fi
}

inline unheard_finish(who)
{
	if
	:: leased -> goto finishing
	:: leased && state == IDEM_SUCCEEDED -> state = IDEM_UNKNOWN; goto finishing
	:: unheard(who)
	fi
}

proctype Client(byte me)
{
	unsigned v : 4;
	unsigned tries : 3 = (me == OPERATOR -> OPERATIONS : TRIES);
	unsigned claim_token : 4;
	unsigned state : 3 = NOTHING;
	bit fingerprint = (me == STRANGER);	/* it asks for something else */
	bit leased;
	bit on_abandon;
	bit force;
	bit checkpointed;
	bit acted;
#ifdef M_FROZEN_CLOCK
	byte early;
#endif
#ifdef M_NO_RECHECK
	IdemRecord probed;
#endif

again:	/* another request, or the end */
	atomic {
		if
		:: tries == 0 -> goto done
		:: else -> tries--
		fi;
		READ_CLOCK_EARLY;
		if
		:: me == OPERATOR -> goto operate
		:: else -> skip
		fi;
		if
		:: goto ask
		:: leased = true
		fi;
		if
		:: on_abandon = IDEM_ABANDON_RETRY
		:: skip
		fi;
		if
#ifndef M_TOKEN_REUSED
		:: drawn++; claim_token = drawn
#endif
		:: skip
		fi
	};

ask:	/* a claim; not going on is to wait */
	atomic {
		if
		:: !PROBE_HELD(me) -> PROBE_DONE(me)
		:: PROBE_HELD(me) -> restart(me); goto again
		fi
	};
	atomic {
		if
		:: !STILL(me) -> goto ask
		:: else -> skip
		fi;
		claim(me);
		seen[me] = false;
		if
		:: v == IDEM_BUSY -> v = 0; goto ask
		:: v == IDEM_BUSY -> restart(me); goto again
		:: !IDEM_IS_GRANT(v) && v != IDEM_BUSY -> restart(me); goto again
		:: IDEM_IS_GRANT(v) && leased -> v = 0
		:: IDEM_IS_GRANT(v) && !leased -> v = 0; goto inside
		fi
	};

#ifdef M_ACT_BEFORE_COMMIT
	if
	:: MAY_ACT -> act(me)
	:: else -> skip
	fi;
#endif
	if
	:: atomic { commit(me); hear_of_grant(me) }
	:: atomic { commit(me); unheard(me) }
	:: atomic { rollback(me); unheard(me) }
	fi;

work:	/* outside of the database, under a lease */
	if
	:: MAY_ACT -> atomic { act(me); goto work }
	:: atomic { on_abandon = IDEM_ABANDON_UNKNOWN; goto renewal }
	:: atomic { on_abandon == IDEM_ABANDON_RETRY -> goto renewal }
	:: atomic { acted || on_abandon == IDEM_ABANDON_RETRY -> state = IDEM_SUCCEEDED }
	:: atomic { acted -> state = IDEM_UNKNOWN }
	:: atomic { !acted -> state = IDEM_RELEASED }
	:: atomic { !acted -> state = IDEM_FAILED }
	:: atomic { restart(me); goto again }	/* it dies */
	fi;
	goto finishing;

renewal:
	atomic { !PROBE_HELD(me) -> PROBE_DONE(me) };
	atomic {
		if
		:: !STILL(me) -> goto renewal
		:: STILL(me) && !HELD_BY_OTHER(me)
		fi;
		renew(me);
		seen[me] = false;
		if
		:: v != IDEM_OWNED -> restart(me); goto again
		:: v == IDEM_OWNED -> v = 0
		fi
	};
	if
	:: atomic {
			commit(me);
			lease_of[me] = rec.lease_expires_at;
			checkpointed = (on_abandon == IDEM_ABANDON_UNKNOWN)
		}
	:: atomic { commit(me); unheard(me) }
	:: atomic { rollback(me); unheard(me) }
	fi;
	goto work;

inside:	/* a transactional claim, or takeover */
	atomic {
		token_of[me] = pend.token;
		lease_of[me] = IN_TRANSACTION;
		if
		:: state = IDEM_SUCCEEDED
		:: me != OPERATOR || !outside -> state = IDEM_FAILED
		:: rollback(me); restart(me); goto again		/* or a commit without a finish: ID002 */
#ifdef M_COMMIT_UNFINISHED
		:: commit(me); restart(me); goto again
#endif
		fi
	};

finishing:
	atomic { !PROBE_HELD(me) -> PROBE_DONE(me) };
	if
	:: skip
	:: atomic {							/* business rows under a fence, then the finish */
			leased && state == IDEM_SUCCEEDED && STILL(me) && !HELD_BY_OTHER(me) ->
			fence(me);
			if
			:: v != IDEM_OWNED -> restart(me); goto again
			:: v == IDEM_OWNED -> v = 0
			fi
		}
	fi;
	atomic {
		if
		:: !STILL(me) -> rollback(me); goto finishing
		:: STILL(me) && !HELD_BY_OTHER(me)
		fi;
		finish(me);
		seen[me] = false;
		if
		:: v != IDEM_OWNED -> rollback(me); restart(me); goto again
		:: v == IDEM_OWNED -> v = 0
		fi
	};
	if
	:: atomic { state == IDEM_UNKNOWN -> commit(me); state = IDEM_SUCCEEDED; goto finishing }
	:: atomic { commit(me); restart(me); goto again }
	:: atomic { commit(me); unheard_finish(me) }
	:: atomic { rollback(me); unheard_finish(me) }
	fi;

operate:	/* the operator's calls, within the atomic step of again */
	atomic {
		if
		:: leased = true
		:: leased = false
		:: state = IDEM_SUCCEEDED
		:: state = IDEM_RELEASED
		:: goto forgetting
		fi;
		if
		:: force = true
		:: force = false
		fi
	};
taking_over:
	atomic {
		if
		:: !PROBE_HELD(me) -> PROBE_DONE(me)
		:: PROBE_HELD(me) -> restart(me); goto again
		fi
	};
	atomic {
		if
		:: !STILL(me) -> goto taking_over
		:: else -> skip
		fi;
		takeover(me);
		seen[me] = false;
		if
		:: v == IDEM_BUSY -> v = 0; goto taking_over
		:: v != IDEM_GRANT_NEXT -> restart(me); goto again
		:: v == IDEM_GRANT_NEXT && state == NOTHING && !leased -> v = 0; goto inside
		:: v == IDEM_GRANT_NEXT && (state != NOTHING || leased) -> v = 0
		fi
	};
	if
	:: atomic { state == NOTHING -> commit(me); hear_of_grant(me); goto work }
	:: atomic { commit(me); restart(me); goto again }
	:: atomic { rollback(me); restart(me); goto again }
	fi;

forgetting:
	atomic { !HELD_BY_OTHER(me) -> PROBE_DONE(me) };
	atomic {
		if
		:: !STILL(me) -> goto forgetting
		:: STILL(me) && !HELD_BY_OTHER(me)
		fi;
		forget(me);
		if
		:: v == IDEM_OWNED -> v = 0
		:: v != IDEM_OWNED -> restart(me); goto again
		fi
	};
	if
	:: atomic { commit(me); restart(me); goto again }
	:: atomic { rollback(me); restart(me); goto again }
	fi;

done:
	skip
}

/* ----------------------------------------------------------------
 * Sweeper and clock
 * ---------------------------------------------------------------- */

#ifdef M_SWEEP_IGNORES_STATE
#define SWEEPABLE(r)	(r.expires_at <= now && (r.state != IDEM_PROCESSING || (r.has_lease && r.lease_expires_at <= now)))
#else
#ifdef M_SWEEP_IGNORES_LEASE
#define SWEEPABLE(r) \
	(r.expires_at <= now && (is_settled(r) || r.state == IDEM_RELEASED || \
	 (r.state == IDEM_PROCESSING && r.on_abandon == IDEM_ABANDON_RETRY)))
#else
#define SWEEPABLE(r)	idem_is_expired(r)
#endif
#endif

inline check_swept()
{
	check_owners(SWEEPER);
	INVARIANT(unknown_stays, !told_unknown);
	INVARIANT(effect_once, !outside);
	INVARIANT(answer_kept, !is_settled(cur) || now >= cur.finished_at + TTL / 2)
}

#ifdef M_SWEEP_NO_RECHECK
#define STILL_SWEEPABLE(r)	true
#else
#define STILL_SWEEPABLE(r)	(seen[SWEEPER] && SWEEPABLE(r))
#endif

proctype Sweeper()
{
	bit found;

end:
	do
	:: atomic {
			rec.there && rec.expires_at <= now && holder == NOBODY ->
			d_step {
				t = now;
				own = false;
				found = SWEEPABLE(rec);
				seen[SWEEPER] = found
			}
		};
		if
		:: !found -> goto end
		:: else -> skip
		fi;
		atomic {
			d_step {
				found = false;
				t = now;
				own = false;
				if
				:: holder == NOBODY && rec.there && STILL_SWEEPABLE(rec) ->
					COPY(cur, rec);
					check_swept();
					CLEAR(nxt);
					store(SWEEPER)
				:: else -> skip
				fi;
				seen[SWEEPER] = false
			};
			if
			:: holder != SWEEPER -> goto end
			:: else -> skip
			fi
		};
		if
		:: commit(SWEEPER)
		:: rollback(SWEEPER)
		fi
	od
}

proctype Clock()
{
end:
	do
	:: now < UNTIL -> now++
	od
}

init
{
	atomic {
		byte who;

		for (who : 1 .. OPERATOR) {
			run Client(who)
		};
		run Sweeper();
		run Clock()
	}
}
