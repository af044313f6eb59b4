/*
 * document.c
 *		JSON documents, made of any bytes and written in many ways.
 *
 * A document is a tree of values, so that two can be compared by meaning: by
 * same_value(), which knows nothing of texts or forms.  Writing one down may
 * order keys as it likes, write a key twice (the last counts), escape, pad,
 * and spell a number in any of the ways that JSON has.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "document.h"

#define DEEPEST		6
#define MOST_NODES	4000

static Json nodes[MOST_NODES];
static int	n_nodes;

void
forget_documents(void)
{
	n_nodes = 0;
}

static Json *
new_node(Kind kind)
{
	Json	   *node = &nodes[n_nodes < MOST_NODES ? n_nodes++ : MOST_NODES - 1];

	memset(node, 0, sizeof(*node));
	node->kind = kind;
	return node;
}

uint8_t
choose(Source *s, int n)
{
	return s->at < s->end ? *s->at++ % n : 0;
}

/* ----------------------------------------------------------------
 * Making
 * ---------------------------------------------------------------- */

/* Those that JSON, UTF-8 or a jsonb treats in some special way come often. */
static uint32_t
take_character(Source *s, uint32_t largest)
{
	static const uint32_t special[] = {
		'a', 'b', '"', '\\', '/', 1, 8, 9, 10, 13, 31, ' ', '{', 127, 128, 0xA0, 0xE9, 0xFF,
		0x7FF, 0x800, 0x2028, 0xD7FF, 0xE000, 0xFFFD, 0xFFFF, 0x10000, 0x1F511, 0x10FFFF,
	};
	uint32_t	code = special[choose(s, sizeof(special) / sizeof(*special))];

	if (choose(s, 4) == 3)
		code = choose(s, 256) << 16 | choose(s, 256) << 8 | choose(s, 256);
	if (code == 0 || code > largest || (code >= 0xD800 && code <= 0xDFFF))
		code = 'a' + code % 26;
	return code;
}

static void
take_text(Source *s, uint32_t largest, Text *text)
{
	text->n = choose(s, 8) == 7 ? choose(s, MOST_CHARACTERS + 1) : choose(s, 5);
	for (int i = 0; i < text->n; i++)
		text->code[i] = take_character(s, largest);
}

static bool
same_text(const Text *a, const Text *b)
{
	if (a->n != b->n)
		return false;
	for (int i = 0; i < a->n; i++)
		if (a->code[i] != b->code[i])
			return false;
	return true;
}

static void
take_number(Source *s, Json *node)
{
	node->negative = choose(s, 2);
	node->ndigits = 1 + (choose(s, 4) == 3 ? choose(s, MOST_DIGITS) : choose(s, 6));
	for (int i = 0; i < node->ndigits; i++)
		node->digits[i] = '0' + choose(s, 16) % 10;
	node->exponent = (int8_t) choose(s, 256) / 8;
	if (choose(s, 8) == 7)
		node->exponent = choose(s, 32) * 500 - 8000;
}

/* A key that is there already is not taken again. */
static void
add_member(Json *node, const Text *key, Json *member)
{
	for (int i = 0; node->kind == OBJECT && i < node->n; i++)
		if (same_text(&node->key[i], key))
			return;
	if (node->kind == OBJECT)
		node->key[node->n] = *key;
	node->member[node->n++] = member;
}

static Json *
take_node(Source *s, uint32_t largest, int depth)
{
	Json	   *node = new_node(choose(s, depth < DEEPEST ? N_KINDS : ARRAY));
	int			members;
	Text		key = {0};

	if (node->kind == NUMBER)
		take_number(s, node);
	else if (node->kind == STRING)
		take_text(s, largest, &node->text);
	else if (node->kind >= ARRAY)
	{
		members = choose(s, MOST_MEMBERS + 1);
		for (int i = 0; i < members && s->at < s->end; i++)
		{
			if (node->kind == OBJECT)
				take_text(s, largest, &key);
			add_member(node, &key, take_node(s, largest, depth + 1));
		}
	}
	return node;
}

Json *
take_document(Source *s, uint32_t largest)
{
	return take_node(s, largest, 0);
}

/* ----------------------------------------------------------------
 * Altering
 * ---------------------------------------------------------------- */

static Json *
copy(const Json *node)
{
	Json	   *made = new_node(node->kind);

	*made = *node;
	for (int i = 0; i < node->n; i++)
		made->member[i] = copy(node->member[i]);
	return made;
}

static Json *
wrapped(Kind kind, Json *inner)
{
	Json	   *made = new_node(kind);
	Text		key = {1, {'a'}};

	add_member(made, &key, inner);
	return made;
}

