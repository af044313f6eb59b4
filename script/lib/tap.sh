# shellcheck shell=bash
#
# Counting what the test programs report.
#
#   count_regress LOG     from the output of pg_regress or of
#                         pg_isolation_regress: each test file counts as one
#   count_prove LOG       from the output of prove or pg_prove: each assertion
#                         counts as one; so does a file that broke off, planned
#                         a different number or died after its assertions held
#
# Both print "PASSED FAILED SKIPPED".  prove must have run with --directives,
# or it would not mention the assertions that a test skipped.

count_regress()
{
	awk '
		/^ok [0-9]+ / || / \.\.\. ok +[0-9]+ ms$/ { passed++ }
		/^not ok [0-9]+ / || / \.\.\. FAILED/ { failed++ }
		END { print passed + 0, failed + 0, 0 }
	' "$1"
}

# prove names each file with a fault in its summary, as in
#   test/t/001_crash.pl (Wstat: 256 (exited 1) Tests: 3 Failed: 1)
count_prove()
{
	awk '
		/^Files=[0-9]+, Tests=[0-9]+/ {
			split($2, tests, /[=,]/)
			passed += tests[2]
		}
		/ \(Wstat: .*Tests: [0-9]+ Failed: [0-9]+\)$/ {
			bad = $NF + 0
			passed -= bad
			failed += bad > 0 ? bad : 1
		}
		/^ok [0-9]+.*# *[Ss][Kk][Ii][Pp]/ { passed--; skipped++ }
		/ \.+ skipped(:|$)/ { skipped++ }
		END { print passed + 0, failed + 0, skipped + 0 }
	' "$1"
}
