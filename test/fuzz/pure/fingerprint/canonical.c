/*
 * canonical.c
 *		The canonical form, from its description in docs/fingerprint.md.
 *
 * Knows nothing of jsonb, numeric or PostgreSQL: it works on the document
 * that the text was made of, so nothing is shared with what it is compared to.
 *
 * Copyright (c) 2026, idempotency contributors
 */
#include <stdlib.h>
#include <string.h>

#include "document.h"

static void
add_u16(Bytes *out, int value)
{
	uint8_t		bytes[2] = {(uint8_t) (value >> 8), (uint8_t) value};

	add(out, bytes, 2);
}

static void
add_u32(Bytes *out, size_t value)
{
	add_u16(out, (int) (value >> 16));
	add_u16(out, (int) (value & 0xFFFF));
}

static size_t
utf8_length(const Text *text)
{
	size_t		length = 0;

	for (int i = 0; i < text->n; i++)
		length += 1 + (text->code[i] > 0x7F) + (text->code[i] > 0x7FF) + (text->code[i] > 0xFFFF);
	return length;
}

static void
add_text(Bytes *out, const Text *text)
{
	add_u32(out, utf8_length(text));
	for (int i = 0; i < text->n; i++)
		add_utf8(out, text->code[i]);
}

/* The decimal digit at 10^power; 0 where there is none. */
static int
digit_at(const Json *number, int power)
{
	int			at = number->ndigits - 1 - (power - number->exponent);

	return at >= 0 && at < number->ndigits ? number->digits[at] - '0' : 0;
}

/* The digit at 10000^place. */
static int
group_at(const Json *number, int place)
{
	int			group = 0;

	for (int power = 4 * place + 3; power >= 4 * place; power--)
		group = 10 * group + digit_at(number, power);
	return group;
}

/* The largest number of fours that is not above. */
static int
fours(int power)
{
	return power >= 0 ? power / 4 : -((-power + 3) / 4);
}

static void
add_number(Bytes *out, const Json *number)
{
	int			first = fours(number->exponent + number->ndigits - 1);
	int			last = fours(number->exponent);

	while (first >= last && group_at(number, first) == 0)
		first--;
	while (last <= first && group_at(number, last) == 0)
		last++;
	if (first < last)
	{
		add(out, "#\0\0\0\0\0\0", 7);
		return;
	}
	add(out, "#", 1);
	add_u16(out, first - last + 1);
	add_u16(out, first);
	add_u16(out, number->negative ? 0x4000 : 0);
	for (int place = first; place >= last; place--)
		add_u16(out, group_at(number, place));
}

/* Is a's key before b's?  In UTF-8, bytewise order is that of the characters. */
static bool
precedes(const Text *a, const Text *b)
{
	if (utf8_length(a) != utf8_length(b))
		return utf8_length(a) < utf8_length(b);
	for (int i = 0; i < a->n && i < b->n; i++)
		if (a->code[i] != b->code[i])
			return a->code[i] < b->code[i];
	return false;
}

static void
add_value(Bytes *out, const Json *node);

/* Each pair goes where as many keys come before it. */
static void
add_object(Bytes *out, const Json *node)
{
	add(out, "{", 1);
	add_u32(out, node->n);
	for (int place = 0; place < node->n; place++)
		for (int i = 0; i < node->n; i++)
		{
			int			before = 0;

			for (int j = 0; j < node->n; j++)
				before += precedes(&node->key[j], &node->key[i]);
			if (before == place)
			{
				add_text(out, &node->key[i]);
				add_value(out, node->member[i]);
			}
		}
}

static void
add_value(Bytes *out, const Json *node)
{
	switch (node->kind)
	{
		case NULL_VALUE:
			add(out, "n", 1);
			break;
		case FALSE_VALUE:
			add(out, "f", 1);
			break;
		case TRUE_VALUE:
			add(out, "t", 1);
			break;
		case NUMBER:
			add_number(out, node);
			break;
		case STRING:
			add(out, "\"", 1);
			add_text(out, &node->text);
			break;
		case ARRAY:
			add(out, "[", 1);
			add_u32(out, node->n);
			for (int i = 0; i < node->n; i++)
				add_value(out, node->member[i]);
			break;
		default:
			add_object(out, node);
			break;
	}
}

void
canonical_form(const Json *document, Bytes *out)
{
	out->n = 0;
	add(out, "IDEM\001", 5);
	add_value(out, document);
}