/* Changes that a form without lengths or types might not show. */
static Json *
alter(Json *node, Source *s, uint32_t largest)
{
	Text	   *text = &node->text;

	switch (choose(s, 10))
	{
		case 0:
			return take_node(s, largest, DEEPEST - 2);
		case 1:
			return wrapped(ARRAY, node);
		case 2:
			return wrapped(OBJECT, node);
		case 3:					/* 12 and 1.2 and -12 */
			node->exponent += choose(s, 9) - 4;
			node->negative ^= choose(s, 2);
			return node;
		case 4:					/* 1.20: the same number */
			if (node->ndigits < MOST_DIGITS)
			{
				node->digits[node->ndigits++] = '0';
				node->exponent--;
			}
			return node;
		case 5:					/* one element less */
			node->n -= node->n > 0;
			return node;
		case 6:					/* two change places */
			if (node->n > 1)
			{
				Json	   *first = node->member[0];

				node->member[0] = node->member[1];
				node->member[1] = first;
			}
			return node;
		case 7:					/* "ab", "c" and "a", "bc" */
			if (node->n > 1 && node->member[0]->kind == STRING &&
				node->member[1]->kind == STRING && node->member[0]->text.n > 0 &&
				node->member[1]->text.n < MOST_CHARACTERS)
			{
				Text	   *from = &node->member[0]->text;
				Text	   *to = &node->member[1]->text;

				memmove(to->code + 1, to->code, to->n++ * sizeof(*to->code));
				to->code[0] = from->code[--from->n];
			}
			return node;
		case 8:					/* one character, or its kind */
			if (text->n > 0)
				text->code[choose(s, text->n)] = take_character(s, largest);
			else if (node->kind == NULL_VALUE)
				node->kind = FALSE_VALUE;
			return node;
		default:				/* nothing */
			return node;
	}
}

static Json *
altered_in(Json *node, Source *s, uint32_t largest)
{
	int			at;

	if (node->n == 0 || choose(s, 3) == 0)
		return alter(node, s, largest);
	at = choose(s, node->n);
	node->member[at] = altered_in(node->member[at], s, largest);
	return node;
}

Json *
altered(const Json *document, Source *s, uint32_t largest)
{
	return altered_in(copy(document), s, largest);
}

/* ----------------------------------------------------------------
 * Meaning
 * ---------------------------------------------------------------- */

/* The digits that count, from and to, and the power of ten of the last. */
static void
significant(const Json *number, int *from, int *to, int *power)
{
	*from = 0;
	*to = number->ndigits;
	*power = number->exponent;
	while (*from < *to && number->digits[*from] == '0')
		++*from;
	while (*from < *to && number->digits[*to - 1] == '0')
	{
		--*to;
		++*power;
	}
}

static bool
same_number(const Json *a, const Json *b)
{
	int			a_from,
				a_to,
				a_power,
				b_from,
				b_to,
				b_power;

	significant(a, &a_from, &a_to, &a_power);
	significant(b, &b_from, &b_to, &b_power);
	if (a_to - a_from != b_to - b_from)
		return false;
	if (a_from == a_to)
		return true;			/* zeros have no sign */
	return a->negative == b->negative && a_power == b_power &&
		memcmp(a->digits + a_from, b->digits + b_from, a_to - a_from) == 0;
}

static bool
same_object(const Json *a, const Json *b)
{
	for (int i = 0; i < a->n; i++)
	{
		int			j = 0;

		while (j < b->n && !same_text(&a->key[i], &b->key[j]))
			j++;
		if (j == b->n || !same_value(a->member[i], b->member[j]))
			return false;
	}
	return true;
}

bool
same_value(const Json *a, const Json *b)
{
	if (a->kind != b->kind || a->n != b->n)
		return false;
	switch (a->kind)
	{
		case NUMBER:
			return same_number(a, b);
		case STRING:
			return same_text(&a->text, &b->text);
		case OBJECT:
			return same_object(a, b);
		case ARRAY:
			for (int i = 0; i < a->n; i++)
				if (!same_value(a->member[i], b->member[i]))
					return false;
			return true;
		default:
			return true;
	}
}

/* ----------------------------------------------------------------
 * Writing
 * ---------------------------------------------------------------- */

void
add(Bytes *out, const void *data, size_t n)
{
	if (out->n + n > sizeof(out->data))
		abort();				/* no document is that large */
	memcpy(out->data + out->n, data, n);
	out->n += n;
}

static void
add_string(Bytes *out, const char *string)
{
	add(out, string, strlen(string));
}

void
add_utf8(Bytes *out, uint32_t code)
{
	uint8_t		bytes[4];
	int			n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
	static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};

	for (int i = n - 1; i > 0; i--, code >>= 6)
		bytes[i] = 0x80 | (code & 0x3F);
	bytes[0] = lead[n] | code;
	add(out, bytes, n);
}

static void
spell_space(Source *s, Bytes *out)
{
	static const char *const spaces[] = {"", "", "", " ", "\n", "\t \r"};

	add_string(out, spaces[choose(s, 6)]);
}

static void
spell_escape(Bytes *out, uint32_t unit, bool upper)
{
	char		escape[8];

	snprintf(escape, sizeof(escape), upper ? "\\u%04X" : "\\u%04x", unit & 0xFFFF);
	add_string(out, escape);
}

static void
spell_character(uint32_t code, Source *s, bool utf8, Bytes *out)
{
	static const char simple[] = "\"\\/\b\f\n\r\t";
	static const char names[] = "\"\\/bfnrt";
	const char *found = code < 0x80 ? strchr(simple, (int) code) : NULL;
	int			way = choose(s, 4);
	uint8_t		byte = (uint8_t) code;

	if (found && way == 1)
	{
		add_string(out, "\\");
		add(out, &names[found - simple], 1);
	}
	else if (way >= 2 || code < 0x20 || code == '"' || code == '\\')
	{
		if (code >= 0x10000)
		{
			spell_escape(out, 0xD800 + ((code - 0x10000) >> 10), way == 2);
			code = 0xDC00 + ((code - 0x10000) & 0x3FF);
		}
		spell_escape(out, code, way == 2);
	}
	else if (utf8)
		add_utf8(out, code);
	else
		add(out, &byte, 1);
}

static void
spell_text(const Text *text, Source *s, bool utf8, Bytes *out)
{
	add_string(out, "\"");
	for (int i = 0; i < text->n; i++)
		spell_character(text->code[i], s, utf8, out);
	add_string(out, "\"");
}

/* As an integer or a fraction, each with the exponent that it takes. */
static void
spell_number(const Json *number, Source *s, Bytes *out)
{
	int			from = 0;
	int			exponent = number->exponent;
	int			point;
	char		tail[16];

	/* JSON has no leading zeros */
	while (from < number->ndigits - 1 && number->digits[from] == '0')
		from++;
	if (number->negative)
		add_string(out, "-");
	point = number->digits[from] == '0' ? 1 : 1 + choose(s, number->ndigits - from);
	if (choose(s, 4) == 3)
	{
		add_string(out, "0.");
		point = 0;
	}
	else
		add(out, number->digits + from, point);
	if (from + point < number->ndigits)
	{
		if (point > 0)
			add_string(out, ".");
		add(out, number->digits + from + point, number->ndigits - from - point);
		exponent += number->ndigits - from - point;
		if (choose(s, 3) == 2)
			add_string(out, "000");
	}
	if (exponent == 0 && choose(s, 2) == 0)
		return;
	snprintf(tail, sizeof(tail), "%c%s%d", choose(s, 2) ? 'e' : 'E',
			 exponent >= 0 && choose(s, 2) ? "+" : "", exponent);
	add_string(out, tail);
}

static void
spell_node(const Json *node, Source *s, bool utf8, Bytes *out);

static void
spell_pair(const Text *key, const Json *value, Source *s, bool utf8, Bytes *out)
{
	spell_space(s, out);
	spell_text(key, s, utf8, out);
	spell_space(s, out);
	add_string(out, ":");
	spell_node(value, s, utf8, out);
}

/* Keys start anywhere and go either way; some come twice. */
static void
spell_object(const Json *node, Source *s, bool utf8, Bytes *out)
{
	static const Json decoy = {.kind = TRUE_VALUE};
	int			start = node->n > 0 ? choose(s, node->n) : 0;
	int			step = choose(s, 2) && node->n > 0 ? node->n - 1 : 1;

	add_string(out, "{");
	for (int i = 0; i < node->n; i++)
	{
		int			at = (start + i * step) % node->n;

		if (choose(s, 8) == 7)
		{
			spell_pair(&node->key[at], &decoy, s, utf8, out);
			add_string(out, ",");
		}
		spell_pair(&node->key[at], node->member[at], s, utf8, out);
		if (i < node->n - 1)
			add_string(out, ",");
	}
	spell_space(s, out);
	add_string(out, "}");
}

static void
spell_node(const Json *node, Source *s, bool utf8, Bytes *out)
{
	spell_space(s, out);
	switch (node->kind)
	{
		case NULL_VALUE:
			add_string(out, "null");
			break;
		case FALSE_VALUE:
			add_string(out, "false");
			break;
		case TRUE_VALUE:
			add_string(out, "true");
			break;
		case NUMBER:
			spell_number(node, s, out);
			break;
		case STRING:
			spell_text(&node->text, s, utf8, out);
			break;
		case ARRAY:
			add_string(out, "[");
			for (int i = 0; i < node->n; i++)
			{
				if (i > 0)
					add_string(out, ",");
				spell_node(node->member[i], s, utf8, out);
			}
			add_string(out, "]");
			break;
		default:
			spell_object(node, s, utf8, out);
			break;
	}
	spell_space(s, out);
}

void
spell(const Json *document, Source *s, bool utf8, Bytes *out)
{
	out->n = 0;
	spell_node(document, s, utf8, out);
	add(out, "", 1);
}
